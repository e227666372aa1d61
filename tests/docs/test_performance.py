"""The page about performance has the tables that benchmarks have written."""

import sys

import pytest

from tests.support.commands import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import performance

RATES = """# Rates

`python benchmarks/rates.py --cases=1` and `python benchmarks/rates.py
--cases=2`, on two cores:

| case | topology | steps/s, median | all rounds |
|---|---|---|---|
| 1 | heavy_env | 20 | 10 20 30 |
| 2 | light_env | 30 | 20 30 40 |
"""


def test_the_page_is_that_of_the_tables():
    page = performance.page()
    assert performance.PAGE.read_text("utf-8") == page
    assert [line for line in page.splitlines() if line.startswith("{")] == []  # all are replaced


def test_a_table_has_the_columns_that_are_named_and_all_commands(tmp_path, monkeypatch):
    (tmp_path / "rates.md").write_text(RATES)
    template = tmp_path / "template.txt"
    template.write_text("Rates:\n\n{rates: case | steps/s, median as rate}\n")
    monkeypatch.setattr(performance, "HERE", tmp_path)
    monkeypatch.setattr(performance, "TEMPLATE", template)
    link = "[benchmarks/rates.md](../benchmarks/rates.md)"
    commands = "`python benchmarks/rates.py --cases=1` and `python benchmarks/rates.py --cases=2`"
    assert performance.page().splitlines() == [
        "Rates:", "", "| case | rate |", "|---|---|", "| 1 | 20 |", "| 2 | 30 |", "",
        f"By {commands}: {link}.",
    ]  # fmt: skip
    template.write_text("{rates: case, where topology is light_env}\n")
    assert performance.page().splitlines()[2:4] == ["| 2 |", ""]
    template.write_text("{rates: steps/s}\n")
    with pytest.raises(
        SystemExit, match=r"rates.md has no column 'steps/s'; it has case, topology"
    ):
        performance.page()
    template.write_text("{rates: case, where topology is auto}\n")
    with pytest.raises(SystemExit, match=r"rates.md has no row where topology is auto"):
        performance.page()
