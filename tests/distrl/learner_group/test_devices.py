"""A learner over several devices learns what it learns on one device."""

import os
import pickle

import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import presets
from distrl.agents.a2c import A2CConfig
from distrl.agents.ddpg import DDPGConfig
from distrl.agents.dqn import DQNConfig
from distrl.agents.impala import IMPALAConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.ppo import PPOConfig
from distrl.agents.r2d2 import R2D2Config
from distrl.agents.reinforce import ReinforceConfig
from distrl.agents.sac import SACConfig
from distrl.agents.structs import extras_struct
from distrl.agents.td3 import TD3Config
from distrl.checkpointing.checkpointer import Checkpointer
from distrl.checkpointing.resume_point import restore_learner
from distrl.config import CheckpointConfig, LearnerConfig
from distrl.errors import ConfigError
from distrl.learner import Learner
from distrl.learner_group.devices import Devices, check_gpus
from distrl.learning.random_batches import random_batch
from distrl.specs import EnvironmentSpec
from distrl.task import make_agent
from distrl.transforms.observations import ObservationNormalizer
from distrl.transforms.rewards import RewardNormalizer
from distrl.types import Sample

OBSERVATION = dm_specs.Array((3,), np.float32)
DISCRETE = EnvironmentSpec(OBSERVATION, dm_specs.DiscreteArray(4))
CONTINUOUS = EnvironmentSpec(OBSERVATION, dm_specs.BoundedArray((2,), np.float32, -1.0, 2.0))
SMALL = NetworkConfig(hidden_sizes=(16,))
LSTM = NetworkConfig(hidden_sizes=(16,), core="lstm", core_size=8)
NORMALIZERS = (ObservationNormalizer(), RewardNormalizer())
LENGTH, BATCH = 5, 8
COUNT = 4  # devices

AGENTS = {
    "impala": (IMPALAConfig(SMALL), DISCRETE, ()),
    "impala lstm": (IMPALAConfig(LSTM, optimizer="adam"), CONTINUOUS, NORMALIZERS),
    "a2c": (A2CConfig(SMALL, normalize_advantages=True), DISCRETE, ()),
    "a2c lstm": (A2CConfig(LSTM), CONTINUOUS, ()),
    "ppo": (PPOConfig(SMALL, epochs=2, minibatches=2), DISCRETE, NORMALIZERS),
    "ppo lstm": (PPOConfig(LSTM, epochs=2, minibatches=2, clip_value=0.5), CONTINUOUS, ()),
    "ppo kl": (PPOConfig(SMALL, epochs=2, minibatches=5, target_kl=2.0), CONTINUOUS, ()),
    "dqn": (DQNConfig(SMALL, n_step=3, dueling=True, target_period=7), DISCRETE, ()),
    "rainbow": (
        DQNConfig(SMALL, n_step=3, dueling=True, noisy=True, num_atoms=11, target_period=7),
        DISCRETE,
        (),
    ),
    "r2d2": (R2D2Config(LSTM, burn_in=2, n_step=2, target_period=7), DISCRETE, ()),
    "reinforce": (ReinforceConfig(SMALL), DISCRETE, ()),
    "sac": (SACConfig((16,)), CONTINUOUS, ()),
    "td3": (TD3Config((16,)), CONTINUOUS, NORMALIZERS),
    "ddpg": (DDPGConfig((16,)), CONTINUOUS, ()),
}


class Prioritized:
    """A table that records the priorities sent to it."""

    is_prioritized = True

    def __init__(self):
        self.sent = []

    def update_priorities(self, keys, priorities):
        self.sent.append((keys, priorities))


def make_batch(agent, seed, batch_size=BATCH):
    """Returns random data; extras of on-policy agents are close to plausible values."""
    rng = np.random.default_rng([1, seed])
    batch = random_batch(agent, LENGTH, batch_size, seed)
    extras = jax.tree.map(
        lambda x: rng.normal(-1.3, 0.2, (LENGTH + 1, batch_size, *x.shape)).astype(x.dtype),
        extras_struct(agent),
    )
    probability = rng.uniform(0.001, 0.1, batch_size).astype(np.float32)
    return batch._replace(extras=extras, probability=probability)


def learn(names, updates, path):
    """Writes what each agent learns on one device and on all."""
    jax.config.update("jax_disable_most_optimizations", True)
    results = {}
    for name in names:
        config, spec, transforms = AGENTS[name]
        agent = make_agent(config, transforms, spec)
        batches = [make_batch(agent, seed) for seed in range(10)]
        for count in (1, 0):
            table = Prioritized()
            learner = Learner(agent, table, seed=3, devices=Devices(BATCH, count))
            for i in range(updates):
                keys = np.arange(BATCH, dtype=np.uint64) + i
                learner.update(Sample(batches[i % len(batches)], keys))
            state = learner.state()
            for leaf in jax.tree.leaves((state.params, state.agent)):
                assert len(leaf.sharding.device_set) == (count or COUNT)
                assert leaf.is_fully_replicated
            for leaf in jax.tree.leaves(learner.variables[1]):
                assert leaf.devices() == {jax.devices()[0]}
            arrays = (state.params, state.agent, table.sent)
            results[name, count] = jax.tree.map(np.asarray, arrays)
    with open(path, "wb") as file:
        pickle.dump(results, file)


def on_forced_devices(elsewhere, function, *args):
    flags = f"--xla_force_host_platform_device_count={COUNT}"
    child = elsewhere(function, *args, env={**os.environ, "XLA_FLAGS": flags})
    assert child.wait(110.0) == 0


def check_learned(elsewhere, tmp_path, names):
    path = tmp_path / "results"
    on_forced_devices(elsewhere, learn, names, 100, path)
    results = pickle.loads(path.read_bytes())
    for name in names:
        one, several = results[name, 1], results[name, 0]
        wanted, structure = jax.tree_util.tree_flatten_with_path(one)
        assert jax.tree.structure(several) == structure
        for (leaf_path, want), got in zip(wanted, jax.tree.leaves(several)):
            what = f"{name} {jax.tree_util.keystr(leaf_path)}"
            np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5, err_msg=what)


@pytest.mark.full
def test_a_hundred_updates_give_the_same_parameters(elsewhere, tmp_path):
    check_learned(elsewhere, tmp_path, ["impala", "ppo"])


def test_every_algorithm_is_tried():
    assert set(AGENTS) >= set(presets.AGENTS)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(AGENTS))
def test_every_agent_learns_the_same(elsewhere, tmp_path, name):
    check_learned(elsewhere, tmp_path, [name])


def split_work():
    """Checks that each device computes only its share."""
    jax.config.update("jax_disable_most_optimizations", True)
    batch_size = 64
    agent = IMPALAConfig(NetworkConfig(hidden_sizes=(128,))).make(DISCRETE)
    batch = make_batch(agent, 0, batch_size)
    work = []
    for count in (1, COUNT):
        devices = Devices(batch_size, count)
        learner = Learner(agent, None, seed=0, devices=devices)
        state = learner.state()
        update = learner._update.lower(state.params, state.agent, state.record, batch)
        compiled = update.compile()
        work.append(compiled.cost_analysis()["flops"])
    assert work[1] < 1.1 * work[0] / COUNT, work


def test_the_work_is_split(elsewhere):
    on_forced_devices(elsewhere, split_work)


def resume_on_other_devices(path):
    """Several devices resume from a checkpoint of one, and one from a checkpoint of several."""
    jax.config.update("jax_disable_most_optimizations", True)
    agent = A2CConfig(SMALL).make(DISCRETE)
    sample = Sample(make_batch(agent, 0), np.arange(BATCH, dtype=np.uint64))
    one, several = (
        Learner(agent, Prioritized(), seed=count, devices=Devices(BATCH, count)) for count in (1, 0)
    )
    one.update(sample)
    store = Checkpointer(path, CheckpointConfig(replay=False), one, None, lambda: COUNTERS, {})
    restore_learner(several, store.save())
    assert several.version == 1
    for learner in (one, several):
        learner.update(sample)
    for want, got in zip(jax.tree.leaves(one.variables), jax.tree.leaves(several.variables)):
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-6)
    store = Checkpointer(path, CheckpointConfig(replay=False), several, None, lambda: COUNTERS, {})
    restore_learner(one, store.save())
    assert one.version == 2


COUNTERS = {"mean_return": None, "full_window": False}


@pytest.mark.full
def test_checkpoints_do_not_depend_on_the_number_of_devices(elsewhere, tmp_path):
    on_forced_devices(elsewhere, resume_on_other_devices, tmp_path)


def test_nothing_is_copied_on_one_device():
    devices = Devices(6, 1)
    agent = A2CConfig(SMALL).make(DISCRETE)
    batch = make_batch(agent, 0)
    assert devices.put(batch) is batch
    assert devices.first_replica(batch) is batch
    assert not devices.several


def test_too_many_devices_are_refused():
    (device,) = jax.devices()
    with pytest.raises(ConfigError, match=rf"learner.num_devices=3: JAX has 1 here \({device}\)"):
        Devices(6, 3)


def test_missing_gpus_are_refused():
    check_gpus(0, "learner.num_gpus=0")
    (device,) = jax.devices()
    with pytest.raises(ConfigError, match=rf"learner.num_gpus=1: JAX has {device} here; see"):
        check_gpus(1, "learner.num_gpus=1")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"batch_size": 30, "num_devices": 4},
            "learner.batch_size=30 does not split over 4 devices: 30 / 4 = 7.5 unrolls each; "
            "take learner.batch_size=28 or 32, or learner.num_devices=3",
        ),
        (
            {"batch_size": 3, "num_gpus": 4},
            "learner.batch_size=3 does not split over 4 devices: 3 / 4 = 0.8 unrolls each; "
            "take learner.batch_size=4, or learner.num_devices=3",
        ),
        (
            {"num_gpus": 2, "num_devices": 4},
            "learner.num_devices=4 is more than learner.num_gpus=2",
        ),
        ({"num_devices": -1}, "learner.num_devices must be a whole number, 0 or more; got -1"),
    ],
)
def test_invalid_settings_are_refused_with_the_arithmetic(settings, message):
    with pytest.raises(ConfigError) as caught:
        LearnerConfig(**settings)
    assert str(caught.value) == message
