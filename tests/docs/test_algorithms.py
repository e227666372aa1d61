"""The pages of algorithms have the settings of the presets, and the recorded results."""

import sys

import pytest

from distrl import presets
from tests.support.commands import ROOT

sys.path.append(str(ROOT / "tools"))
import algorithm_pages


@pytest.mark.full
@pytest.mark.timeout(230)
@pytest.mark.parametrize("agent", sorted(presets.AGENTS))
def test_the_tables_of_a_page_are_up_to_date(agent):
    """Where this fails, run `python tools/algorithm_pages.py`."""
    text = (algorithm_pages.PAGES / f"{agent}.md").read_text("utf-8")
    assert algorithm_pages.updated(agent, text) == text


def test_every_algorithm_has_a_page():
    pages = {path.stem: path.read_text("utf-8") for path in algorithm_pages.PAGES.glob("*.md")}
    assert pages.keys() == {"index", *presets.AGENTS}, "docs/extend.md: A new agent"
    for agent in presets.AGENTS:
        assert algorithm_pages.SETTINGS.search(pages[agent])
        assert algorithm_pages.RESULTS.search(pages[agent])


def test_a_description_in_a_table_ends_with_a_sentence():
    sentence = f"{'x' * 198}."
    first = algorithm_pages._first_sentences(
        f"{sentence.capitalize()} {sentence.capitalize()} More."
    )
    assert first == f"{sentence.capitalize()} {sentence.capitalize()}"
    assert algorithm_pages._first_sentences(f"{'y' * 500}. More.") == f"{'y' * 500}."
