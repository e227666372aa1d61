"""The notebooks run from their first cell to their last, and are kept without outputs."""

import json
import sys

import pytest

from tests.support.commands import ROOT
from tests.support.docs import reader

NOTEBOOKS = sorted(ROOT.glob("examples/*.ipynb"))


def cells(path):
    """The code cells of a notebook."""
    made = json.loads(path.read_text("utf-8"))
    assert made["nbformat"] == 4
    return [cell for cell in made["cells"] if cell["cell_type"] == "code"]


def test_a_notebook_is_kept_without_outputs():
    assert NOTEBOOKS
    for cell in (cell for path in NOTEBOOKS for cell in cells(path)):
        assert (cell["outputs"], cell["execution_count"]) == ([], None)


@pytest.mark.full
@pytest.mark.timeout(230)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(tmp_path, path):
    for package in ("gymnasium", "matplotlib", "pandas", "pygame"):
        pytest.importorskip(package)
    script = tmp_path / "notebook.py"
    script.write_text("\n".join("".join(cell["source"]) + "\n" for cell in cells(path)))
    stdout = reader.run([sys.executable, str(script)], tmp_path, MPLBACKEND="Agg")
    assert stdout.splitlines()[-1].endswith("environment steps")
