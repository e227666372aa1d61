"""Every Python block in the documentation runs: a page's blocks in order, as one script."""

import ast
import re
import sys

import pytest

from tests.support.commands import ROOT
from tests.support.docs import pages, reader

WITH_PYTHON = [page for page in pages.PAGES if "\n```python\n" in (ROOT / page).read_text("utf-8")]


@pytest.mark.parametrize("page", pages.PAGES)
def test_blocks_have_a_language_and_are_fenced(page):
    blocks = pages.read(page).blocks
    assert {block.language for block in blocks} <= pages.LANGUAGES
    fenced = re.sub(r"^( *)```.*?^\1```$|^<!--.*?-->", "", (ROOT / page).read_text("utf-8"),
                    flags=re.MULTILINE | re.DOTALL)  # fmt: skip
    in_list = False
    for line, before in zip(fenced.splitlines()[1:], fenced.splitlines(), strict=False):
        if re.match(r" *([-*]|\d+\.) ", line):
            in_list = True
        elif line[:1].strip():
            in_list = False
        assert in_list or before.strip() or not line.startswith("    "), f"{page}: fence {line!r}"
    if page in WITH_PYTHON:
        ast.parse(pages.script(page))


@pytest.mark.full
@pytest.mark.timeout(230)
@pytest.mark.parametrize("page", WITH_PYTHON)
def test_the_blocks_of_a_page_run(page_folder, page):
    for block in pages.read(page).blocks:
        if block.language == "python" and block.not_run:
            print(f"not run: {block.place}: {block.not_run}")
    path = page_folder / "page.py"
    path.write_text(pages.script(page))
    stdout = reader.run([sys.executable, str(path)], page_folder)
    for pattern in pages.read(page).prints:
        assert re.search(pattern, stdout, re.MULTILINE), f"{pattern}\n{stdout}"
