"""An update that does not keep the structure of what it got ends before anything is published."""

import dataclasses
import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.agents.agent import PRIORITIES
from distrl.errors import SpecError
from distrl.gradients.team import GradientTeam
from distrl.gradients.update import SplitUpdate
from distrl.learner import Learner
from distrl.learning.random_batches import NoReplay
from distrl.sharing.config import Shared
from distrl.sharing.learner import Sharing, SharingLearner
from distrl.specs import EnvironmentSpec
from distrl.transforms import Stepwise, TransformedAgent
from distrl.types import Sample
from tests.support.gradient_workers import share_gradients
from tests.support.product_agent import ProductAgent, ProductConfig, batch_of

SPEC = EnvironmentSpec(dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(3, np.int32))
LENGTH = BATCH = 2


class Changing(ProductAgent):
    """An agent whose updates pass parameters and learner state through two functions."""

    def __init__(self, params=lambda params: params, state=lambda state: state):
        super().__init__(ProductConfig(0.5), SPEC)
        self._params, self._state = params, state

    def apply_gradients(self, params, learner_state, grads):
        params, opt_state, logs = super().apply_gradients(params, learner_state, grads)
        return self._params(params), opt_state, logs

    def update_learner_state(self, params, opt_state, learner_state):
        return self._state(super().update_learner_state(params, opt_state, learner_state))


def alone(agent, **kwargs):
    return Learner(agent, NoReplay(), seed=0, **kwargs)


def skipping(agent):
    return alone(agent, on_nonfinite="skip")


def split(agent):
    gradients = share_gradients(agent, LENGTH, BATCH)
    team = GradientTeam(gradients, "task", (), (), timeout=30.0, start_timeout=60.0)
    return alone(agent, split_update=SplitUpdate(agent, team))


def sharing(agent):
    agents = {"a": (agent, 0), "b": (ProductConfig().make(SPEC), 0)}
    shared = Sharing({"torso": Shared(("a", "b"))}, agents)
    return SharingLearner(agent, NoReplay(), seed=0, task="a", sharing=shared)


LEARNERS = (alone, skipping, split, sharing)


def refusal(learner, agent):
    """Returns the message with which the first update is refused, and nothing has changed."""
    with pytest.raises(SpecError) as error:
        learner.update(Sample(batch_of(agent, 4.0), np.arange(BATCH, dtype=np.uint64)))
    assert (learner.version, learner.variables[0], learner.published.versions()) == (0, 0, [0])
    return str(error.value)


@pytest.mark.parametrize("make", LEARNERS)
@pytest.mark.parametrize(
    ("changing", "message"),
    [
        (
            {"params": lambda p: {**p, "head": {"w": p["head"]["w"].astype(jnp.float16)}}},
            "given params['head']['w'] as float32[1], and returns float16[1]:",
        ),
        (
            {"params": lambda p: {**p, "head": {"w": jnp.broadcast_to(p["head"]["w"], (2, 1))}}},
            "given params['head']['w'] as float32[1], and returns float32[2, 1]:",
        ),
        (
            {"params": lambda p: {**p, "more": p["head"]["w"]}},
            "given no params['more'], and returns float32[1]:",
        ),
        (
            {"state": lambda state: jnp.append(state, 0)},
            "given learner_state as int32[], and returns int32[2]:",
        ),
        ({"state": lambda state: None}, "given learner_state as int32[], and returns none:"),
    ],
)
def test_the_leaf_is_named_with_what_it_was_and_what_it_became(make, changing, message):
    agent = Changing(**changing)
    line = refusal(make(agent), agent)
    assert message in line and line.startswith("the update (learner_step) was given")
    assert "\n" not in line


def test_another_structure_of_the_same_leaves_is_refused():
    class Listing(Changing):
        def initial_learner_state(self, params):
            return {"many" * 100: None, "number": (super().initial_learner_state(params),)}

        def update_learner_state(self, params, opt_state, learner_state):
            return {**learner_state, "number": [learner_state["number"][0] + 1]}

    agent = Listing()
    line = refusal(alone(agent), agent)
    assert re.search(r"learner_state in the structure .*\(\*,\).* returns .*\[\*\]", line)
    assert len(line) < 400


@dataclasses.dataclass(frozen=True)
class Largest(Stepwise):
    """Learns the largest observation and counts batches; `merged` is what merging makes of them."""

    merged: Callable[[Any], Any]

    name = "largest"

    def apply(self, statistics, timestep):
        return timestep

    def initial_statistics(self, env_spec):
        return {"top": np.zeros(4, np.float32), "batches": np.zeros((), np.int32)}

    def batch_statistics(self, batch):
        return {"top": batch.timestep.observation[:-1].max((0, 1)), "batches": jnp.int32(1)}

    def merge_statistics(self, old, new):
        top = jnp.maximum(old["top"], new["top"])
        return self.merged({"top": top, "batches": old["batches"] + new["batches"]})


@pytest.mark.parametrize("make", [alone, split])
@pytest.mark.parametrize(
    ("merged", "message"),
    [
        (lambda s: {"top": s["top"]}, "['batches'] as int32[], and returns none:"),
        (
            lambda s: {**s, "top": s["top"][None]},
            "['top'] as float32[4], and returns float32[1, 4]:",
        ),
    ],
)
def test_the_statistics_of_a_transform_are_parameters_too(make, merged, message):
    agent = TransformedAgent(ProductConfig().make(SPEC), (Largest(merged),), SPEC)
    assert f"params['statistics']['largest']{message}" in refusal(make(agent), agent)


@pytest.mark.parametrize("make", LEARNERS)
def test_an_update_that_keeps_all_is_made(make):
    agent = Changing()
    learner = make(agent)
    learner.update(Sample(batch_of(agent, 3.0), np.arange(BATCH, dtype=np.uint64)))
    # It predicts 1 * 1; the error is -2, and half of the gradients -2 is added.
    assert learner.variables[0] == 1
    assert float(learner.variables[1]["head"]["w"][0]) == 2.0
    assert int(learner.state().agent) == 1


def test_a_typed_key_is_refused_by_its_name():
    class Drawing(ProductAgent):
        def initial_learner_state(self, params):
            return {"count": super().initial_learner_state(params), "rng": jax.random.key(3)}

    with pytest.raises(
        SpecError, match=r"^learner_state\['rng'\] is a typed key, key<.* use a raw"
    ):
        alone(Drawing(ProductConfig(), SPEC))


@pytest.mark.parametrize("make", LEARNERS)
def test_priorities_of_another_shape_are_refused_before_the_first_update(make):
    class Prioritizing(Changing):
        def compute_gradients(self, params, learner_state, batch):
            grads, logs = super().compute_gradients(params, learner_state, batch)
            return grads, {**logs, PRIORITIES: jnp.abs(batch.timestep.reward)}

    agent = Prioritizing()
    message = r"'priorities' must be a number for each unroll, of shape \[[12]\], got \[3, [12]\]"
    with pytest.raises(SpecError, match=message):
        make(agent).update(Sample(batch_of(agent, 4.0), np.arange(BATCH, dtype=np.uint64)))
