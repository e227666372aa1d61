"""The page about Python does what it says: its blocks run one after the other, as in a notebook."""

import os
import re
import subprocess
import sys

import pytest

from tests.support.commands import ROOT

BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_every_block_of_the_page_runs(tmp_path):
    blocks = BLOCK.findall((ROOT / "docs" / "python.md").read_text("utf-8"))
    assert len(blocks) == 5
    script = tmp_path / "page.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, str(script)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^return [\d.]+ ± [\d.]+ over 20 episodes$", done.stdout, re.MULTILINE)
    assert re.search(r"^update 10 loss ", done.stdout, re.MULTILINE)
    assert re.search(r"^evaluation ", done.stdout, re.MULTILINE)
    assert re.search(r"^saved .*/checkpoints/", done.stdout, re.MULTILINE)
    assert done.stdout.splitlines()[-1].startswith("20 ")
