"""What nodes report to the monitor: the kinds of reports, and which nodes send them."""

import numbers
from collections.abc import Mapping
from typing import Any

from distrl.errors import SpecError
from distrl.metrics.bottleneck import ACTOR_NODES, LEARNER_NODES, SINGLE_PROCESS

Report = dict[str, Any]  # {"env_steps": int, "episodes": [Record, ...], ...}
LEARNED, EVALUATED, ACTED = "learner_steps", "evaluation_return", "env_steps"
SPENT = "spent"
"""Key in a learner's report: the actors' budgets, once they are spent and all batches are used."""
METRICS = "metrics"
"""Key in any report: numbers by name, for the node's own columns."""
# By the key that identifies a kind of report: the group whose nodes send it.
_SENDERS = {
    LEARNED: LEARNER_NODES,
    EVALUATED: "evaluator",
    ACTED: ACTOR_NODES,
}
_OF_ANY_NODE = {"time", "batches", METRICS}
_COUNT_BITS = 32  # lower bits of a report's number; the bits above are its life
_ADVICE = f'what is to be a column goes into "{METRICS}": {{"NAME": NUMBER}}'


def first_number(life: int) -> int:
    """Returns the number of a node's first report in this life, above all of its lives before."""
    return life << _COUNT_BITS


def life_of(number: int) -> int:
    """Returns the life in which a node has made the report with this number."""
    return number >> _COUNT_BITS


def kind_of(node: str, report: Mapping[str, Any]) -> str | None:
    """Returns LEARNED, EVALUATED or ACTED; None: only the node's time or metrics.

    Counts and evaluations decide when a run ends, so nodes of other groups may not report them.

    Raises:
      SpecError: the report is of no known kind, or another group's.
    """
    for kind, group in _SENDERS.items():
        if kind in report:
            if node.partition("/")[0] not in (group, SINGLE_PROCESS):
                raise SpecError(f"{node} reported {kind!r}, as only {group} nodes may; {_ADVICE}")
            return kind
    unknown = sorted(report.keys() - _OF_ANY_NODE)
    if unknown:
        raise SpecError(f"{node} reported {', '.join(unknown)}: no known report; {_ADVICE}")
    return None


def checked_metrics(node: str, report: Mapping[str, Any]) -> dict[str, float | None]:
    """Returns the node's own metrics in a report, by the names of their columns, "NODE/NAME".

    Raises:
      SpecError: one is neither a number nor None.
    """
    columns: dict[str, float | None] = {}
    for name, value in report.get(METRICS, {}).items():
        if value is not None and not isinstance(value, numbers.Real):
            raise SpecError(f"{node}: the metric {name!r} must be a number or None, got {value!r}")
        columns[f"{node}/{name}"] = None if value is None else float(value)
    return columns
