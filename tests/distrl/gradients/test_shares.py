"""The gradients of unequal shares of a batch, combined, are those of the batch."""

import dataclasses
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distrl.agents.a2c import A2CConfig
from distrl.agents.dqn import DQNConfig
from distrl.agents.ppo import PPOConfig
from distrl.agents.prediction import PredictionConfig
from distrl.agents.reinforce import ReinforceConfig
from distrl.errors import ConfigError
from distrl.gradients.layout import MessageLayout
from distrl.gradients.memory import MemoryAddress, SharedMemory, map_memory
from distrl.gradients.shares import BatchFacts, leaves_of_share, split
from distrl.gradients.update import Part, combine
from distrl.task import make_agent
from distrl.transforms import RewardScale, Transform
from distrl.transforms.statistics import Pair
from distrl.types import TIME_FIELDS, StepType
from tests.distrl.learner_group.test_devices import (
    AGENTS,
    BATCH,
    DISCRETE,
    LENGTH,
    NORMALIZERS,
    SMALL,
    make_batch,
)
from tests.support.gradient_workers import share_gradients

NORMALIZING = ("ppo", "a2c", "reinforce")  # advantages, over the whole batch
SPLITTABLE = {
    **{name: made for name, made in AGENTS.items() if not name.startswith(NORMALIZING)},
    "a2c": (A2CConfig(SMALL), DISCRETE, ()),
    "a2c lstm": AGENTS["a2c lstm"],
    "reinforce": (ReinforceConfig(SMALL, normalize_advantages=False), DISCRETE, ()),
    "prediction": (PredictionConfig("return", SMALL), DISCRETE, ()),
    "prediction of rewards": (PredictionConfig("reward", SMALL, balanced=False), DISCRETE, ()),
}


def sums(nest):
    """Replaces pairs, which are not unique, by the numbers that they are."""
    return jax.tree.map(
        lambda x: np.asarray(x[0], np.float64) + x[1] if isinstance(x, Pair) else np.asarray(x),
        nest,
        is_leaf=lambda x: isinstance(x, Pair),
    )


def check(config, spec, transforms):
    """Compares shares of 3, 3 and 2 unrolls, the last of them without a real transition."""
    agent = make_agent(config, transforms, spec)
    agent.check_shares()
    batch = make_batch(agent, 0)
    kinds = batch.timestep.step_type.copy()
    kinds[:, -2:] = StepType.LAST
    batch = batch._replace(timestep=batch.timestep._replace(step_type=kinds))
    params = jax.jit(agent.initial_params)(jax.random.PRNGKey(0))
    state = jax.jit(agent.initial_learner_state)(params)
    want = jax.jit(agent.compute_gradients)(params, state, batch)
    gradients = share_gradients(agent, LENGTH, BATCH)
    inputs = gradients.select(params, state)
    assert len(inputs) < len(jax.tree.leaves((params, state)))  # without the optimiser's
    facts, parts = BatchFacts.of(agent, params, state, batch), []
    for extent in split(BATCH, 3):
        share = leaves_of_share(batch, extent)
        leaves = gradients(inputs, share, extent, facts)
        parts.append(Part(extent.size / BATCH, *gradients.result(extent.size, leaves)))
    got = combine(agent, parts)
    assert jax.tree.structure(got) == jax.tree.structure(want)
    for (path, one), other in zip(
        jax.tree_util.tree_flatten_with_path(sums(got))[0], jax.tree.leaves(sums(want))
    ):
        scale = np.abs(other).max() if other.size else 0.0
        name = jax.tree_util.keystr(path)
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=3e-6 * scale, err_msg=name)


@pytest.mark.full
@pytest.mark.parametrize("name", ["impala lstm", "r2d2", "sac", "td3"])
def test_shares_of_a_batch_give_its_gradients(name):
    check(*SPLITTABLE[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", list(SPLITTABLE))
def test_shares_of_every_agents_batch_give_its_gradients(name):
    check(*SPLITTABLE[name])


@dataclasses.dataclass(frozen=True)
class Chosen(Transform):
    """For learning only: cuts unrolls, takes transitions out, and changes the probabilities."""

    name = "chosen"

    def unroll(self, statistics, state, rng, batch):
        cut = {
            name: jax.tree.map(lambda leaf: leaf[:4], getattr(batch, name)) for name in TIME_FIELDS
        }
        timestep = cut["timestep"]
        taken = timestep.observation[..., 0] > 0
        kinds = jnp.where(taken, timestep.step_type, np.int8(StepType.LAST))
        cut["timestep"] = timestep._replace(step_type=kinds)
        return batch._replace(**cut, probability=batch.probability / 2 + 0.1)


@pytest.mark.parametrize("config", [A2CConfig(SMALL), DQNConfig(SMALL)])
def test_batches_are_counted_as_transforms_leave_them(config):
    check(config, DISCRETE, (Chosen(), RewardScale(2.0)))


def test_transforms_that_keep_what_is_counted_cost_nothing():
    agent = make_agent(A2CConfig(SMALL), NORMALIZERS, DISCRETE)
    params = jax.jit(agent.initial_params)(jax.random.PRNGKey(0))
    state, batch = agent.initial_learner_state(params), make_batch(agent, 0)
    first = BatchFacts.of(agent, params, state, batch)
    assert agent.counted(params, state, batch) is batch
    assert BatchFacts.of(agent, params, state, batch) == first
    assert first.num_real == agent.num_real(batch)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (PPOConfig(SMALL), "PPO makes its updates itself"),
        (A2CConfig(SMALL, normalize_advantages=True), "needs the advantages of the whole batch"),
        (PredictionConfig(network=SMALL), "balanced=True of a prediction of rewards weighs"),
    ],
)
def test_agents_whose_batches_cannot_be_shared(config, message):
    for transforms in ((), NORMALIZERS):
        with pytest.raises(ConfigError, match=message):
            make_agent(config, transforms, DISCRETE).check_shares()


def test_batches_are_split_as_evenly_as_can_be():
    assert split(8, 3) == [(0, 3), (3, 3), (6, 2)]
    assert split(4, 4) == [(0, 1), (1, 1), (2, 1), (3, 1)]
    assert split(5, 1) == [(0, 5)]


def test_real_transitions_are_those_of_the_loss():
    for config in (DQNConfig(SMALL), AGENTS["r2d2"][0]):
        agent = config.make(DISCRETE)
        batch = make_batch(agent, 0)
        real = batch.timestep.step_type[config.burn_in : -1] != StepType.LAST
        assert agent.num_real(batch) == real.sum() > 0


def test_arrays_lie_one_after_the_other():
    arrays = [
        np.arange(3, dtype=np.int8),
        np.ones((2, 2), np.float32),
        np.zeros((0, 3)),
        np.int32(7),
    ]
    layout = MessageLayout(arrays)
    assert layout.nbytes == 3 * 64
    block = np.empty(64 + layout.nbytes, np.uint8)
    layout.write(arrays, block, 64)
    for got, want in zip(layout.views(block, 64), arrays):
        np.testing.assert_array_equal(got, want)
        assert got.dtype == want.dtype
    with pytest.raises(ValueError, match="expected shape"):
        layout.write([np.ones(3), *arrays[:1], *arrays[2:]], block)


@pytest.mark.parametrize("python", ["any", "for an old glibc"])
def test_memory_is_found_by_its_address_only(python, monkeypatch):
    if python != "any":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    memory = SharedMemory(100)
    mapped = map_memory(memory.address)
    mapped[7] = 5
    assert memory.block[7] == 5 and memory.block.size == mapped.size == 100
    pid, descriptor, _ = memory.address
    assert map_memory(MemoryAddress(pid, descriptor, "another")) is None
    assert map_memory(MemoryAddress(0, 0, "")) is None
    memory.close()
    assert map_memory(memory.address) is None
    memory.block[8] = 1  # its owner's mapping stays
