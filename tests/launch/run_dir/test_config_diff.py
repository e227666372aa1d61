"""Settings that are newer than a run: what they meant before is compared."""

import dataclasses
import functools
import importlib.util
import json
import os
import subprocess
import sys
from typing import Any

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from distrl import presets
from distrl.agents.components import ComponentConfig
from distrl.agents.ddpg import DDPGConfig
from distrl.agents.dqn import DQNConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.sac import SACConfig
from distrl.agents.td3 import TD3Config
from distrl.envs import Copies, NativeEnvironment, PoolConfig, PythonEnvironment, WrapperConfig
from distrl.experiment import Experiment
from distrl.launch.run_dir import config_diff
from distrl.launch.run_dir.code_digest import code_digest
from distrl.replay.config import ReplayConfig
from distrl.testing import CheckingConfig, CountingEnvironment
from distrl.transforms import RewardShaping


def is_discrete_only(agent):
    return agent in ("dqn", "r2d2", "impala", "a2c", "ppo", "reinforce")


def described(agent, environment=None):
    made = Experiment(PythonEnvironment(CountingEnvironment), CheckingConfig(), ReplayConfig())
    object.__setattr__(made, "agent", agent)
    if environment is not None:
        object.__setattr__(made, "environment", environment)
    return json.loads(json.dumps(config_diff.describe(made)))


def test_a_dueling_run_of_before_goes_on_with_its_own_network_only():
    for dueling in (False, True):
        agent = DQNConfig(dueling=dueling)
        old, new = described(agent), described(agent)
        for name in DQNConfig.BEFORE:
            del old["experiment"]["agent"][name]
        changes = {change.field: change for change in config_diff.compare(old, new)}
        assert changes.keys() == {f"agent.{name}" for name in DQNConfig.BEFORE}
        change = changes["agent.dueling_streams"]
        assert (change.was, change.now, change.fixed) == (False, True, dueling)
        asked = described(dataclasses.replace(agent, **DQNConfig.BEFORE))
        assert config_diff.compare(old, asked) == []


def double(observation, action, reward, next_observation):
    return 2 * reward


def triple(observation, action, reward, next_observation):
    return 3 * reward


def with_transforms(transforms):
    environment = PythonEnvironment(CountingEnvironment)
    made = Experiment(environment, CheckingConfig(), ReplayConfig(), transforms=transforms)
    return json.loads(json.dumps(config_diff.describe(made)))


def test_a_list_of_transforms_is_the_same_as_a_tuple():
    listed, other = (
        with_transforms([RewardShaping(double)]),
        with_transforms([RewardShaping(triple)]),
    )
    assert listed == with_transforms((RewardShaping(double),))
    name = "transforms.reward_shaping.function"
    assert listed["experiment"]["transforms"] == {"reward_shaping": {"function": "double"}}
    assert listed["functions"][name] != other["functions"][name]
    assert name in [change.field for change in config_diff.compare(listed, other)]


def test_a_run_whose_list_of_transforms_was_text_goes_on():
    old, new = (with_transforms([RewardShaping(double)]) for _ in range(2))
    old["experiment"]["transforms"] = "[RewardShaping(function=<function double at 0x7f>)]"
    del old["classes"]["transforms.reward_shaping"]
    del old["functions"]["transforms.reward_shaping.function"]
    assert config_diff.compare(old, new) == []


@pytest.mark.parametrize("config", [SACConfig, TD3Config, DDPGConfig])
def test_a_run_without_pixels_and_memory_goes_on_as_it_was(config):
    old, new = described(config()), described(config())
    for name in ("network", "burn_in", "components"):
        del old["experiment"]["agent"][name]
    del old["classes"]["agent.network"]
    assert config_diff.compare(old, new) == []
    memory = described(config(network=NetworkConfig(core="lstm")))
    changes = {change.field: change for change in config_diff.compare(old, memory)}
    assert changes["agent.network.core"].fixed
    assert changes["agent.network.core"].was == "none"


def test_a_part_that_a_run_had_not_is_told_with_its_values():
    agent = SACConfig(components={"critics": ComponentConfig(learning_rate=0.01)})
    usual = config_diff.defaults(agent, "agent.")
    (change,) = config_diff.compare(described(SACConfig()), described(agent), usual)
    told = "ComponentConfig(learning_rate=0.01)"
    assert change == ("agent.components.critics", None, told, False)


def test_a_run_of_before_a_check_of_environments_goes_on():
    made = Experiment(NativeEnvironment("CartPole-v1"), CheckingConfig(), ReplayConfig())
    old, new = (json.loads(json.dumps(config_diff.describe(made))) for _ in range(2))
    for name in ("check_finite", "policies", "policy_of"):
        old["experiment"].pop(name, None)
        old["experiment"]["environment"].pop(name, None)
    assert not [change for change in config_diff.compare(old, new) if change.fixed]


def test_how_copies_are_stepped_may_change():
    def copies(seconds, steps):
        pool, wrappers = PoolConfig(step_timeout=seconds), WrapperConfig(max_episode_steps=steps)
        environment = PythonEnvironment(CountingEnvironment, pool=pool, wrappers=wrappers)
        return described(CheckingConfig(), Copies(environment, 2))

    changes = config_diff.compare(copies(60.0, 5), copies(90.0, 6))
    inner = "environment.environment"
    assert {change.field: change.fixed for change in changes} == {
        f"{inner}.pool.step_timeout": False, f"{inner}.wrappers.max_episode_steps": True,
    }  # fmt: skip


FUNCTIONS = """
import functools
from distrl.launch.run_dir.code_digest import code_digest

def make(width, more=frozenset("abcdef")):
    def torso(x, scale=2.0):
        return [width * scale, more, object, (lambda y: y in {"p", "q", "r", "s"})(x)]
    return torso
"""
DIGESTS = "[code_digest(f) for f in (make(4), make(8), functools.partial(make, 4), make)]"


def test_digests_tell_functions_of_one_name_apart_and_are_the_same_in_every_process():
    here = {}
    exec(FUNCTIONS, here)
    digests = eval(DIGESTS, here)
    assert len(set(digests)) == 4
    for seed in "12":
        code = FUNCTIONS.replace("import functools", "import functools\n\n", 1)
        line = subprocess.run(
            [sys.executable, "-c", f"{code}print(*{DIGESTS})"],
            env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True,
        ).stdout  # fmt: skip
        assert line.split() == digests
    assert code_digest(dict) is None and code_digest("torso") is None
    nested = []
    nested.append(nested)
    assert code_digest(lambda: nested) is not None


SOURCE = """
def make(width):
    def torso(x, scale=2.0):
        # This is a comment.
        return f"{x:>{width}}", x * scale, width, {"a", "b"}
    return torso

def other(width):
    def torso(x, scale=2.0):
        return f"{x:>{width}}", x * scale, width, {"a", "c"}
    return torso

two = [lambda x: x + 1, lambda x: x + 2]
"""


def imported(path, source):
    path.write_text(source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_digests_are_of_the_source_and_the_same_under_every_python(tmp_path):
    first = imported(tmp_path / "first.py", SOURCE)
    known = code_digest(first.make(4))
    assert (known, code_digest(first.make)) == ("fd93c350c3", "a1a034a699")
    assert known not in {code_digest(first.make(8)), code_digest(first.other(4))}
    moved = SOURCE.replace("        # This is a comment.\n", "\n")
    moved = f"import os\n{moved}".replace("x * scale", "(x * scale)")
    second = imported(tmp_path / "second.py", moved)
    assert code_digest(second.make(4)) == known
    one, two = map(code_digest, first.two)  # which is which, the source does not say
    assert one != two
    (tmp_path / "first.py").write_text(SOURCE.replace("x * scale", "x + scale"))
    changed = code_digest(first.make(4))  # what runs is not what the file has
    assert changed not in {known, code_digest(imported(tmp_path / "first.py", SOURCE).other(4))}


def test_values_of_numpy_count_by_their_bytes(tmp_path):
    make = imported(tmp_path / "mine.py", SOURCE).make

    def of(scale):
        return code_digest(functools.partial(make, scale))

    assert of(np.float32(2)) == of(np.float32(2)) != of(np.float32(3))
    assert of(np.float32(2)) != of(np.float64(2))
    assert of(np.float64(2)) == "b180a08f88"  # NumPy 1 and 2 write it in two ways


def test_a_digest_of_an_older_version_says_nothing(tmp_path):
    torso = imported(tmp_path / "mine.py", SOURCE).make(4)
    old = described(DQNConfig(network=NetworkConfig(torso=torso)))
    new = json.loads(json.dumps(old))
    old["functions"]["agent.network.torso"] = "0123abcd"
    assert config_diff.compare(old, new) == []


def test_changed_code_of_a_function_is_told_and_ends_no_run():
    def of(width):
        def torso(x):
            return width * x

        return described(DQNConfig(network=NetworkConfig(torso=torso)))

    old, new = of(4), of(256)
    (change,) = config_diff.compare(old, new)
    assert (change.field, change.fixed) == ("agent.network.torso", False)
    assert change.was.startswith("code ") and change.was != change.now
    assert config_diff.compare(old, of(4)) == []
    del old["functions"]  # of before
    assert config_diff.compare(old, new) == []


def test_tuples_of_what_is_no_plain_data_are_described():
    @dataclasses.dataclass(frozen=True)
    class OwnConfig(DQNConfig):
        parts: Any = ()

    def of(*parts):
        return described(OwnConfig(parts=parts))

    first = of(optax.adam(1e-3), np.int64(4), (jnp.float32, 2))
    assert config_diff.compare(first, of(optax.adam(1e-3), np.int64(4), (jnp.float32, 2))) == []
    (change,) = config_diff.compare(first, of(optax.adam(1e-4), np.int64(4), (jnp.float32, 2)))
    assert change.field == "agent.parts" and change.now.startswith("code ") and not change.fixed
    (change,) = config_diff.compare(first, of(optax.adam(1e-3), np.int64(4), (jnp.float16, 2)))
    assert change.field == "agent.parts"


@pytest.mark.parametrize("agent", sorted(presets.AGENTS))
def test_a_setting_that_a_run_is_older_than_was_its_default_or_what_it_meant_before(agent):
    """Whichever it is: a new setting that is at its default ends no run of before."""
    env = "CartPole-v1" if is_discrete_only(agent) else "Pendulum-v1"
    made = presets.experiment(env, agent)
    usual = config_diff.defaults(made)
    new = json.loads(json.dumps(config_diff.describe(made)))
    for name, default in usual.items():
        old = json.loads(json.dumps(new))
        *path, last = name.split(".")
        part = old["experiment"]
        for key in path:
            part = part[key]
        value = part.pop(last)
        if isinstance(value, dict):
            continue
        before = config_diff._BEFORE.get(last, default)
        changes = config_diff.compare(old, new, usual)
        assert [(c.field, c.was, c.now) for c in changes] == (
            [] if value == before else [(name, before, value)]
        )
    assert usual["agent.network.one_hot_integers"] is False


def test_goals_alone_are_taken_over():
    def settings(steps, seed):
        policies = {"a": {"goal": {"max_env_steps": steps}, "seed": seed}, "rule": "random"}
        experiment = {"goal": {"max_env_steps": steps}, "seed": seed, "policies": policies}
        return {"experiment": experiment, "topology": "auto"}

    taken = config_diff.with_goal(settings(9, 0), settings(7, 1))
    assert taken == settings(7, 0)
    assert config_diff.goal(taken) == config_diff.goal(settings(7, 1))
