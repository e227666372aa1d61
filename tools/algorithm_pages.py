"""Writes the tables of docs/algorithms/: settings from the presets, results from docs/results.md.

    python tools/algorithm_pages.py

A page has two places for them, and names the environments whose presets it shows:

    <!-- made by tools/algorithm_pages.py: settings of CartPole-v1, Pong-v5 -->
    <!-- end -->

    <!-- made by tools/algorithm_pages.py: results -->
    <!-- end -->
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from distrl import presets
from distrl.experiment import Experiment
from distrl.launch.cli import config_flags

ROOT = Path(__file__).resolve().parents[1]
PAGES = ROOT / "docs" / "algorithms"
MADE = "<!-- made by tools/algorithm_pages.py: "
SETTINGS = re.compile(re.escape(MADE) + r"settings of (.+) -->")
RESULTS = re.compile(re.escape(MADE) + r"results -->")
END = "<!-- end -->"
PARTS = (
    "actors.num_actors", "actors.num_envs", "learner.batch_size", "replay.table",
    "replay.unroll_length", "replay.max_size", "replay.min_size_to_sample",
    "replay.samples_per_insert", "replay.period", "replay.priority_exponent",
    "replay.whole_episodes",
)  # fmt: skip
"""Settings beside the agent's own that a preset chooses."""

ELSEWHERE = re.compile(r"agent\.network\.(?!torso|hidden_sizes|activation|core(_size)?$)")
"""The agent's settings that other pages describe."""
OPTIMIZERS = "agent.components."  # of these, what a preset sets is shown

LONGEST_TEXT = 400  # characters of a setting's description


def settings(experiment: Experiment) -> dict[str, tuple[Any, str]]:
    """Returns value and description by the name of the setting: the agent's, then PARTS."""
    described = config_flags.describe(experiment, config_flags.PREFIX)
    leaves = {
        name.removeprefix(f"{config_flags.PREFIX}."): leaf for name, leaf in described.items()
    }
    rows = {
        name: (leaf.value, leaf.doc)
        for name, leaf in leaves.items()
        if name.startswith("agent.")
        and not ELSEWHERE.match(name)
        and not (name.startswith(OPTIMIZERS) and leaf.value in (None, False))
    }
    rows |= {name: (leaves[name].value, leaves[name].doc) for name in PARTS if name in leaves}
    names = ", ".join(transform.name for transform in experiment.transforms)
    rows["transforms"] = (names or "none", "`--transforms`")
    return rows


def settings_table(agent: str, names: Sequence[str]) -> str:
    """Returns the table of an algorithm's settings in the presets of some environments."""
    by_env = [settings(presets.experiment(name, agent)) for name in names]
    lines = [f"| setting | {' | '.join(names)} | |", f"|---|{'---|' * len(names)}---|"]
    for name, (_, doc) in by_env[0].items():
        values = [str(each[name][0]) if name in each else "" for each in by_env]
        if len(set(values)) == 1:
            values = [values[0]] * len(values)
        text = _first_sentences(doc).replace("|", "\\|")
        lines.append(f"| `{name}` | {' | '.join(values)} | {text} |")
    return "\n".join(lines)


def _first_sentences(text: str) -> str:
    """Returns as many sentences as fit LONGEST_TEXT, and at least one."""
    first, *others = re.split(r"(?<=[.]) (?=[A-Z])", text)
    for sentence in others:
        if len(first) + 1 + len(sentence) > LONGEST_TEXT:
            break
        first += f" {sentence}"
    return first


def results_table(agent: str) -> str:
    """Returns the rows of docs/results.md that are about an algorithm."""
    text = (ROOT / "docs" / "results.md").read_text("utf-8")
    text = text[text.index("## One agent") : text.index("## The same under")]
    rows = [re.split(r" *\| *", line.strip("| ")) for line in text.splitlines() if "|" in line]
    lines = [f"| {' | '.join((row[0], *row[2:6]))} |" for row in rows if row[1:2] == [agent]]
    if not lines:
        return "None of the [runs that we recorded](../results.md) is of this algorithm."
    head = "| task | goal | reached | steps acted, by seed | seconds |\n|---|---|---|---|---|\n"
    return head + "\n".join(lines)


def updated(agent: str, text: str) -> str:
    """Returns a page with its two tables made again."""
    for place in (SETTINGS, RESULTS):
        match = place.search(text)
        if match is None:
            raise ValueError(f"{agent}.md has no line {place.pattern!r}")
        if place is SETTINGS:
            table = settings_table(agent, match[1].split(", "))
        else:
            table = results_table(agent)
        _, end, rest = text[match.end() :].partition(END)
        if not end:
            raise ValueError(f"{agent}.md has no {END} after {match[0]}")
        text = text[: match.end()] + "\n\n" + table + "\n\n" + END + rest
    return text


def main() -> None:
    """Writes all pages."""
    for agent in presets.AGENTS:
        path = PAGES / f"{agent}.md"
        path.write_text(updated(agent, path.read_text("utf-8")), "utf-8")


if __name__ == "__main__":
    main()
