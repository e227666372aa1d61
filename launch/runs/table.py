"""Tables that commands print."""

from collections.abc import Sequence


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows of cells, in columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
