"""Writes docs/performance.md: what things cost and how to choose sizes, with the measured tables.

The text is that of `performance_template.txt`; the tables are those of the benchmarks' own pages. A
line of the template `{pools: step | sb3 as SB3, where step is 1 ms}` stands for the first table of
benchmarks/pools.md, with these columns and rows only, and the commands that make it.

  python benchmarks/performance.py
"""

import re
from pathlib import Path

import report

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
TEMPLATE = HERE / "performance_template.txt"

_PLACE = re.compile(
    r"^\{(?P<name>[a-z0-9_]+): (?P<columns>.+?)(?:, where (?P<where>.+?) is (?P<value>.+?))?\}$",
    flags=re.MULTILINE,
)
_COMMAND = re.compile(r"`((?:taskset -c 1 )?python benchmarks/[^`]*)`")


def table(name: str, columns: str, where: str | None, value: str | None) -> str:
    """Returns the first table of a benchmark's page, with its commands and a link to it.

    Args:
      name: the page's, without `.md`.
      columns: those to show, separated by `|`; "sb3 as SB3" gives one another heading.
      where: a column; only rows with `value` in it are shown. None: all rows are.
      value: a cell.
    """
    text = (HERE / f"{name}.md").read_text("utf-8")
    commands = [" ".join(command.split()) for command in _COMMAND.findall(text)]
    found = re.search(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    if found is None or not commands:
        raise SystemExit(f"benchmarks/{name}.md has no table, or no command that makes it")
    lines = found[0].splitlines()
    header, _, *rows = ([cell.strip() for cell in line[1:-1].split("|")] for line in lines)

    def index(column: str) -> int:
        if column not in header:
            raise SystemExit(
                f"benchmarks/{name}.md has no column {column!r}; it has {', '.join(header)}"
            )
        return header.index(column)

    chosen = [x.partition(" as ") for x in columns.split("|")]
    indices = [index(column.strip()) for column, _, _ in chosen]
    names = [(heading or column).strip() for column, _, heading in chosen]
    if where is not None:
        rows = [row for row in rows if row[index(where)] == value]
    if not rows:
        raise SystemExit(f"benchmarks/{name}.md has no row where {where} is {value}")
    shown = report.table(names, [[row[i] for i in indices] for row in rows])
    made_by = " and ".join(f"`{command}`" for command in commands)
    return "\n".join(
        [*shown, "", f"By {made_by}: [benchmarks/{name}.md](../benchmarks/{name}.md)."]
    )


def page() -> str:
    """Returns the page."""
    return _PLACE.sub(lambda place: table(**place.groupdict()), TEMPLATE.read_text("utf-8"))


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(f"wrote {PAGE}")
