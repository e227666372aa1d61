"""A policy that is loaded in a clean process acts as the run's own evaluator does."""

import dataclasses
import importlib.util
import os
import pickle
import subprocess
import sys
import threading
from pathlib import Path

import jax
import numpy as np
import pytest

import distrl
from distrl import presets
from distrl.checkpointing.params_file import load_params
from distrl.checkpointing.store import Checkpoints
from distrl.errors import ConfigError, SpecError
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.goal import Goal
from distrl.inferencer import Inferencer
from distrl.programs.single_process import single_process
from distrl.replay.buffer import ReplayConfig
from distrl.saved.saved_agent import agent_writer
from distrl.transforms import FrameStack, ObservationNormalizer
from distrl.variables.client import ConstantSource, VariableClient
from tests.support.selection import full, slow

ROOT = Path(__file__).parents[3]
ACTING = Path(__file__).with_name("acting_policy.py")
BATCH, STEPS = 8, 130  # 1,040 observations


def small(config, **network):
    if not hasattr(config, "network"):
        return dataclasses.replace(config, hidden_sizes=(16,))
    sizes = dataclasses.replace(config.network, hidden_sizes=(16,), **network)
    return dataclasses.replace(config, network=sizes)


def experiment(agent, env="CartPole-v1", transforms=(), **network) -> Experiment:
    made = presets.experiment(env, agent)
    table = made.replay.table
    return dataclasses.replace(
        made,
        agent=small(made.agent, **network),
        transforms=transforms,
        replay=ReplayConfig(table, made.replay.unroll_length, 64),
        actors=ActorsConfig(num_actors=1, num_envs=BATCH),
        learner=LearnerConfig(batch_size=BATCH),
        goal=Goal(max_env_steps=600),
    )


def greedily(made):
    """The evaluator of DQN has an epsilon, which `load_policy` has not."""
    return dataclasses.replace(made, agent=dataclasses.replace(made.agent, evaluation_epsilon=0.0))


CASES = {
    "impala": lambda: experiment("impala", core="lstm", core_size=16),
    "dqn": lambda: greedily(experiment("dqn")),
    "sac": lambda: experiment("sac", "Pendulum-v1"),
    "ppo": lambda: experiment("ppo", transforms=(ObservationNormalizer(), FrameStack(2))),
}


def trained(made, folder):
    folder.mkdir()
    single_process(made, stop=threading.Event(), run_dir=folder, printer=lambda line: None)
    return folder


def clean_process(*arguments):
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "JAX_PLATFORMS": "cpu"},
        cwd="/", capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["impala", full("ppo"), slow("dqn"), slow("sac")])
def test_a_clean_process_acts_as_the_evaluator(tmp_path, name):
    made = CASES[name]()
    run = trained(made, tmp_path / "run")
    agent = made.make_agent()
    like = jax.eval_shape(agent.initial_params, jax.ShapeDtypeStruct((2,), np.uint32))
    version, params = load_params(run / "params.npz", like)
    assert version > 0
    client = VariableClient(ConstantSource(version, params))
    evaluator = Inferencer(agent, client, seed=5, max_streams=BATCH, evaluation=True)
    pool = made.environment.make_pool(BATCH, BATCH, tuple(range(BATCH)))
    streams = pool.env_ids.astype(np.int32)
    steps, actions = [], []
    step = pool.reset()
    for _ in range(STEPS):
        actions.append(evaluator.inference(streams, step).action)
        steps.append((step.observation.copy(), step.reward.copy(), step.step_type == 0))
        step = pool.step(actions[-1])
    pool.close()
    asked = tmp_path / "asked"
    asked.write_bytes(pickle.dumps(tuple(map(np.array, zip(*steps)))))
    clean_process(ACTING, run, asked)
    batched, alone = pickle.loads(Path(f"{asked}.out").read_bytes())
    np.testing.assert_array_equal(batched, actions)
    if alone.dtype.kind == "i":
        np.testing.assert_array_equal(alone, np.array(actions)[:, 0])
    else:
        np.testing.assert_allclose(alone, np.array(actions)[:, 0], rtol=1e-5, atol=1e-5)


OWN = """
import dataclasses
import helper
from distrl.envs import PythonEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.goal import Goal
from distrl.testing import CheckingAgent, CheckingConfig, CountingEnvironment

class Agent(CheckingAgent):
    def actor_step(self, rng, params, timestep, state, evaluation=False):
        output, state = super().actor_step(rng, params, timestep, state, evaluation)
        return output._replace(action=output.action * 0 + helper.SEVEN), state

@dataclasses.dataclass(frozen=True)
class Config(CheckingConfig):
    def make(self, env_spec):
        return Agent(env_spec, self.recurrent)

experiment = Experiment(
    PythonEnvironment(CountingEnvironment),
    Config(),
    actors=ActorsConfig(num_actors=1, num_envs=4),
    learner=LearnerConfig(batch_size=4),
    goal=Goal(max_env_steps=10**9),
)
"""
THREE_LINES = """
import sys, distrl, numpy
policy = distrl.load_policy(sys.argv[1], trust=True)
print(policy(numpy.zeros(4, numpy.float32)), policy.version)
"""


@pytest.mark.full
def test_an_agent_of_the_users_own_file(tmp_path, monkeypatch):
    """Neither the file nor what it imports has to be there."""
    (tmp_path / "own_file.py").write_text(OWN)
    (tmp_path / "helper.py").write_text("SEVEN = 7\n")
    monkeypatch.syspath_prepend(tmp_path)
    spec = importlib.util.spec_from_file_location("own_file", tmp_path / "own_file.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "own_file", module)
    spec.loader.exec_module(module)
    stop = threading.Event()
    stop.set()
    run = tmp_path / "run"
    run.mkdir()
    single_process(module.experiment, stop=stop, run_dir=run, printer=lambda line: None)
    for name in ("own_file.py", "helper.py"):
        (tmp_path / name).unlink()
    assert clean_process("-c", THREE_LINES, run) == "7 0\n"
    (checkpoint,) = Checkpoints(run).paths()
    with pytest.raises(ConfigError, match=r"agent.pkl has code of its own .* trust=True"):
        distrl.load_policy(run)
    moved = checkpoint.rename(tmp_path / "moved")
    assert clean_process("-c", THREE_LINES, moved) == "7 0\n"


def test_settings_that_cannot_be_pickled_are_said(tmp_path):
    @dataclasses.dataclass(frozen=True)
    class Config:
        lock: object = threading.Lock()

    @dataclasses.dataclass(frozen=True)
    class Made:
        agent: Config
        transforms: tuple = ()
        env_spec: object = CASES["impala"]().environment.spec()

    lines = []
    agent_writer(Made(Config()), lines.append)(tmp_path)
    assert "load_policy will not work" in lines[0] and not list(tmp_path.iterdir())


def test_what_cannot_be_loaded(tmp_path):
    with pytest.raises(ConfigError, match="is not a checkpoint, and has none"):
        distrl.load_policy(tmp_path)
    with pytest.raises(ConfigError, match="which must be 'latest' or 'best'"):
        distrl.load_policy(tmp_path, "newest")


def test_an_observation_that_breaks_its_spec(tmp_path):
    made = dataclasses.replace(CASES["impala"](), goal=Goal(max_learner_steps=1))
    run = trained(made, tmp_path / "run")
    (checkpoint,) = Checkpoints(run).paths()
    assert (checkpoint / "agent.json").exists() and not list(checkpoint.rglob("*.pkl"))
    policy = distrl.load_policy(run)
    with pytest.raises(SpecError, match=r"expected float32\[4\], or float32\[B, 4\] for B .*\[3\]"):
        policy(np.zeros(3, np.float32))
