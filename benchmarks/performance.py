"""Writes docs/performance.md: what things cost and how to choose sizes, with the measured tables.

The text is that of `performance_template.txt`; the tables are those of the benchmarks' own pages.

  python benchmarks/performance.py
"""

import re
from pathlib import Path

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "performance.md"
TEMPLATE = HERE / "performance_template.txt"


def table(name: str) -> str:
    """Returns the first table of a benchmark's page, with its command and a link to it."""
    text = (HERE / f"{name}.md").read_text("utf-8")
    found = re.search(r"(?:^\|.*\n)+", text, flags=re.MULTILINE)
    command = re.search(r"`((?:taskset -c 1 )?python benchmarks/[^`]*)`", text)
    if found is None or command is None:
        raise SystemExit(f"benchmarks/{name}.md has no table, or no command that made it")
    return f"{found[0]}\nBy `{command[1]}`: [benchmarks/{name}.md](../benchmarks/{name}.md)."


def page() -> str:
    """Returns the page."""
    text = TEMPLATE.read_text("utf-8")
    return re.sub(r"^\{([a-z_]+)\}$", lambda found: table(found[1]), text, flags=re.MULTILINE)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    print(f"wrote {PAGE}")
