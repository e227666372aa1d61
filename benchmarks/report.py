"""What the pages of the benchmarks have in common: text, command, machine, table."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path


def load() -> str:
    """Returns what the machine has run in the last minute; to be asked before measuring."""
    return f"load average {os.getloadavg()[0]:.1f} before"


def machine() -> str:
    """Returns the cores of this machine, and their model."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{os.cpu_count()} cores ({models[0] if models else 'unknown model'})"


def command() -> str:
    """Returns the command of this process."""
    return f"python benchmarks/{Path(sys.argv[0]).name} {shlex.join(sys.argv[1:])}".rstrip()


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of a Markdown table."""
    lines = [f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
    return lines + [f"| {' | '.join(row)} |" for row in rows]


def write(
    out: str | Path | None, title: str, text: str | None, measured: str, lines: Sequence[str]
) -> None:
    """Prints the lines, and writes the page if there is a file for it.

    Args:
      out: a Markdown file; None or empty: there is none.
      title: the page's heading.
      text: a script's docstring; its second paragraph says what is measured.
      measured: what the figures are, such as "seconds, medians", and `load()`.
      lines: the table, and what follows it.
    """
    print("\n".join(lines), flush=True)
    if out:
        about = (text or "").split("\n\n")[1].strip()
        Path(out).write_text(
            f"# {title}\n\n{about}\n\n`{command()}`, on {machine()}; {measured}:\n\n"
            + "\n".join(lines)
            + "\n",
            "utf-8",
        )
