"""Where a reader's commands and scripts run."""

import pytest

from tests.support.commands import ROOT
from tests.support.in_process import status_of  # noqa: F401  (a fixture)

FILES = ROOT / "tests" / "support" / "docs" / "files"


@pytest.fixture
def page_folder(tmp_path):
    """The current folder of a reader: this project, and files of their own that pages name."""
    for path in (*FILES.iterdir(), *(ROOT / name for name in ("benchmarks", "docs", "examples"))):
        (tmp_path / path.name).symlink_to(path)
    (tmp_path / "runs").mkdir()
    return tmp_path
