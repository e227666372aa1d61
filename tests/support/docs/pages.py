"""The code blocks and commands of the pages.

A page is Markdown whose code is fenced and has a language. Comments, which a reader does not see,
say what else a test needs:

    <!-- before: CODE -->        Python that runs before the next block
    <!-- prints: PATTERN -->     a regular expression that a line of the page's output matches
    <!-- run whole -->           the commands of the next block are run, not only checked
    <!-- not run: REASON -->     the next block is neither
"""

import re
import shlex
import textwrap
from collections.abc import Iterator
from typing import NamedTuple

from tests.support.commands import ROOT

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/README.md")
    for path in ROOT.glob(pattern)
    if path.name not in ("CHANGELOG.md", "faults.md")
)
LANGUAGES = {"python", "sh", "text", "yaml"}

_PART = re.compile(
    r"^<!-- (?P<mark>before:|prints:|not run:|run whole)(?P<note>.*?) ?-->"
    r"|^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_SPAN = re.compile(r"`((?:distrl [a-z]|make [a-z]|python (?:benchmarks|examples)/)[^`]*)`")


class Block(NamedTuple):
    """A block of code, with what its comments say."""

    page: str
    line: int
    language: str
    text: str
    before: str = ""
    not_run: str = ""
    run_whole: bool = False

    @property
    def place(self) -> str:
        """Where it is, for messages."""
        return f"{self.page}:{self.line}"


class Page(NamedTuple):
    """A page's blocks, Python that runs after the last, and patterns of its output."""

    blocks: list[Block]
    after: str
    prints: list[str]


def read(page: str) -> Page:
    """Returns what a page has. AssertionError: a comment that stands before no block."""
    text = (ROOT / page).read_text("utf-8")
    blocks, prints, before, marks = [], list[str](), "", dict[str, str]()
    for part in _PART.finditer(text):
        mark, note = part["mark"], (part["note"] or "").strip("\n")
        if mark == "before:":
            before += note + "\n"
        elif mark == "prints:":
            prints.append(note.strip())
        elif mark:
            marks[mark] = note.strip()
        else:
            block = Block(
                page,
                text.count("\n", 0, part.start()) + 1,
                part["language"],
                textwrap.dedent(part["body"]),
                not_run=marks.get("not run:", ""),
                run_whole="run whole" in marks,
            )
            if block.language == "python":
                block, before = block._replace(before=before), ""
            blocks.append(block)
            marks = {}
    assert not marks, f"{page}: no block after {marks}"
    return Page(blocks, before, prints)


def script(page: str) -> str:
    """Returns a page's Python as one script: its blocks in order, with what is hidden between."""
    blocks, after, _ = read(page)
    parts = [b.before + b.text for b in blocks if b.language == "python" and not b.not_run]
    return "\n".join([*parts, after])


def commands_of(block: str) -> list[str]:
    """Returns the command lines of a block of shell, without comments and continuations."""
    lines = block.replace("\\\n", " ").splitlines()
    return [line for line in lines if line.strip() and not line.lstrip().startswith("#")]


def commands() -> Iterator[tuple[str, list[str]]]:
    """Yields where a command is, and its words: those of blocks, and those within the text."""
    for page in PAGES:
        for block in read(page).blocks:
            if block.language == "sh" and not block.not_run:
                for line in commands_of(block.text):
                    yield block.place, shlex.split(line, comments=True)
        text = (ROOT / page).read_text("utf-8")
        plain = _PART.sub(lambda part: "\n" * part[0].count("\n"), text)
        for span in _SPAN.finditer(plain):
            line = plain.count("\n", 0, span.start()) + 1
            yield f"{page}:{line}", shlex.split(span[1].replace("\n", " "))
        yield from _rows(page, text)


def _rows(page: str, text: str) -> Iterator[tuple[str, list[str]]]:
    """Yields the rows of tables whose last column has the arguments of `distrl train`."""
    for number, line in enumerate(text.splitlines(), 1):
        if found := re.search(r"\| `(--(?:env|experiment)=[^`]*)` \|$", line):
            yield f"{page}:{number}", ["distrl", "train", *shlex.split(found[1])]
