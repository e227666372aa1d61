"""Python's own numbers in parameters and learner state: an update is compiled once all the same."""

import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.agents.structs import params_struct
from distrl.learner import Learner
from distrl.learning.random_batches import NoReplay
from distrl.sharing.config import Shared
from distrl.sharing.learner import Sharing, SharingLearner
from distrl.specs import EnvironmentSpec
from distrl.types import Sample
from tests.support.product_agent import ProductAgent, ProductConfig, batch_of

SPEC = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(3, np.int32))


class Tempered(ProductAgent):
    """Has a temperature of its own, and counts how often its update is traced."""

    def __init__(self):
        super().__init__(ProductConfig(0.5), SPEC)
        self.traced = 0

    def initial_params(self, rng):
        return {**super().initial_params(rng), "temperature": {"log": jnp.full((), 3.0)}}

    def initial_learner_state(self, params):
        return super().initial_learner_state(params), 1.0, 0

    def learner_step(self, params, learner_state, batch):
        self.traced += 1
        state, rate, count = learner_state
        log = params["temperature"]["log"] - jnp.float32(0.5)
        params = {**params, "temperature": {"log": log}}
        return params, (state, rate * 2, count + jnp.int32(1)), {"loss": log}


def alone(agent):
    return Learner(agent, NoReplay(), seed=0)


def sharing(agent):
    agents = {"a": (agent, 0), "b": (ProductConfig().make(SPEC), 0)}
    shared = Sharing({"torso": Shared(("a", "b"), update="turns")}, agents)
    return SharingLearner(agent, NoReplay(), seed=0, task="a", sharing=shared)


@pytest.mark.parametrize("make", [alone, sharing])
def test_an_update_is_compiled_once(make):
    agent = Tempered()
    learner = make(agent)
    for _ in range(3):
        learner.update(Sample(batch_of(agent, 4.0), np.arange(2, dtype=np.uint64)))
    assert agent.traced == 1
    state = learner.state()
    assert float(state.params["temperature"]["log"]) == 1.5
    assert [float(number) for number in state.agent[1:]] == [8.0, 3.0]


def test_what_is_compiled_ahead_is_what_is_called():
    struct = params_struct(Tempered())["temperature"]["log"]
    assert not struct.weak_type
