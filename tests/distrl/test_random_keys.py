"""Keys: no two parts draw the same random numbers."""

import collections
import dataclasses
import re
from typing import ClassVar

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs
from jax._src.random import prng

from distrl import presets, specs
from distrl.agents.a2c import A2CConfig
from distrl.agents.ddpg import DDPGConfig
from distrl.agents.dqn import DQNConfig
from distrl.agents.exploration import EpsilonSchedule
from distrl.agents.impala import IMPALAConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.ppo import PPOConfig
from distrl.agents.r2d2 import R2D2Config
from distrl.agents.reinforce import ReinforceConfig
from distrl.agents.sac import SACConfig
from distrl.agents.td3 import TD3Config
from distrl.config import ActorsConfig, EvaluatorConfig, LearnerConfig
from distrl.envs import PythonEnvironment
from distrl.experiment import Experiment
from distrl.programs.single_process_parts import SingleProcess
from distrl.random_keys import derive, numbered, root
from distrl.replay.buffer import ReplayConfig
from distrl.transforms import Transform
from distrl.types import TIME_FIELDS, Trajectory
from tests.support.selection import full
from tools.rooms import ROOT, sources

SMALL = NetworkConfig(hidden_sizes=(4,))
NOISY = DQNConfig(SMALL, noisy=True, epsilon=EpsilonSchedule(0.5, 0.5))
DISCRETE = dm_specs.DiscreteArray(3, np.int32)
PER_UNROLL = set(Trajectory._fields) - set(TIME_FIELDS)
CONTINUOUS = dm_specs.BoundedArray((2,), np.float32, -1, 1)


class Steps(dm_env.Environment):
    """Episodes of four steps."""

    def __init__(self, seed, action):
        self._action = action
        self._steps = 0

    def reset(self):
        self._steps = 0
        return dm_env.restart(np.zeros(2, np.float32))

    def step(self, action):
        self._steps += 1
        observation = np.full(2, self._steps, np.float32)
        make = dm_env.termination if self._steps == 4 else dm_env.transition
        return make(1.0, observation)

    def observation_spec(self):
        return dm_specs.Array((2,), np.float32)

    def action_spec(self):
        return self._action


@dataclasses.dataclass(frozen=True)
class Jitter(Transform):
    """Draws random numbers where it learns."""

    name: ClassVar[str] = "jitter"

    def unroll(self, statistics, state, rng, batch):
        reward = batch.timestep.reward + jax.random.uniform(rng, batch.timestep.reward.shape)
        return batch._replace(timestep=batch.timestep._replace(reward=reward))


class SecondJitter(Jitter):
    name = "second_jitter"


class Keys:
    """The keys that were drawn from, those that had children, and the children."""

    def __init__(self):
        self.drawn, self.parents, self.children = (collections.Counter() for _ in range(3))

    def note(self, kind, key):
        def add(rows):
            kind.update(row.tobytes() for row in np.asarray(rows).reshape(-1, 2))

        jax.debug.callback(add, prng.random_unwrap(key))

    def check(self):
        jax.effects_barrier()
        assert len(self.drawn) >= 10
        assert max(self.drawn.values()) == 1, "a key was drawn from twice"
        assert not self.drawn.keys() & self.parents.keys(), "a key with children was drawn from"
        assert max(self.children.values()) == 1, "two parts derived the same key"


@pytest.fixture
def keys(monkeypatch):
    """Records the keys of all random primitives, in compiled functions too."""
    keys = Keys()
    draw, split, fold_in = prng.random_bits, prng.random_split, prng.random_fold_in

    def random_bits(key, bit_width, shape):
        keys.note(keys.drawn, key)
        return draw(key, bit_width=bit_width, shape=shape)

    def random_split(key, shape):
        children = split(key, shape=shape)
        keys.note(keys.parents, key)
        keys.note(keys.children, children)
        return children

    def random_fold_in(key, number):
        child = fold_in(key, number)
        keys.note(keys.parents, key)
        keys.note(keys.children, child)
        return child

    monkeypatch.setattr(prng, "random_bits", random_bits)
    monkeypatch.setattr(prng, "random_split", random_split)
    monkeypatch.setattr(prng, "random_fold_in", random_fold_in)
    jax.clear_caches()  # what was compiled before records nothing
    yield keys
    monkeypatch.undo()
    jax.clear_caches()


def experiment(agent, action, *transforms):
    on_policy = isinstance(agent, (A2CConfig, IMPALAConfig, PPOConfig, ReinforceConfig))
    return Experiment(
        PythonEnvironment(lambda seed: Steps(seed, action), "steps"),
        agent,
        ReplayConfig(unroll_length=4, max_size=8, whole_episodes=isinstance(agent, ReinforceConfig))
        if on_policy
        else ReplayConfig("uniform", 6, 64, min_size_to_sample=4, samples_per_insert=4.0),
        ActorsConfig(num_actors=1, num_envs=4),
        learner=LearnerConfig(batch_size=4),
        evaluator=EvaluatorConfig(num_evaluators=1, num_envs=2, episodes=2),
        transforms=transforms,
    )


AGENTS = {
    "impala": full(IMPALAConfig(SMALL), DISCRETE),
    "a2c": full(A2CConfig(SMALL), CONTINUOUS),
    "ppo": full(PPOConfig(SMALL, epochs=3, minibatches=2), DISCRETE),
    "dqn": full(DQNConfig(SMALL), DISCRETE),
    "noisy dqn": full(NOISY, DISCRETE),
    "r2d2": full(R2D2Config(NetworkConfig(hidden_sizes=(4,), core="lstm"), n_step=1), DISCRETE),
    "reinforce": full(ReinforceConfig(SMALL), DISCRETE),
    "sac": (SACConfig((4,)), CONTINUOUS),
    "td3": full(TD3Config((4,)), CONTINUOUS),
    "ddpg": full(DDPGConfig((4,)), CONTINUOUS),
}


def test_every_algorithm_is_tried():
    assert set(AGENTS) >= set(presets.AGENTS)


@pytest.mark.parametrize(("agent", "action"), list(AGENTS.values()), ids=list(AGENTS))
def test_no_key_is_used_twice_by_an_agent(keys, agent, action):
    """Of initialisation, acting and updates only what concerns keys is compiled."""
    made = experiment(agent, action, Jitter(), SecondJitter())
    agent = made.make_agent()
    params = specs.zeros(jax.eval_shape(agent.initial_params, root(0)))
    jax.jit(lambda key: agent.initial_params(key) and ())(derive(root(0), "params"))
    state = jax.jit(agent.initial_learner_state)(params)
    acting = derive(root(1), "act")
    batch = specs.zeros(made.trajectory_struct(), 7, 4)
    batch = batch._replace(
        **{name: jax.tree.map(lambda x: x[0], getattr(batch, name)) for name in PER_UNROLL}
    )
    batch = jax.tree.map(jnp.asarray, batch)

    @jax.jit
    def update(state):
        after = agent.learner_step(params, state, batch)[1]
        return jax.tree.map(lambda new, old: new if new.dtype == np.uint32 else old, after, state)

    @jax.jit
    def act(key, number):
        timestep = specs.zeros(specs.acting_struct(made.environment.spec()), 2)
        agent.actor_step(numbered(key, number), params, timestep, agent.initial_state(2))

    for number in range(3):
        act(acting, number)
        state = update(state)
    keys.check()


@pytest.mark.parametrize(
    "agent", [full(NOISY), full(PPOConfig(SMALL, epochs=2, minibatches=2))], ids=["dqn", "ppo"]
)
def test_no_key_is_used_twice_in_a_run(keys, agent):
    made = experiment(agent, DISCRETE, Jitter())
    with SingleProcess(made, printer=lambda line: None) as parts:
        for _ in range(4):
            parts.run_once()
        parts.evaluator.evaluate(lambda: False)
    keys.check()


def test_children_differ_by_purpose_and_by_number():
    parent = root(7)
    names = ("act", "params", "next", "noise")
    children = [derive(parent, name) for name in names]
    children += [numbered(derive(parent, "numbers"), number) for number in range(4)]
    assert len({np.asarray(key).tobytes() for key in (parent, *children)}) == 9
    np.testing.assert_array_equal(derive(parent, "act"), derive(parent, "act"))


def test_keys_are_derived_in_one_way_only():
    other = re.compile(r"\brandom\.(split|fold_in|PRNGKey|key)\(")
    for name in sources():
        if name != "distrl/random_keys.py":
            found = other.search((ROOT / name).read_text())
            assert not found, f"{name} has {found[0]}...): take distrl.random_keys"
