"""A relative run folder stays where it was while environments go to other folders."""

import json

import pytest

from tests.support.commands import EXPERIMENTS, distrl
from tests.support.selection import full


@pytest.mark.parametrize("topology", ["single_process", full("heavy_env"), full("light_env")])
def test_the_run_folder_stays_where_it_was(tmp_path, topology):
    experiment = f"--experiment={EXPERIMENTS / 'wandering.py'}"
    steps = ("--max_env_steps=5000", "--config.checkpoint.period=1")
    done = distrl(tmp_path, "train", experiment, f"--topology={topology}", *steps, "--run_dir=run")
    assert done.returncode == 0, done.stderr
    assert "everything is written to run\n" in done.stdout
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["status"] == "finished" and result["saved"]["params_learner_steps"]
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
