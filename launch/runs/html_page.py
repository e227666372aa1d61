"""One HTML page that needs nothing else: no network, no script."""

import html
from collections.abc import Iterable, Sequence

_STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --ink: #1c2024; --soft: #60646c; --line: #d9dbe0; --tint: #f4f5f7;
  --good: #18794e; --bad: #c62a2f;
  --c0: #1f6feb; --c1: #d9730d; --c2: #2a9d5c; --c3: #b4308c; --c4: #7a5af5; --c5: #9a7b00;
  --c6: #0c8599; --c7: #c62a2f; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #15181c; --ink: #e6e8eb; --soft: #9ba1a8; --line: #33383f; --tint: #1e2227;
  --good: #4cc38a; --bad: #ff7b72;
  --c0: #6cb0ff; --c1: #f0a35e; --c2: #63d297; --c3: #e58acb; --c4: #a99bff; --c5: #d9c05a;
  --c6: #5cc8d7; --c7: #ff8f88; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 74rem; background: var(--paper);
  color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
h1 { font-size: 1.5rem; margin: 0 0 .25rem; overflow-wrap: anywhere; }
h2 { font-size: 1.1rem; margin: 2.25rem 0 .75rem; border-bottom: 1px solid var(--line); }
p { margin: .25rem 0; } .soft { color: var(--soft); }
.good { color: var(--good); } .bad { color: var(--bad); }
.figures { display: flex; flex-wrap: wrap; gap: .75rem; margin: 1rem 0 0; padding: 0; }
.figures div { background: var(--tint); border-radius: .5rem; padding: .5rem .9rem; }
.figures dt { color: var(--soft); font-size: .8rem; } .figures dd { margin: 0; font-size: 1.2rem; }
.charts { display: grid; grid-template-columns: repeat(auto-fill, minmax(22rem, 1fr)); gap: 1rem; }
figure { margin: 0; } figcaption { font-weight: 600; font-size: .9rem; }
svg { width: 100%; height: auto; display: block; }
svg text { fill: var(--soft); font-size: 11px; } svg .grid { stroke: var(--line); }
.keys { display: flex; flex-wrap: wrap; gap: .1rem .9rem; font-size: .8rem; color: var(--soft); }
.key i { display: inline-block; width: .7rem; height: .7rem; border-radius: 2px;
  margin-right: .35rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .2rem 1.1rem .2rem 0; border-bottom: 1px solid var(--line);
  vertical-align: top; overflow-wrap: anywhere; } th { color: var(--soft); font-weight: 500; }
code, pre { font: .85rem/1.45 ui-monospace, SFMono-Regular, Menlo, monospace; }
pre { background: var(--tint); padding: .75rem; border-radius: .5rem; overflow-x: auto;
  white-space: pre-wrap; overflow-wrap: anywhere; margin: .5rem 0; }
video, img { max-width: 100%; max-height: 30rem; border-radius: .5rem; }
summary { cursor: pointer; margin: .6rem 0; }
"""


def page(title: str, parts: Iterable[str]) -> str:
    """Returns the page. Args: title: as text. parts: HTML, in order; empty ones are left out."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, parts))
        + "\n</body>\n</html>\n"
    )


def section(title: str, *parts: str) -> str:
    """Returns a section with a heading; empty if its parts are."""
    body = "\n".join(filter(None, parts))
    return f"<section>\n<h2>{html.escape(title)}</h2>\n{body}\n</section>" if body else ""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Returns a table of texts; empty without rows."""
    if not rows:
        return ""
    lines = [
        "<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
    ]
    names = "".join(f'<th scope="col">{html.escape(name)}</th>' for name in head)
    return (
        f'<div class="wide"><table>\n<thead><tr>{names}</tr></thead>\n<tbody>\n'
        + "\n".join(lines)
        + "\n</tbody>\n</table></div>"
    )


def folded(title: str, body: str) -> str:
    """Returns what is shown when its title is clicked; empty if it is."""
    if not body:
        return ""
    return f"<details><summary>{html.escape(title)}</summary>\n{body}\n</details>"


def figures(values: Sequence[tuple[str, str]]) -> str:
    """Returns names with large values."""
    items = "".join(
        f"<div><dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd></div>"
        for name, value in values
    )
    return f'<dl class="figures">{items}</dl>' if values else ""


def text(words: str, kind: str = "") -> str:
    """Returns a paragraph. Args: kind: "soft", "good" or "bad"."""
    mark = f' class="{kind}"' if kind else ""
    return f"<p{mark}>{html.escape(words)}</p>"


def code(words: str) -> str:
    """Returns text as it is, such as a command or a traceback."""
    return f"<pre>{html.escape(words)}</pre>"
