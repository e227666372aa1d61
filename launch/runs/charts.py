"""Charts as SVG, in the colours of the page that they are in."""

import html
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_WIDTH, _HEIGHT = 520, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 10, 34
_POINTS = 300  # points of a line, at most
_DIGITS = 15  # digits of a float
_COLORS = 8  # colours of the page, --c0 to --c7

Numbers = npt.NDArray[np.float64]


class ChartLine(NamedTuple):
    """A line of a chart.

    Attributes:
      label: its name.
      x, y: float `[n]`; what is not finite is left out.
      low, high: float `[n]`, of a band around it; None: there is none.
    """

    label: str
    x: Numbers
    y: Numbers
    low: Numbers | None = None
    high: Numbers | None = None


def chart(title: str, lines: Sequence[ChartLine], x_label: str) -> str:
    """Returns lines as a figure; empty if none has two points."""
    lines = [each for each in map(_reduced, lines) if len(each.x) > 1]
    if not lines:
        return ""
    edges = [part for line in lines for part in (line.y, line.low, line.high) if part is not None]
    frame = _Frame(
        _range(np.concatenate([line.x for line in lines]), margin=0.0),
        _range(np.concatenate(edges), margin=0.05),
    )
    parts = [frame.axes(x_label)]
    for k, line in enumerate(lines):
        color = f"var(--c{k % _COLORS})"
        if line.low is not None and line.high is not None:
            points = frame.points(
                np.concatenate([line.x, line.x[::-1]]), np.concatenate([line.high, line.low[::-1]])
            )
            parts.append(f'<polygon points="{points}" fill="{color}" opacity="0.18"/>')
        points = frame.points(line.x, line.y)
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.6"/>'
        )
    return _figure(title, parts, [line.label for line in lines] if len(lines) > 1 else [])


def _reduced(line: ChartLine) -> ChartLine:
    """Returns a line without what is not finite, and with so many points at most."""
    known = np.isfinite(line.x) & np.isfinite(line.y)
    for part in (line.low, line.high):
        if part is not None:
            known &= np.isfinite(part)
    rows = np.flatnonzero(known)
    if len(rows) > _POINTS:
        rows = rows[np.linspace(0, len(rows) - 1, _POINTS).astype(int)]
    low, high = (None if part is None else part[rows] for part in (line.low, line.high))
    return ChartLine(line.label, line.x[rows], line.y[rows], low, high)


def _range(values: Numbers, margin: float) -> tuple[float, float]:
    low, high = float(values.min()), float(values.max())
    if low == high:
        margin, extra = 0.0, abs(low) * 0.1 or 1.0
        low, high = low - extra, high + extra
    return low - margin * (high - low), high + margin * (high - low)


class _Frame:
    """The place of values in a chart."""

    def __init__(self, x: tuple[float, float], y: tuple[float, float]):
        self._x, self._y = x, y

    def points(self, x: Numbers, y: Numbers) -> str:
        """Returns the points of a line."""
        return " ".join(f"{self._across(a):.1f},{self._down(b):.1f}" for a, b in zip(x, y))

    def axes(self, x_label: str) -> str:
        """Returns the axes with their numbers."""
        bottom, right = _HEIGHT - _BOTTOM, _WIDTH - _RIGHT
        parts = []
        for value, text in _labelled(_ticks(*self._y)):
            y = self._down(value)
            parts.append(
                f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{right}" y2="{y:.1f}"/>'
                f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{text}</text>'
            )
        for value, text in _labelled(_ticks(*self._x)):
            x = self._across(value)
            parts.append(
                f'<line class="grid" x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{bottom}"/>'
                f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{text}</text>'
            )
        label = html.escape(x_label)
        middle = (_LEFT + right) / 2
        parts.append(f'<text x="{middle}" y="{_HEIGHT - 4}" text-anchor="middle">{label}</text>')
        return "".join(parts)

    def _across(self, value: float) -> float:
        low, high = self._x
        return _LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def _down(self, value: float) -> float:
        low, high = self._y
        return _HEIGHT - _BOTTOM - (value - low) / (high - low) * (_HEIGHT - _TOP - _BOTTOM)


def _ticks(low: float, high: float) -> list[float]:
    """Returns some four round numbers between two."""
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough)
    first = math.ceil(low / step)
    return [k * step for k in range(first, math.floor(high / step) + 1)]


def _labelled(ticks: Sequence[float]) -> list[tuple[float, str]]:
    """Returns ticks with their texts, which have enough digits to differ from each other."""
    digits = 4
    if ticks and ticks[0] < ticks[-1]:  # they are equal where floats are no closer
        step = (ticks[-1] - ticks[0]) / (len(ticks) - 1)
        largest = max(abs(ticks[0]), abs(ticks[-1]))
        digits = min(_DIGITS, max(digits, math.floor(math.log10(largest / step)) + 2))
    return [(value, short(value, digits)) for value in ticks]


def short(value: float, digits: int = 4) -> str:
    """Returns a number in a few characters: 12.5k, 3M, 0.001. Args: digits: digits to show."""
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= size:
            return f"{value / size:.{digits}g}{unit}"
    return f"{value:.{digits}g}" if value else "0"


def _figure(title: str, parts: Sequence[str], labels: Sequence[str]) -> str:
    name = html.escape(title)
    keys = "".join(
        f'<span class="key"><i style="background:var(--c{k % _COLORS})"></i>{html.escape(each)}'
        "</span>"
        for k, each in enumerate(labels)
    )
    legend = f'<div class="keys">{keys}</div>' if labels else ""
    return (
        f"<figure><figcaption>{name}</figcaption>"
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{name}">'
        f"{''.join(parts)}</svg>{legend}</figure>"
    )
