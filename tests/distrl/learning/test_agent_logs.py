"""Tests for the names of an agent's logs."""

from pathlib import Path

from distrl.learning.agent_logs import COLUMNS

METRICS_PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_every_column_is_explained():
    text = METRICS_PAGE.read_text()
    assert [name for name in sorted(COLUMNS) if f"`{name}`" not in text] == []
