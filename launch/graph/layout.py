"""Where the boxes and lines of a diagram lie: in layers, callers above those that they call."""

import itertools
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from distrl.programs.diagram import Box, Diagram, Flow

CHAR = 7.0  # width of a letter, in the unit of the picture
LINE = 18.0  # height of a line of text
_PAD = 14.0
_GAP = 56.0  # between boxes of a layer
_LAYER_GAP = 96.0
_LANE = 34.0  # width that a line takes where it passes a layer
_MARGIN = 40.0
_TITLE = 34.0
_APART = 26.0  # between lines that end at one box
_SWEEPS = 8

Point = tuple[float, float]


class PlacedBox(NamedTuple):
    """A box with its left upper corner and its size."""

    box: Box
    x: float
    y: float
    width: float
    height: float

    @property
    def middle(self) -> float:
        """x of its middle."""
        return self.x + self.width / 2


class PlacedFlow(NamedTuple):
    """A flow with the points that its line passes, vertically at each, and its label's middle."""

    flow: Flow
    points: tuple[Point, ...]
    label: Point


class DiagramLayout(NamedTuple):
    """A diagram with coordinates, y downwards."""

    diagram: Diagram
    boxes: tuple[PlacedBox, ...]
    flows: tuple[PlacedFlow, ...]
    width: float
    height: float


class _Slot:
    """A box in its layer, or a lane through which a line passes the layer."""

    def __init__(self, key: object, layer: int, width: float, height: float):
        self.key, self.layer, self.width, self.height = key, layer, width, height
        self.x = self.y = 0.0
        self.neighbours: list[_Slot] = []


def lay_out(diagram: Diagram) -> DiagramLayout:
    """Returns the diagram with coordinates."""
    layer_of = layers([box.group for box in diagram.boxes], diagram.links)
    slots: dict[object, _Slot] = {}
    for box in diagram.boxes:
        texts = (f"{box.title}  ", *box.lines)
        width = max(len(text) for text in texts) * CHAR + 2 * _PAD
        height = LINE * (1 + len(box.lines)) + 1.2 * _PAD
        slots[box.group] = _Slot(box.group, layer_of[box.group], width, height)
    routes = {link: _route(link, slots) for link in diagram.links}
    rows = _ordered(list(slots.values()))
    _place(rows)
    boxes = tuple(
        PlacedBox(box, s.x - s.width / 2, s.y, s.width, s.height)
        for box in diagram.boxes
        for s in (slots[box.group],)
    )
    width = max(s.x + s.width / 2 for s in slots.values()) + _MARGIN
    height = max(box.y + box.height for box in boxes) + _MARGIN
    return DiagramLayout(diagram, boxes, _lines(diagram, routes, boxes), width, height)


def layers(groups: Sequence[str], links: Sequence[tuple[str, str]]) -> dict[str, int]:
    """Returns the layer of each group, from 0: below all that call it, as far up as may be.

    Calls that close a circle do not count.
    """
    layer = dict.fromkeys(groups, 0)
    for _ in groups:  # a way has no more links than there are groups
        for caller, called in links:
            layer[called] = max(layer[called], min(layer[caller] + 1, len(groups) - 1))
    # Those that call only few, such as an evaluator, come down to right above these.
    for caller in sorted(groups, key=lambda group: -layer[group]):
        below = [layer[called] for source, called in links if source == caller]
        layer[caller] = max(layer[caller], min(below, default=layer[caller] + 1) - 1)
    used = sorted(set(layer.values()))
    return {group: used.index(each) for group, each in layer.items()}


def _route(link: tuple[str, str], slots: dict[object, _Slot]) -> list[_Slot]:
    """Returns the slots that a link passes, from caller to called, with new lanes between."""
    start, end = slots[link[0]], slots[link[1]]
    lanes = [_Slot((link, k), k, _LANE, 0.0) for k in range(start.layer + 1, end.layer)]
    slots.update((lane.key, lane) for lane in lanes)
    route = [start, *lanes, end]
    for upper, lower in itertools.pairwise(route):
        upper.neighbours.append(lower)
        lower.neighbours.append(upper)
    return route


def _ordered(slots: list[_Slot]) -> list[list[_Slot]]:
    """Returns the layers, each ordered such that few lines cross: by neighbours' mean position."""
    count = 1 + max(slot.layer for slot in slots)
    rows = [[slot for slot in slots if slot.layer == layer] for layer in range(count)]
    best, least = [list(row) for row in rows], _crossings(rows)
    for sweep in range(_SWEEPS):
        order = range(1, count) if sweep % 2 == 0 else range(count - 2, -1, -1)
        for layer in order:
            beside = layer - 1 if sweep % 2 == 0 else layer + 1
            position = {id(slot): k for k, slot in enumerate(rows[beside])}
            rank = {id(slot): k for k, slot in enumerate(rows[layer])}

            def mean(
                slot: _Slot, position: Mapping[int, int] = position, rank: Mapping[int, int] = rank
            ) -> float:
                known = [position[id(n)] for n in slot.neighbours if id(n) in position]
                return sum(known) / len(known) if known else float(rank[id(slot)])

            rows[layer].sort(key=mean)
        crossings = _crossings(rows)
        if crossings < least:
            best, least = [list(row) for row in rows], crossings
    return best


def _crossings(rows: Sequence[Sequence[_Slot]]) -> int:
    total = 0
    for upper, lower in itertools.pairwise(rows):
        position = {id(slot): k for k, slot in enumerate(lower)}
        ends = [[position[id(n)] for n in slot.neighbours if id(n) in position] for slot in upper]
        for left, right in itertools.combinations(ends, 2):
            total += sum(a > b for a in left for b in right)
    return total


def _place(rows: list[list[_Slot]]) -> None:
    """Gives each slot its coordinates."""
    y = _MARGIN + _TITLE
    for row in rows:
        x = 0.0
        for slot in row:
            slot.x, slot.y = x + slot.width / 2, y
            x += slot.width + _GAP
        height = max(slot.height for slot in row)
        for slot in row:
            slot.y += (height - slot.height) / 2
        y += height + _LAYER_GAP
    for sweep in range(_SWEEPS):
        for row in rows if sweep % 2 else reversed(rows):
            wanted = [
                sum(n.x for n in s.neighbours) / len(s.neighbours) if s.neighbours else s.x
                for s in row
            ]
            _pull(row, wanted)
    left = min(slot.x - slot.width / 2 for row in rows for slot in row)
    for row in rows:
        for slot in row:
            slot.x += _MARGIN - left


def _pull(row: list[_Slot], wanted: list[float]) -> None:
    """Moves a layer's slots towards where they should be, in their order and without overlaps."""
    from_left, from_right = [0.0] * len(row), [0.0] * len(row)
    end = float("-inf")
    for k, slot in enumerate(row):
        from_left[k] = max(wanted[k], end + slot.width / 2)
        end = from_left[k] + slot.width / 2 + _GAP
    end = float("inf")
    for k in reversed(range(len(row))):
        from_right[k] = min(wanted[k], end - row[k].width / 2)
        end = from_right[k] - row[k].width / 2 - _GAP
    for slot, left, right in zip(row, from_left, from_right):
        slot.x = (left + right) / 2


def _lines(
    diagram: Diagram,
    routes: Mapping[tuple[str, str], list[_Slot]],
    boxes: Sequence[PlacedBox],
) -> tuple[PlacedFlow, ...]:
    """Returns the flows' lines, which reach a box side by side, and their labels."""
    box_of = {placed.box.group: placed for placed in boxes}
    ports: dict[tuple[str, str], list[tuple[float, Flow]]] = {}
    for flow in diagram.flows:
        route = routes[_link(flow)]
        ports.setdefault((str(route[0].key), "bottom"), []).append((route[1].x, flow))
        ports.setdefault((str(route[-1].key), "top"), []).append((route[-2].x, flow))
    at: dict[tuple[str, Flow], float] = {}
    for (group, _), flows in ports.items():
        flows.sort(key=lambda pair: pair[0])
        width = min(_APART * (len(flows) - 1), 0.8 * box_of[group].width)
        for k, (_, flow) in enumerate(flows):
            offset = (k / (len(flows) - 1) - 0.5) * width if len(flows) > 1 else 0.0
            at[group, flow] = box_of[group].middle + offset
    placed = []
    taken = [(b.x, b.y, b.x + b.width, b.y + b.height) for b in boxes]
    for flow in diagram.flows:
        route, link = routes[_link(flow)], _link(flow)
        twins = [other for other in diagram.flows if _link(other) == link]
        shift = (twins.index(flow) - (len(twins) - 1) / 2) * _APART
        first, last = box_of[link[0]], box_of[link[1]]
        points = [(at[link[0], flow], first.y + first.height)]
        points += [(lane.x + shift, lane.y) for lane in route[1:-1]]
        points.append((at[link[1], flow], last.y))
        label = _free_spot(points, flow.what, taken)
        placed.append(
            PlacedFlow(flow, tuple(points if flow.is_called else reversed(points)), label)
        )
    return tuple(placed)


def _link(flow: Flow) -> tuple[str, str]:
    return (flow.source, flow.target) if flow.is_called else (flow.target, flow.source)


def _free_spot(
    points: Sequence[Point], text: str, taken: list[tuple[float, float, float, float]]
) -> Point:
    """Returns where on a line its label overlaps nothing that is in `taken`, and takes it."""
    half, high = len(text) * CHAR * 0.46 + 3, LINE * 0.5
    spots = [
        on_curve(start, end, t)
        for t in (0.5, 0.35, 0.65, 0.2, 0.8, 0.28, 0.72)
        for start, end in itertools.pairwise(points)
    ]
    best, least = spots[0], float("inf")
    for x, y in spots:
        overlap = sum(
            max(0.0, min(x + half, right) - max(x - half, left))
            * max(0.0, min(y + high, bottom) - max(y - high, top))
            for left, top, right, bottom in taken
        )
        if overlap < least:
            best, least = (x, y), overlap
    if text:
        x, y = best
        taken.append((x - half, y - high, x + half, y + high))
    return best


def on_curve(start: Point, end: Point, t: float) -> Point:
    """Returns the point at `t`, from 0 to 1, of the curve that is vertical at both ends."""
    s = 1 - t
    x = (s**3 + 3 * s**2 * t) * start[0] + (3 * s * t**2 + t**3) * end[0]
    middle = (start[1] + end[1]) / 2
    return x, s**3 * start[1] + 3 * s * t * middle + t**3 * end[1]
