"""What a transform of one's own makes is checked: by shapes, and `step` against `unroll`."""

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.programs.build import Builder
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.testing import CheckingConfig, CountingEnvironment, check_transform
from distrl.transforms import Hindsight, Stepwise, Transform
from distrl.types import StepType
from tests.distrl.transforms.test_transforms import STEPS

SPEC = EnvironmentSpec(
    dm_specs.Array((4,), np.float32, "observation"), dm_specs.DiscreteArray(3, np.int32, "action")
)
GOALS = SPEC._replace(
    observation={
        name: dm_specs.Array((2,), np.float32) for name in ("achieved_goal", "desired_goal")
    }
)


@dataclasses.dataclass(frozen=True)
class Delta(Transform):
    """The observation less the one before, 0 at FIRST; or with a mistake."""

    kind: str = "right"

    name = "delta"
    changes = frozenset({"observation"})

    def initial_state(self, env_spec, batch_size):
        return np.zeros((batch_size, 4), np.float32)

    def step(self, statistics, state, timestep):
        now = timestep.observation
        if self.kind == "learning":  # it only remembers
            return timestep, now
        first = (timestep.step_type == StepType.FIRST)[:, None]
        state_after = now.astype(jnp.float16) if self.kind == "state" else now
        return timestep._replace(observation=now - jnp.where(first, now, state)), state_after

    def unroll(self, statistics, state, rng, batch):
        timestep, now = batch.timestep, batch.timestep.observation
        if self.kind == "scan":  # all fields are new arrays, most of them with the old values
            _, timestep = jax.lax.scan(lambda *row: self.step((), *row)[::-1], state, timestep)
            return batch._replace(timestep=timestep)
        if self.kind == "swapped":
            before = jnp.concatenate([now[:, :1], now[:, :-1]], axis=1)
        elif self.kind == "whole episodes":
            before = jnp.concatenate([now[:1], now[:-1]])
        else:
            before = jnp.concatenate([state[None], now[:-1]])
        if self.kind not in ("no boundary", "whole episodes"):
            before = jnp.where((timestep.step_type == StepType.FIRST)[..., None], now, before)
        seen = {
            "raw": now,
            "shape": (now - before)[..., None],
            "dtype": (now - before).astype(jnp.float16),
            "drawn": now - before + jax.random.uniform(rng, now.shape),
        }.get(self.kind, now - before)
        timestep = timestep._replace(observation=seen)
        if self.kind == "discount":
            timestep = timestep._replace(discount=timestep.discount[..., None])
        if self.kind == "nothing":
            return timestep
        if self.kind == "version":
            return batch._replace(timestep=timestep, version=batch.version[1:])
        return batch._replace(timestep=timestep)


@dataclasses.dataclass(frozen=True)
class Own(Stepwise):
    """`function` of the time step."""

    function: Callable[[Any], Any]

    name = "own"

    def apply(self, statistics, timestep):
        return self.function(timestep)


@dataclasses.dataclass(frozen=True)
class Largest(Stepwise):
    """Divides by the largest number so far."""

    merge: Callable[[Any, Any], Any]

    name = "largest"
    changes = frozenset({"observation"})

    def initial_statistics(self, env_spec):
        return {"top": np.ones((), np.float32)}

    def apply(self, statistics, timestep):
        return timestep._replace(observation=timestep.observation / statistics["top"])

    def batch_statistics(self, batch):
        return {"top": jnp.abs(batch.timestep.observation).max()}

    def merge_statistics(self, old, new):
        return self.merge(old, new)


@dataclasses.dataclass(frozen=True)
class EndsAtBlunders(Transform):
    """For learning only."""

    name = "ends_at_blunders"

    def unroll(self, statistics, state, rng, batch):
        timestep = batch.timestep
        discount = jnp.where(timestep.reward < -1, 0.0, timestep.discount)
        return batch._replace(timestep=timestep._replace(discount=discount))


SHAPES = {
    "shape": r"delta\.unroll must give observations of shape \(.*, 4\), as .* gives \(.*, 4, 1\)",
    "dtype": r"delta\.unroll must give observations of dtype float32, .* gives float16",
    "discount": r"delta\.unroll must give the discount as float32\[(\d+), (\d+)\], and gives "
    r"float32\[\1, \2, 1\]",
    "nothing": r"delta\.unroll must return a Trajectory, not TimeStep",
    "version": r"delta\.unroll must give the version as int32\[",
}
VALUES = {
    "swapped": r"delta\.unroll gives another observation than delta\.step does for the same steps: "
    r"\S+ and not \S+ in row \d of stream \d \(MID\); \d+ of \d+ numbers differ",
    "no boundary": r"\S+ and not 0 in row \d of stream \d \(FIRST\)",
    "raw": "another observation",
    "state": r"delta\.step must give the state as float32\[4, 4\], and gives float16\[4, 4\]",
}


@pytest.mark.parametrize("case", STEPS)
def test_the_packages_own_transforms_pass(case):
    transform, spec = STEPS[case]
    check_transform(transform, spec)


def test_those_for_learning_only_pass():
    check_transform(Hindsight(lambda achieved, desired: achieved[..., 0]), GOALS)
    check_transform(EndsAtBlunders(), SPEC)
    check_transform(Delta("learning"), SPEC)


@pytest.mark.parametrize("kind", ["right", "scan", "drawn"])
@pytest.mark.parametrize("sizes", [{}, {"unroll_length": 1}, {"whole_episodes": True}])
def test_what_is_right_passes(kind, sizes):
    check_transform(Delta(kind), SPEC, **sizes)


def test_whole_episodes_have_no_boundary_inside():
    check_transform(Delta("whole episodes"), SPEC, unroll_length=7, whole_episodes=True)
    with pytest.raises(ConfigError, match="another observation"):
        check_transform(Delta("whole episodes"), SPEC, unroll_length=7)


@pytest.mark.parametrize("kind", [*SHAPES, *VALUES])
def test_what_unroll_gives_wrongly_is_told(kind):
    with pytest.raises(ConfigError, match={**SHAPES, **VALUES}[kind]) as error:
        check_transform(Delta(kind), SPEC)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("field", "change"),
    [
        ("discount", lambda step: step._replace(discount=0 * step.discount)),
        ("step_type", lambda step: step._replace(step_type=jnp.ones_like(step.step_type))),
        ("prev_action", lambda step: step._replace(prev_action=1 - step.prev_action)),
    ],
)
def test_other_fields_are_left_as_they_are(field, change):
    with pytest.raises(ConfigError, match=f"own must leave the {field} as it is, unless"):
        check_transform(Own(change), SPEC)


def test_statistics_keep_their_shapes():
    check_transform(Largest(lambda old, new: jax.tree.map(jnp.maximum, old, new)), SPEC)
    with pytest.raises(
        ConfigError,
        match=r"largest\.merge_statistics must give the statistics as {'top': 'float32\[\]'}, and "
        r"gives \(\)",
    ):
        check_transform(Largest(lambda old, new: ()), SPEC)


def experiment(*transforms):
    return Experiment(
        PythonEnvironment(CountingEnvironment),
        CheckingConfig(),
        transforms=transforms,
        replay=ReplayConfig(unroll_length=5),
    )


@pytest.mark.parametrize("kind", SHAPES)
def test_an_experiment_refuses_wrong_shapes(kind):
    with pytest.raises(ConfigError, match=SHAPES[kind]):
        experiment(Delta(kind))


@pytest.mark.parametrize("kind", ["swapped", "no boundary", "raw"])
def test_a_learner_refuses_other_values_than_were_acted_on(kind):
    builder = Builder(experiment(Delta(kind)))
    with pytest.raises(ConfigError, match="another observation than delta"):
        builder.make_learner(None)


@pytest.mark.parametrize("transform", [Delta(), Delta("drawn"), EndsAtBlunders()])
def test_a_learner_takes_what_is_right(transform):
    Builder(experiment(transform)).make_learner(None)
