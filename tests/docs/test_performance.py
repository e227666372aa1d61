"""The page about performance has the tables that benchmarks have written."""

import sys

from tests.support.commands import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import performance


def test_the_page_is_that_of_the_tables():
    assert performance.PAGE.read_text("utf-8") == performance.page()
