"""Actions of several parts, discrete and continuous, from the environment to the policy's file."""

import json
import sys

import numpy as np
import pytest

import distrl
from distrl.errors import ConfigError
from tests.support.commands import EXPERIMENTS, finish
from tests.support.experiments.nested_actions import Matching
from tests.support.selection import full, slow

GOAL = 7.2


@pytest.mark.parametrize(
    ("agent", "topology", "flags"),
    [
        ("a2c", "single_process", []),
        full("impala", "heavy_env", ["--config.agent.network.core=lstm"]),
        slow("ppo", "light_env", []),
    ],
)
def test_every_part_is_learned(tmp_path, agent, topology, flags):
    run_dir = tmp_path / "run"
    ended = finish(
        [
            sys.executable, "-m", "distrl", "train",
            f"--experiment={EXPERIMENTS / 'nested_actions.py'}:{agent}",
            f"--topology={topology}", f"--run_dir={run_dir}", *flags,
        ]
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert f"(goal {GOAL})" in json.loads((run_dir / "result.json").read_text())["reason"]
    policy = distrl.load_policy(run_dir)
    observation = np.eye(3, dtype=np.int8)
    policy.reset()
    known = policy.act(observation)
    assert set(known.parameters) == {
        "aim.mean",
        "aim.std",
        "keys.0.logits",
        "keys.1.logits",
        "value",
    }
    assert known.log_prob.shape == (3,)
    assert known.action["keys"][0].shape == (3, 2)
    with pytest.raises(ConfigError, match=r"load_run\(PATH, trust=True\); or give an environment"):
        distrl.evaluate(run_dir, episodes=10)
    evaluation = distrl.evaluate(distrl.load_run(run_dir, trust=True), episodes=10)
    assert evaluation.mean >= GOAL
    environment = Matching()
    row, _ = environment.reset(seed=0)
    policy.reset()
    assert set(policy(row)) == {"aim", "keys"}
