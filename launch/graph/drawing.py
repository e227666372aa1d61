"""A laid out diagram as SVG, as an image, as a `dot` file, or as text."""

import itertools
import textwrap
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from distrl.errors import ConfigError
from distrl.launch.graph.layout import CHAR, LINE, DiagramLayout, PlacedFlow, lay_out
from distrl.programs.diagram import Diagram
from distrl.runtime.working_folder import absolute

COLOURS = {
    "trajectories": "#1f6fb4",
    "batches of trajectories": "#1f6fb4",
    "parameters": "#2e8b57",
    "observations": "#c9631a",
    "actions": "#c9631a",
    "gradients": "#7a3fa8",
    "parameters, batch shares": "#7a3fa8",
}
_OTHER, _REPORTS = "#444444", "#9a9a9a"
_INK, _FILL, _EDGE, _FRAME = "#222222", "#f4f6f8", "#5b6b7b", "#b7c2cc"
_FONT = "DejaVu Sans, Helvetica, Arial, sans-serif"
_ARROW = 8.0
_FRAME_ROOM = 16.0
FORMATS = (".svg", ".png", ".pdf", ".dot", ".txt")


def draw(diagram: Diagram, out: Path) -> None:
    """Writes a diagram in the format that the file's name says.

    Raises:
      ConfigError: there is no such format, or the file cannot be written.
    """
    if out.suffix not in FORMATS:
        raise ConfigError(f"graph: --out={out}: name a {', '.join(FORMATS)} file")
    try:
        if out.suffix in (".png", ".pdf"):
            _draw_image(lay_out(diagram), out)
        else:
            writer = {".svg": lambda: svg(lay_out(diagram)), ".dot": lambda: dot(diagram)}
            absolute(out).write_text(writer.get(out.suffix, lambda: text(diagram))(), "utf-8")
    except OSError as error:
        raise ConfigError(f"graph: --out={out}: {error.strerror}") from error


def text(diagram: Diagram) -> str:
    """Returns the diagram as lines of text."""
    lines = [diagram.title, ""]
    width = max(len(box.title) for box in diagram.boxes)
    for box in diagram.boxes:
        lines.append(f"{box.title:<{width}}  {'; '.join(box.lines)}".rstrip())
    lines.append("")
    width = max(len(f"{flow.source} -> {flow.target}") for flow in diagram.flows)
    for flow in diagram.flows:
        lines.append(f"{f'{flow.source} -> {flow.target}':<{width}}  {flow.what}".rstrip())
    return "\n".join(lines) + "\n"


def dot(diagram: Diagram) -> str:
    """Returns the diagram in graphviz's language."""
    lines = [f'label="{_quoted(diagram.title)}"; labelloc=t; node [shape=box, style=rounded];']
    for box in diagram.boxes:
        label = "\\n".join(map(_quoted, (box.title, *box.lines)))
        lines.append(f'{box.group} [label="{label}"];')
    for flow in diagram.flows:
        colour = _colour(flow.what)
        back = "" if flow.is_called else ", constraint=false"
        lines.append(
            f'{flow.source} -> {flow.target} [label="{_quoted(flow.what)}", color="{colour}", '
            f'fontcolor="{colour}"{back}];'
        )
    return "digraph program {\n" + textwrap.indent("\n".join(lines), "  ") + "\n}\n"


def _quoted(words: str) -> str:
    return words.replace("\\", "\\\\").replace('"', '\\"')


def _colour(what: str) -> str:
    return _REPORTS if what == "reports" else COLOURS.get(what, _OTHER)


def svg(layout: DiagramLayout) -> str:
    """Returns the picture as SVG."""
    parts = [f'<rect width="{layout.width:.0f}" height="{layout.height:.0f}" fill="white"/>']
    parts.append(_svg_text(layout.diagram.title, layout.width / 2, 30, 17, _INK, bold=True))
    if layout.diagram.in_one_process:
        x, y, width, height = _frame(layout)
        parts.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="12" '
            f'fill="none" stroke="{_FRAME}" stroke-dasharray="6 4"/>'
        )
    for flow in layout.flows:
        colour = _colour(flow.flow.what)
        path = f"M{flow.points[0][0]:.1f},{flow.points[0][1]:.1f}"
        for (x0, y0), (x1, y1) in itertools.pairwise(flow.points):
            middle = (y0 + y1) / 2
            path += f" C{x0:.1f},{middle:.1f} {x1:.1f},{middle:.1f} {x1:.1f},{y1:.1f}"
        parts.append(f'<path d="{path}" fill="none" stroke="{colour}" stroke-width="1.6"/>')
        points = " ".join(f"{x:.1f},{y:.1f}" for x, y in _arrow(flow))
        parts.append(f'<polygon points="{points}" fill="{colour}"/>')
    for box in layout.boxes:
        parts.append(
            f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
            f'height="{box.height:.1f}" rx="7" fill="{_FILL}" stroke="{_EDGE}" stroke-width="1.2"/>'
        )
        for k, line in enumerate((box.box.title, *box.box.lines)):
            y = box.y + 22 + k * LINE
            size = 11.5 if k else 14
            parts.append(_svg_text(line, box.middle, y, size, _INK, bold=not k))
    for flow in layout.flows:
        if flow.flow.what:
            (x, y), half = flow.label, len(flow.flow.what) * CHAR * 0.46
            parts.append(
                f'<rect x="{x - half:.1f}" y="{y - 8:.1f}" width="{2 * half:.1f}" height="16" '
                'fill="white" fill-opacity="0.9"/>'
            )
            parts.append(_svg_text(flow.flow.what, x, y + 4, 11.5, _colour(flow.flow.what)))
    extent = f'width="{layout.width:.0f}" height="{layout.height:.0f}"'
    view = f'viewBox="0 0 {layout.width:.0f} {layout.height:.0f}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {extent} {view} font-family="{_FONT}">'
    return "\n".join([head, *parts, "</svg>"]) + "\n"


def _svg_text(
    words: str, x: float, y: float, size: float, colour: str, *, bold: bool = False
) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" fill="{colour}" '
        f'text-anchor="middle"{weight}>{escape(words)}</text>'
    )


def _arrow(flow: PlacedFlow) -> list[tuple[float, float]]:
    """Returns the corners of the arrow's head; the line ends vertically."""
    (_, before), (x, y) = flow.points[-2:]
    back = y - _ARROW if before < y else y + _ARROW
    return [(x, y), (x - _ARROW / 2, back), (x + _ARROW / 2, back)]


def _frame(layout: DiagramLayout) -> tuple[float, float, float, float]:
    """Returns corner and size of the frame around all boxes and lanes."""
    top = min(box.y for box in layout.boxes) - _FRAME_ROOM
    bottom = max(box.y + box.height for box in layout.boxes) + _FRAME_ROOM
    return _FRAME_ROOM, top, layout.width - 2 * _FRAME_ROOM, bottom - top


def _draw_image(layout: DiagramLayout, out: Path) -> None:
    try:
        import matplotlib
    except ImportError as error:
        raise ConfigError(
            f"graph: --out={out} needs matplotlib (pip install matplotlib); .svg, .dot and .txt "
            "need nothing"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import patches, path, pyplot

    figure = pyplot.figure(figsize=(layout.width / 100, layout.height / 100))
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    axes.set_xlim(0, layout.width)
    axes.set_ylim(layout.height, 0)
    axes.axis("off")
    middle: dict[str, Any] = {"ha": "center", "va": "baseline", "color": _INK}
    scale = 0.72  # points of a unit
    axes.text(layout.width / 2, 30, layout.diagram.title, size=17 * scale, weight="bold", **middle)
    if layout.diagram.in_one_process:
        x, y, width, height = _frame(layout)
        axes.add_patch(
            patches.FancyBboxPatch(
                (x, y), width, height, "round,pad=0,rounding_size=12",
                fill=False, ec=_FRAME, ls="--",
            )
        )  # fmt: skip
    for flow in layout.flows:
        colour = _colour(flow.flow.what)
        points, codes = [flow.points[0]], [path.Path.MOVETO]
        for (x0, y0), (x1, y1) in itertools.pairwise(flow.points):
            points += [(x0, (y0 + y1) / 2), (x1, (y0 + y1) / 2), (x1, y1)]
            codes += [path.Path.CURVE4] * 3
        curve = path.Path(points, codes)
        axes.add_patch(patches.PathPatch(curve, fill=False, ec=colour, lw=1.6 * scale))
        axes.add_patch(patches.Polygon(_arrow(flow), fc=colour, ec="none"))
    for box in layout.boxes:
        axes.add_patch(
            patches.FancyBboxPatch(
                (box.x, box.y), box.width, box.height, "round,pad=0,rounding_size=7",
                fc=_FILL, ec=_EDGE, lw=1.2 * scale,
            )
        )  # fmt: skip
        for k, line in enumerate((box.box.title, *box.box.lines)):
            size, weight = (11.5, "normal") if k else (14, "bold")
            y = box.y + 22 + k * LINE
            axes.text(box.middle, y, line, size=size * scale, weight=weight, **middle)
    for flow in layout.flows:
        axes.text(
            *flow.label, flow.flow.what, size=11.5 * scale, ha="center", va="center",
            color=_colour(flow.flow.what),
            bbox={"fc": "white", "ec": "none", "alpha": 0.9, "pad": 1.0},
        )  # fmt: skip
    figure.savefig(absolute(out), dpi=150)
    pyplot.close(figure)
