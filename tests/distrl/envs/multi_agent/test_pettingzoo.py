"""PettingZoo's and MPE2's environments by name."""

import dataclasses
import re
import sys
import threading
import types
from pathlib import Path

import numpy as np
import pytest

from distrl import envs
from distrl.envs.multi_agent.assignment import Assignment
from distrl.envs.multi_agent.pettingzoo import PettingZooBuilder
from distrl.envs.multi_agent.pool import AgentPool
from distrl.errors import ConfigError
from distrl.goal import Goal
from distrl.programs.single_process import single_process
from distrl.rules import RandomPolicy
from distrl.types import StepType

pytest.importorskip("pettingzoo")
pytest.importorskip("mpe2")
PAGE = Path(__file__).parents[4] / "docs" / "multi_agent.md"


@pytest.mark.parametrize(
    ("name", "num_agents"),
    [
        ("pettingzoo:classic/tictactoe_v3", 2),
        ("pettingzoo:classic/connect_four-v3", 2),
        ("mpe2:simple_spread_v3", 3),
    ],
)
def test_environments_by_name(name, num_agents):
    environment = envs.make(name)
    agents = environment.agents()
    assert len(agents.agents) == num_agents
    assignment = Assignment(agents, ["p"], dict.fromkeys(agents.agents, "p"))
    pool = AgentPool(environment.make_pool(2, 2, (0, 1)), agents, assignment)
    spec = next(iter(agents.agents.values()))
    source = RandomPolicy().make_source(spec, pool.num_streams, 0)
    pool.start()
    rewards = []
    while pool.episodes < 4:
        steps = pool.recv()
        actions = {}
        for policy, timestep in steps.items():
            rewards += timestep.reward[timestep.step_type == StepType.LAST].tolist()
            actions[policy] = source.inference(timestep.env_id, timestep).action
        pool.send(actions)
    pool.close()
    if "tictactoe" in name:  # every move was legal: else the mover would lose, and the other get 0
        assert sorted(set(rewards)) in ([-1, 1], [-1, 0, 1])
        assert sum(rewards) == 0
    assert np.isfinite(rewards).all()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pettingzoo:tictactoe_v3", "did you mean classic/tictactoe_v3"),
        ("mpe2:simple_spread_v9", "mpe2 has no 'simple_spread_v9'; did you mean simple_spread_v3"),
        ("petting:x", "no suite 'petting'"),
    ],
)
def test_wrong_names_are_refused(name, message):
    with pytest.raises(ConfigError) as error:
        envs.make(name)
    assert message in str(error.value)


def test_wrong_options_are_refused():
    environment = envs.make("mpe2:simple_spread_v3", speed=3)
    with pytest.raises(ConfigError, match=r"simple_spread_v3 cannot be made: .*speed"):
        environment.agents()
    with pytest.raises(ConfigError, match="num_threads is EnvPool's"):
        envs.make("mpe2:simple_spread_v3", num_threads=2)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            ImportError("It needs Spiel.\nInstall it: pip install spiel"),
            "It needs Spiel. Install it: ",
        ),
        (
            ModuleNotFoundError("No module named 'x'", name="x"),
            "No module named 'x': pip install x",
        ),
    ],
)
def test_a_missing_package_is_named_in_one_line(monkeypatch, error, message):
    def env():
        raise error

    monkeypatch.setitem(sys.modules, "lacking_v0", types.SimpleNamespace(env=env))
    with pytest.raises(ConfigError) as refusal:
        PettingZooBuilder("lacking_v0")()
    assert str(refusal.value).startswith(f"environment: lacking_v0 cannot be made: {message}")
    assert "\n" not in str(refusal.value)


@pytest.mark.full
def test_the_experiment_of_the_documentation_trains():
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    (block,) = (block for block in blocks if "simple_tag_v3" in block)
    made: dict = {}
    exec(block, made)
    experiment = dataclasses.replace(made["experiment"], goal=Goal(max_learner_steps=2))
    ended = single_process(experiment, stop=threading.Event(), printer=lambda line: None)
    assert ended == ("2 updates", True)
