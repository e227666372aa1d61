"""Population based training: policies that copy better ones, with other hyperparameters.

Jaderberg et al. 2017, https://arxiv.org/abs/1711.09846: exploit by truncation selection, explore by
perturbation or resampling.
"""

import dataclasses
import json
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from distrl import specs
from distrl.agents.tunable import Tunable
from distrl.errors import ConfigError, Diverged
from distrl.field_checks import check_whole, is_number, plain_numbers
from distrl.learning.divergence import MAX_SKIPPED
from distrl.runtime.files import replacing
from distrl.task import Task

RECORD = "population.jsonl"


@dataclasses.dataclass(frozen=True)
class Population:
    """Settings of population based training; all learned policies of an experiment are members.

    Each member is compared with the others every `interval` of its updates. One of the worst
    `share` copies parameters and optimiser state of a random one of the best, if its return is
    worse, and gets that one's hyperparameters with changes: `Tunable` says which there are.

    Attributes:
      interval: updates of a member between two comparisons.
      share: share of the members that counts as the worst, and as the best, in (0, 0.5]; at least
        one member.
      factors: a hyperparameter is multiplied by a random one of these, and kept in its range.
      resample: chance of a new value instead, uniform in its logarithm over its range, in [0, 1].
      episodes: episodes that a member must have ended, since the start or since it became a copy,
        for their mean return to count, over the last `goal.window` of them. Until then a copy
        counts as good as the other was.
    """

    interval: int = 100
    share: float = 0.25
    factors: tuple[float, ...] = (0.8, 1.25)
    resample: float = 0.1
    episodes: int = 10

    def __post_init__(self) -> None:
        plain_numbers(self)
        for field in ("interval", "episodes"):
            check_whole(self, field, "population")
        if not (is_number(self.share) and 0 < self.share <= 0.5):
            raise ConfigError(f"population.share must be above 0, 0.5 at most; got {self.share!r}")
        if not (is_number(self.resample) and 0 <= self.resample <= 1):
            raise ConfigError(f"population.resample must lie in [0, 1]; got {self.resample!r}")
        several = isinstance(self.factors, (tuple, list)) and len(self.factors) > 0
        if not (several and all(is_number(factor) and factor > 0 for factor in self.factors)):
            raise ConfigError(
                f"population.factors: expected numbers above 0, such as 0.8, 1.25; got "
                f"{self.factors!r}"
            )

    def explore(
        self,
        rng: np.random.Generator,
        values: Mapping[str, float],
        ranges: Mapping[str, tuple[float, float]],
    ) -> dict[str, float]:
        """Returns changed hyperparameters. Args: ranges: least and largest values, by name."""
        changed = {}
        for name, (least, most) in ranges.items():
            if rng.random() < self.resample:
                value = math.exp(rng.uniform(math.log(least), math.log(most)))
            else:
                value = values[name] * self.factors[rng.integers(len(self.factors))]
            changed[name] = float(np.clip(value, least, most))
        return changed

    def donor(
        self, rng: np.random.Generator, member: str, scores: Mapping[str, float]
    ) -> str | None:
        """Returns whom a member copies; None: it keeps what it has.

        Args:
          rng: the source of randomness.
          member: the member, which is in `scores`.
          scores: mean returns of the members that can be compared.
        """
        ranked = sorted(scores, key=lambda name: (scores[name], name))
        count = max(1, int(self.share * len(ranked)))
        if len(ranked) < 2 or member not in ranked[:count]:
            return None
        best = ranked[-count:]
        chosen = best[rng.integers(len(best))]
        return chosen if scores[chosen] > scores[member] else None


class MemberStanding(NamedTuple):
    """What the other members know about a member."""

    version: int  # learner updates
    episodes: int  # number of episodes that the mean is over
    mean_return: float | None


class PopulationMember(Protocol):
    """The learner of a member, in this process or in another."""

    def standing(self) -> MemberStanding:
        """Returns its version, episodes and mean return."""

    def skipped_in_row(self) -> int:
        """Returns the number of its updates that were skipped since the last that was not."""

    def copy(self) -> tuple[Any, dict[str, float]]:
        """Returns its state in a form that the others' `adopt` takes, and its hyperparameters."""

    def adopt(self, state: Any, values: Mapping[str, float]) -> None:
        """Replaces its state with another member's, with these hyperparameters."""

    def forget_episodes(self) -> None:
        """Forgets the recent episodes, which are of another policy than the current one."""


class Evolution:
    """Compares members, and makes the worst copy the best. The seed decides who copies whom."""

    def __init__(
        self,
        population: Population,
        ranges: Mapping[str, tuple[float, float]],
        members: Mapping[str, PopulationMember],
        seed: int,
        record: Path | None = None,
        printer: Callable[[str], None] = print,
    ):
        """Args:
        population: the settings.
        ranges: the ranges of the hyperparameters, see `Tunable`.
        members: the members, by name, in order.
        seed: seed of all choices.
        record: file to which each copy, and each restart of a learner, adds a line of JSON; None:
          no file.
        printer: takes a line of text about each.
        """
        self._population, self._ranges = population, ranges
        self._members = dict(members)
        self._index = {name: index for index, name in enumerate(members)}
        self._seed = seed
        self._record = record
        self._printer = printer
        self._versions: dict[str, int] = {}  # the members' versions at the last look
        self._scores: dict[str, float] = {}  # a copy keeps the other's score until it has its own

    def run_once(self) -> None:
        """Compares the members whose turn it is.

        One that has diverged, by `MAX_SKIPPED` skipped updates in a row, counts as the worst,
        whatever its returns were, and nobody copies it.

        Raises:
          Diverged: all members have.
        """
        standings, due = {}, []
        for name, member in self._members.items():
            standing = member.standing()
            version = standing.version
            before = self._versions.get(name, version)  # a resumed member has been compared already
            self._versions[name] = version
            if version < before:
                self._step_back(name, version, before)
                standing = MemberStanding(version, 0, None)
            standings[name] = standing
            turn = version // self._population.interval
            if turn > before // self._population.interval:
                due.append((name, turn))
        if not due:
            return
        for name, standing in standings.items():
            if standing.mean_return is not None and standing.episodes >= self._population.episodes:
                self._scores[name] = standing.mean_return
        diverged = {
            name for name, each in self._members.items() if each.skipped_in_row() >= MAX_SKIPPED
        }
        if len(diverged) == len(self._members):
            raise Diverged(
                f"training has diverged: every member of the population has skipped {MAX_SKIPPED} "
                "updates in a row; lower the ranges of its hyperparameters, such as learning_rate"
            )
        sound = {name: score for name, score in self._scores.items() if name not in diverged}
        for name, turn in due:
            scores = {**sound, name: -math.inf} if name in diverged else sound
            if name not in scores:
                continue
            rng = np.random.default_rng([self._seed, self._index[name], turn])
            donor = self._population.donor(rng, name, scores)
            if donor is not None:
                self._copy(rng, name, donor, standings[name].version, name in diverged)

    def _step_back(self, name: str, version: int, before: int) -> None:
        """Forgets what was known of a member whose learner has lost updates in a restart."""
        self._scores.pop(name, None)
        self._members[name].forget_episodes()
        self._printer(
            f"population: the learner of {name} was restarted: it went back from learner step "
            f"{before} to {version}, and lost the copies that it made in between"
        )
        self._note({"member": name, "learner_step": version, "restarted_after": before})

    def _copy(
        self, rng: np.random.Generator, name: str, donor: str, version: int, diverged: bool
    ) -> None:
        state, values = self._members[donor].copy()
        changed = self._population.explore(rng, values, self._ranges)
        self._members[name].adopt(state, changed)
        worse, better = self._scores.get(name), self._scores[donor]
        self._scores[name] = better
        text = ", ".join(f"{key} {values[key]:.3g} -> {new:.3g}" for key, new in changed.items())
        state = "diverged" if diverged or worse is None else f"return {worse:.1f}"
        self._printer(
            f"population: {name} ({state}, learner step {version}) copies {donor} "
            f"(return {better:.1f}): {text}"
        )
        self._note({
            "member": name, "learner_step": version, "return": worse, "copies": donor,
            "its_return": better, "from": values, "to": changed,
            **({"diverged": True} if diverged else {}),
        })  # fmt: skip

    def _note(self, line: Mapping[str, Any]) -> None:
        if self._record is not None:
            with self._record.open("a") as file:
                file.write(json.dumps(line) + "\n")


def drop_lost(record: Path, versions: Mapping[str, int]) -> None:
    """Drops the lines of a record that a resumed run has lost: those after its checkpoints.

    Args:
      record: the file, if there is one. A line that a kill has cut off is dropped, too.
      versions: learner steps from which the members resume.
    """
    if not record.exists():
        return
    lines = record.read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.endswith("\n") and not _is_lost(line, versions)]
    part = record.with_name(f".{record.name}.new")
    with replacing(record, part):
        part.write_text("".join(kept))


def _is_lost(line: str, versions: Mapping[str, int]) -> bool:
    try:
        noted = json.loads(line)
        return noted["learner_step"] > versions[noted["member"]]
    except (ValueError, LookupError, TypeError):
        return True


def check_members(
    population: Population, tasks: Mapping[str, Task], shared: Sequence[str] = ()
) -> None:
    """Raises ConfigError unless these policies can be a population.

    Args:
      population: its settings.
      tasks: the tasks of the learned policies, by name.
      shared: names of parameters that policies share.
    """
    if shared:
        raise ConfigError(
            f"population: members copy each other's parameters, and cannot share {list(shared)}; "
            "leave shared out"
        )
    if len(tasks) < 2:
        raise ConfigError(
            f"population: it needs at least two learned policies, but has {list(tasks)}"
        )
    first, one = next(iter(tasks.items()))
    for name, task in tasks.items():
        agent = task.agent
        if not isinstance(agent, Tunable):
            raise ConfigError(
                f"population: the agent of policy {name!r} has no hyperparameters that can change; "
                f"give it Tunable({type(agent).__name__}(...), ranges={{...}})"
            )
        if task.learns_from is not None:
            raise ConfigError(
                f"population: policy {name!r} learns from {task.learns_from!r}, whose returns say "
                "nothing about it; leave learns_from out, and let it act itself"
            )
        if task.goal.window < population.episodes:
            raise ConfigError(
                f"population.episodes={population.episodes}: members are compared by the mean "
                f"return of goal.window={task.goal.window} episodes; take as many or fewer"
            )
        if not task.learner.learning:
            raise ConfigError(
                f"population: policy {name!r} does not learn (learner.learning=False)"
            )
        if agent != one.agent:
            raise ConfigError(
                f"population: the agents of policies {first!r} and {name!r} differ, and could not "
                "copy each other; give all the same Tunable: they begin with random values"
            )
        shapes = [specs.struct(each.env_spec[:2]) for each in (one, task)]
        if task.transforms != one.transforms or shapes[0] != shapes[1]:
            raise ConfigError(
                f"population: the transforms, observations or actions of policies {first!r} and "
                f"{name!r} differ, and they could not copy each other; give all the same"
            )
