"""The pages of `learning.py`: tables and curves, from its notes alone."""

import re
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from learning import ROOT, Note
from learning_stats import band, interval, iqm, on_grid
from learning_tasks import REMARKS, TASKS
from published_figures import NOT_CHECKED, published

from distrl import presets

PAGES = ROOT / "docs" / "results"
GOALS = ROOT / "docs" / "results.md"
MARK = "<!-- made by benchmarks/learning.py --report -->"
TITLES = {name: name.upper().replace("_", "-") for name in sorted(presets.AGENTS)}
SINGLE = "single_process"
GRID_POINTS = 60

PARITY = (("CartPole-v1", "ppo"), ("CartPole-v1", "impala"), ("CartPole-v1", "dqn"))
VARIANTS = (
    SINGLE, "heavy_env, shared_memory", "heavy_env, reverb", "light_env, shared_memory",
    "light_env, reverb",
)  # fmt: skip


def write_pages(notes: Sequence[Note]) -> None:
    """Writes a page for each algorithm, its curves, and the tables of `docs/results.md`."""
    PAGES.mkdir(exist_ok=True)
    for agent, title in TITLES.items():
        runs = plateaus(notes, agent)
        if runs:
            plot(runs, PAGES / f"{agent}.svg", f"{title}, mean return of 100 episodes")
        (PAGES / f"{agent}.md").write_text(page(notes, agent))
    GOALS.write_text(goals_page(GOALS.read_text(), notes))
    goals = [note for note in notes if note.goal is not None and note.topology == SINGLE]
    if goals:
        plot(goals, GOALS.with_suffix(".svg"), "until the goal")


def plateaus(notes: Iterable[Note], agent: str) -> list[Note]:
    """Returns the notes of an agent's runs with a budget."""
    return [note for note in notes if note.agent == agent and note.budget is not None]


def grouped(notes: Iterable[Note]) -> dict[tuple[str, str, str, str, int | None], list[Note]]:
    """Returns the notes that differ in their seed only, by seed, in the order of the tasks."""
    order = [(task.name, task.agent, task.variant, task.topology, task.steps) for task in TASKS]
    groups: dict[tuple[str, str, str, str, int | None], list[Note]] = {}
    for note in notes:
        key = (note.task, note.agent, note.variant, note.topology, note.budget)
        groups.setdefault(key, []).append(note)
    for runs in groups.values():
        runs.sort(key=lambda note: note.seed)
    ranks = {key: order.index(key) if key in order else len(order) for key in groups}
    return {key: groups[key] for key in sorted(groups, key=lambda key: (ranks[key], key[:4]))}


def page(notes: Sequence[Note], agent: str) -> str:
    """Returns the page of an algorithm."""
    runs = plateaus(notes, agent)
    title = TITLES[agent]
    module = "continuous" if agent in ("sac", "td3", "ddpg") else agent
    lines = [
        f"# Results of {title}",
        "",
        f"Settings are those of the presets of `--agent={agent}`: "
        f"[the algorithm's page](../algorithms/{agent}.md#settings) lists them by environment, and "
        f"`preset` in `distrl/agents/{module}.py` names their sources. "
        "[How to read the tables](../results.md#plateaus).",
        "",
    ]
    if runs:
        lines += [f"![curves]({agent}.svg)", "", *plateau_table(runs), ""]
    else:
        lines += ["No run with a budget of environment steps is recorded yet.", ""]
    lines += ["## Published figures", "", *published_table(runs, agent)]
    if runs and agent in REMARKS:
        lines += ["", REMARKS[agent]]
    if runs:
        lines += ["", "## Runs", "", *run_table(runs)]
    return "\n".join(lines) + "\n"


def score(values: Sequence[float]) -> str:
    """Returns an interquartile mean with its interval: "490.1 (485.0 to 495.2)"."""
    digits = 2 if max(map(abs, values)) < 10 else 1 if max(map(abs, values)) < 1000 else 0
    if len(values) == 1:
        return f"{values[0]:,.{digits}f}"
    low, high = interval([values])
    return f"{iqm(values):,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def command_of(runs: Sequence[Note]) -> str:
    """Returns the command of most runs of a row; a preset may have changed between them."""
    return statistics.mode(note.command for note in runs)


def plateau_table(runs: Iterable[Note]) -> list[str]:
    """Returns the table of what was reached: a row for all seeds."""
    lines = [
        "| task | seeds | training return | greedy return | steps/s | `distrl train ...` |",
        "|---|---|---|---|---|---|",
    ]
    for (task, _, variant, _, _), group in grouped(runs).items():
        greedy = [note.greedy[0] for note in group if note.greedy is not None]
        rate = np.median([note.steps / note.seconds for note in group])
        name = f"{task}, {variant}" if variant else task
        lines.append(
            f"| {name} | {len(group)} | {score([note.score for note in group])} | "
            f"{score(greedy) if greedy else ''} | {rate:,.0f} | `{command_of(group)}` |"
        )
    return lines


def published_table(runs: Sequence[Note], agent: str) -> list[str]:
    """Returns the table of published figures beside ours."""
    ours = _compared(runs)
    tasks = dict.fromkeys([*ours, *(task.name for task in TASKS if task.agent == agent)])
    rows, sources = [], {}
    for task in tasks:
        for figure in published(task, agent):
            sources[figure.source.name] = figure.source
            rows += [
                f"| {name} | {mine} | {figure.mean:,.5g} ± {figure.std:,.4g} | {figure.steps:,} | "
                f"[{figure.source.name}]({figure.source.address}), {figure.env} |"
                for name, mine in ours.get(task, {task: ""}).items()
            ]
    lines = [f"- {source.name}: {source.what}." for source in sources.values()]
    if rows:
        head = ["| task | ours | published | steps | source |", "|---|---|---|---|---|"]
        lines = [*head, *rows, "", *lines]
    if agent in NOT_CHECKED:
        lines += ([""] if lines else []) + [NOT_CHECKED[agent]]
    return lines or ["None were checked."]


def _compared(runs: Sequence[Note]) -> dict[str, dict[str, str]]:
    """Returns by task what is compared with others: the presets' runs, if none its variants'."""
    groups = grouped(runs)
    plain = {key[0] for key in groups if not key[2] and key[3] == SINGLE}
    ours: dict[str, dict[str, str]] = {}
    for (task, _, variant, topology, budget), group in groups.items():
        if task in plain and (variant or topology != SINGLE):
            continue
        greedy = [note.greedy[0] for note in group if note.greedy is not None]
        mine = f"{iqm([note.score for note in group]):,.5g}"
        mine += f", greedy {iqm(greedy):,.5g}" if greedy else ""
        if group[0].goal is not None:  # ended there
            budget = round(np.median([note.steps for note in group]))
        ours.setdefault(task, {})[f"{task}, {variant}" if variant else task] = (
            f"{mine} at {budget:,}"
        )
    return ours


def run_table(runs: Iterable[Note]) -> list[str]:
    """Returns the table of the single runs, with what they were run with."""
    lines = [
        "| task | topology | seed | training | greedy | seconds | revision | JAX, EnvPool |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (task, _, variant, _, _), group in grouped(runs).items():
        for note in group:
            greedy = "" if note.greedy is None else f"{note.greedy[0]:,.5g} ± {note.greedy[1]:,.4g}"
            versions = ", ".join(note.versions.get(name, "?") for name in ("jax", "envpool"))
            lines.append(
                f"| {f'{task}, {variant}' if variant else task} | {note.topology} | {note.seed} | "
                f"{note.score:,.5g} | {greedy} | {note.seconds:.0f} | {note.code or '?'} | "
                f"{versions} |"
            )
    return lines


def goals_page(text: str, notes: Sequence[Note]) -> str:
    """Returns `docs/results.md` with the part below MARK written from the notes."""
    goals = [note for note in notes if note.goal is not None]
    alone = [note for note in goals if note.topology == SINGLE]
    parity = [
        note for note in goals if note.topology in VARIANTS and (note.task, note.agent) in PARITY
    ]
    parity.sort(
        key=lambda note: (PARITY.index((note.task, note.agent)), VARIANTS.index(note.topology))
    )
    lines = [text.partition(MARK)[0] + MARK, "", "![curves](results.svg)", ""]
    lines += [*goal_table(alone, by_topology=False), ""]
    lines += ["## The same under every topology and replay", ""]
    return "\n".join([*lines, *goal_table(parity, by_topology=True)]) + "\n"


def goal_table(notes: Iterable[Note], by_topology: bool) -> list[str]:
    """Returns the table of the steps to a goal, with one row for all seeds."""
    rows: dict[tuple[Any, ...], list[Note]] = {}
    for note in notes:
        rows.setdefault(note._replace(seed=0).key, []).append(note)
    last = "topology, replay" if by_topology else "`distrl train ...`"
    lines = [
        f"| task | agent | goal | reached | steps acted | seconds | {last} |",
        "|---|---|---|---|---|---|---|",
    ]
    for (task, agent, variant, topology, _, goal, _), runs in rows.items():
        runs.sort(key=lambda note: note.seed)
        steps = ", ".join(f"{note.steps / 1000:.0f}k" for note in runs)
        seconds = ", ".join(f"{note.seconds:.0f}" for note in runs)
        missed = ", ".join(f"{note.score:.4g}" for note in runs if not note.reached)
        reached = f"{sum(note.reached for note in runs)} of {len(runs)}"
        lines.append(
            f"| {f'{task}, {variant}' if variant else task} | {agent} | {goal:g} | "
            f"{reached}{f' (others at {missed})' if missed else ''} | {steps} | {seconds} | "
            f"{topology if by_topology else f'`{command_of(runs)}`'} |"
        )
    return lines


def plot(notes: Sequence[Note], path: Path, title: str) -> None:
    """Draws a panel for each task: interquartile mean and interval, or each run with a goal."""
    import matplotlib

    matplotlib.use("Agg")
    # The same file for the same notes.
    matplotlib.rcParams["svg.hashsalt"] = "learning"
    from matplotlib import pyplot

    groups = grouped(notes)
    tasks = list(dict.fromkeys(key[0] for key in groups))
    columns = min(4, len(tasks))
    rows = -(-len(tasks) // columns)
    figure, axes = pyplot.subplots(
        rows, columns, figsize=(4 * columns, 3.2 * rows), squeeze=False, layout="constrained"
    )
    figure.suptitle(title, fontsize=10)
    for axis in axes.flat[len(tasks) :]:
        axis.axis("off")
    for axis, task in zip(axes.flat, tasks, strict=False):
        of_task = {key: runs for key, runs in groups.items() if key[0] == task}
        for number, ((_, agent, variant, topology, _), runs) in enumerate(of_task.items()):
            names = [agent, variant, "" if topology == SINGLE else topology]
            _draw(axis, runs, f"C{number}", " ".join(filter(None, names)))
        axis.set(title=task, xlabel="environment steps")
        axis.ticklabel_format(axis="x", style="sci", scilimits=(0, 4))
        axis.legend(fontsize=7)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    path.write_text(re.sub(r"[ \t]+$", "", path.read_text(), flags=re.MULTILINE))


def _draw(axis: object, runs: Sequence[Note], color: str, label: str) -> None:
    """Draws the runs of one agent on a task."""
    if runs[0].budget is None:
        for number, note in enumerate(runs):
            _, steps, values = zip(*note.curve, strict=True)
            axis.plot(steps, values, color=color, label=None if number else label)  # type: ignore[attr-defined]
        return
    grid = np.linspace(0, runs[0].budget, GRID_POINTS)
    curves = []
    for note in runs:
        _, steps, values = zip(*note.curve, strict=True)
        curves.append(on_grid(grid, steps, values))
    mean, low, high = band(np.asarray(curves))
    axis.plot(grid, mean, color=color, label=label)  # type: ignore[attr-defined]
    axis.fill_between(grid, low, high, color=color, alpha=0.25, linewidth=0)  # type: ignore[attr-defined]
