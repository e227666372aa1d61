"""Relative paths stay those of the command's folder while environments go to other folders."""

import json
import shutil

import pytest

from tests.support.commands import EXPERIMENTS, distrl
from tests.support.selection import full


@pytest.mark.parametrize("topology", ["single_process", full("heavy_env"), full("light_env")])
def test_paths_stay_where_they_were(tmp_path, topology):
    shutil.copy(EXPERIMENTS / "wandering.py", tmp_path)
    experiment = "--experiment=wandering.py"
    steps = ("--max_env_steps=5000", "--config.checkpoint.period=1")
    done = distrl(tmp_path, "train", experiment, f"--topology={topology}", *steps, "--run_dir=run")
    assert done.returncode == 0, done.stderr
    assert "everything is written to run\n" in done.stdout
    result = json.loads((tmp_path / "run/result.json").read_text())
    assert result["status"] == "finished" and result["saved"]["params_learner_steps"]
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert config["working_folder"] == str(tmp_path)
    kept = tmp_path / "run/code/1/experiment/wandering.py"
    assert kept.read_bytes() == (tmp_path / "wandering.py").read_bytes()
    for code in ("current", "snapshot"):
        flags = (f"--code={code}", "--trust", "--episodes=1")
        played = distrl(tmp_path, "eval", "run", *flags)
        assert played.returncode == 0 and "over 1 episodes" in played.stdout, played.stderr
    names = {path.name for path in tmp_path.iterdir()}
    assert names - {"__pycache__"} == {"run", "wandering.py"}
