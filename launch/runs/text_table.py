"""Tables that commands print."""

from collections.abc import Sequence

_MOST = 1e15  # beyond it a float has no digits to show


def print_table(rows: Sequence[Sequence[str]]) -> None:
    """Prints rows of cells, in columns as wide as their widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def number(value: float, digits: int = 6) -> str:
    """Returns a number with so many digits, or with all before its point where these are more."""
    if 10 ** (digits - 1) <= abs(value) < _MOST:
        return f"{value:,.0f}"
    return f"{value:,.{digits}g}"
