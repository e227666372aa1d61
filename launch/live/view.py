"""The status of a program as lines for a terminal, made by rich."""

import io
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from distrl.launch.live.progress import duration_text, read_progress, shares_of_nodes, time_text

_BAR = 24  # columns
_OLD_S = 10.0  # from this age on, figures are marked as old


def render(
    status: Mapping[str, Any],
    progress: Mapping[str, Mapping[str, Any]],
    width: int,
    height: int,
    coloured: bool = True,
) -> list[str]:
    """Returns lines, none of which is wider than the terminal.

    Args:
      status: what `status.json` has.
      progress: from `read_progress`.
      width, height: the terminal's size. Nodes for which there is no room are shown as groups.
      coloured: whether to use colours.
    """
    parts: list[Any] = []
    for name, task in progress.items():
        parts += _task(name, task, width)
    nodes = status.get("nodes", {})
    shares = shares_of_nodes(progress)
    above = _lines(parts, width, coloured)
    below = _lines(_verdicts(progress), width, coloured)
    if len(above) + len(below) + len(nodes) + 1 > height:
        table = _table(*_as_groups(nodes, shares))
    else:
        table = _table(nodes, shares)
    lines = [*above, *_lines(list(table), width, coloured), *below]
    return lines[: max(1, height)]


def _lines(parts: list[Any], width: int, coloured: bool) -> list[str]:
    if not parts:
        return []
    file = io.StringIO()
    console = Console(
        file=file,
        width=width,
        force_terminal=True,
        color_system="standard" if coloured else None,
        legacy_windows=False,
        highlight=False,
        emoji=False,
        markup=False,
    )
    console.print(Group(*parts))
    return file.getvalue().rstrip("\n").split("\n")


def _task(name: str, task: Mapping[str, Any], width: int) -> list[Any]:
    metrics, rates = task["metrics"], task["rates"]
    counts = [
        *([name] if name else []),
        duration_text(metrics["seconds"]),
        f"env steps {metrics['env_steps']:,} ({rates['env_steps']:,.0f}/s)",
        f"updates {metrics['learner_steps']:,} ({rates['learner_steps']:,.1f}/s)",
        f"episodes {metrics['episodes']:,}",
    ]
    returns = "return " + _number(metrics["mean_return"])
    if metrics.get("std_return") is not None:
        returns += f" +- {metrics['std_return']:.1f}"
    figures = [returns]
    for what, figure in (("evaluation", "evaluation_return"), ("loss", "loss")):
        if metrics.get(figure) is not None:
            figures.append(f"{what} {_number(metrics[figure])}")
    if metrics.get("success_rate") is not None:
        figures.append(f"success {100 * metrics['success_rate']:.0f} %")
    if metrics.get("policy_lag_mean") is not None:
        p95, most = metrics["policy_lag_p95"], metrics["policy_lag_max"]
        figures.append(f"lag {metrics['policy_lag_mean']:.1f} (p95 {p95:.0f}, max {most:.0f})")
    if metrics.get("table_size") is not None:
        figures.append(f"table {metrics['table_size']:,} of {task['table_max']:,} unrolls")
    lines: list[Any] = [_line(line, "bold") for line in _packed(counts, width)]
    lines += [_line(line) for line in _packed(figures, width)]
    lines += [_bar(part) for part in task["progress"]]
    age = time.monotonic() - task["monotonic"]
    if age > _OLD_S:
        lines.append(_line(f"these figures are {age:.0f} s old", "yellow"))
    return lines


def _packed(parts: Sequence[str], width: int) -> list[str]:
    """Returns lines of as many parts as fit."""
    lines = [parts[0]]
    for part in parts[1:]:
        if len(lines[-1]) + 3 + len(part) <= width:
            lines[-1] += f"   {part}"
        else:
            lines.append(part)
    return lines


def _bar(part: Mapping[str, Any]) -> Table:
    value, wanted = part["value"], part["wanted"]
    done = 0.0 if value is None else max(0.0, min(1.0, value / wanted)) if wanted > 0 else 0.0
    text = f"{part['name'].removeprefix('max_').replace('_', ' ')} {_number(value)} of "
    text += _number(wanted)
    if "seconds_left" in part:
        left = part["seconds_left"]
        text += f", {100 * done:.0f} %"
        text += "" if left is None else f", {duration_text(left)} left"
    row = Table.grid(padding=(0, 1))
    row.add_column(width=_BAR, no_wrap=True)
    row.add_column(no_wrap=True, overflow="ellipsis")
    row.add_row(ProgressBar(total=1.0, completed=done, width=_BAR), Text(text))
    return row


def _table(nodes: Mapping[str, Any], shares: Mapping[str, Mapping[str, float]]) -> list[Text]:
    rows = []
    for name, node in nodes.items():
        stuck = node.get("seconds_since_progress")
        times = time_text(dict(shares.get(name, {})))
        if stuck is not None and stuck > _OLD_S:
            times = f"no progress for {stuck:.0f} s  {times}"
        cores, memory = node.get("cores"), node.get("resident_mb")
        rows.append(
            (
                name,
                node["status"],
                str(node["life"]),
                "-" if cores is None else f"{cores:.2f}",
                "-" if memory is None else f"{memory:,.0f}",
                times,
            )
        )
    head = ("node", "state", "life", "cores", "MB", "time")
    names, states = (max(len(row[column]) for row in (head, *rows)) for column in (0, 1))
    lines = []
    for row in (head, *rows):
        name, state, life, cores, memory, times = row
        line = Text(f"{name:<{names}} ", "dim" if row is head else "", no_wrap=True)
        line.append(f"{state:<{states}}", "" if row is head else _colour(state))
        line.append(f" {life:>4} {cores:>5} {memory:>6}  {times}")
        line.overflow = "ellipsis"
        lines.append(line)
    return lines


def _colour(state: str) -> str:
    return "green" if state.endswith("up") else "yellow"


def _as_groups(
    nodes: Mapping[str, Any], shares: Mapping[str, Mapping[str, float]]
) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Returns `nodes` and `shares` by group: sums of what they use, means of their times."""
    groups: dict[str, list[str]] = {}
    for name in nodes:
        groups.setdefault(name.partition("/")[0], []).append(name)
    rows, means = {}, {}
    for group, names in groups.items():
        members = [nodes[name] for name in names]
        states = [member["status"] for member in members]
        rows[group] = {
            "status": ", ".join(f"{states.count(s)} {s}" for s in sorted(set(states))),
            "life": sum(member["life"] for member in members),
            "cores": sum(member.get("cores") or 0.0 for member in members),
            "resident_mb": sum(member.get("resident_mb") or 0.0 for member in members),
        }
        known = [shares[name] for name in names if name in shares]
        kinds = {state for each in known for state in each}
        means[group] = {
            state: sum(each.get(state, 0.0) for each in known) / len(known) for state in kinds
        }
    return rows, means


def _verdicts(progress: Mapping[str, Mapping[str, Any]]) -> list[Any]:
    sentences = dict.fromkeys(task["bottleneck"] for task in progress.values())
    return [Text(sentence, "cyan") for sentence in sentences if sentence]


def _line(text: str, style: str = "") -> Text:
    return Text(text, style, no_wrap=True, overflow="ellipsis")


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) or abs(value) >= 1e5:
        return f"{value:,.0f}"
    return f"{value:.4g}"


class View:
    """The status of the program in a run folder.

    Args:
      run_dir: the run folder.

    Attributes:
      has_figures: whether there were figures of a task when the lines were last made.
    """

    def __init__(self, run_dir: Path) -> None:
        self.has_figures = False
        self._run_dir = run_dir
        self._coloured = not os.environ.get("NO_COLOR")

    def lines(self, status: Mapping[str, Any], width: int, height: int) -> list[str]:
        """Returns lines; see `render`."""
        progress = read_progress(self._run_dir)
        self.has_figures = bool(progress)
        return render(status, progress, width, height, self._coloured)
