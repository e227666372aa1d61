"""Transforms that would corrupt each other's data are refused, with the reason and a remedy."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.agents.dqn import DQNConfig
from distrl.agents.impala import IMPALAConfig
from distrl.agents.reinforce import ReinforceConfig
from distrl.agents.tunable import Tunable
from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import Experiment, LearnedPolicy, deferred_checks
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.testing import CheckingConfig, CountingEnvironment
from distrl.transforms import (
    TRANSFORMS,
    FrameStack,
    Hindsight,
    ObservationClip,
    ObservationNormalizer,
    PotentialShaping,
    RewardClip,
    RewardNormalizer,
    RewardScale,
    RewardShaping,
    RewardWeights,
    Stepwise,
    TransformedAgent,
    by_name,
    check_order,
)
from distrl.transforms.base import specs_seen


def reward(*arguments):
    return arguments[-1][..., 0]


ALL = (
    Hindsight(reward),
    RewardWeights((1.0, 2.0)),
    RewardShaping(reward),
    PotentialShaping(reward, 0.9),
    ObservationNormalizer(),
    ObservationClip(),
    RewardNormalizer(),
    RewardClip(),
    RewardScale(),
    FrameStack(),
)
HINDSIGHT = "replaces goals by achieved ones, and computes rewards, in raw units"
WEIGHTED = "each reward of a vector must be weighted as it is"
OWN = "its function is written for the environment's own observations"
REFUSED = {
    ("observation_normalizer", "hindsight"): HINDSIGHT,
    ("observation_clip", "hindsight"): HINDSIGHT,
    ("frame_stack", "hindsight"): HINDSIGHT,
    ("reward_normalizer", "hindsight"): HINDSIGHT,
    ("reward_clip", "hindsight"): HINDSIGHT,
    ("reward_scale", "hindsight"): HINDSIGHT,
    ("reward_weights", "hindsight"): HINDSIGHT,
    ("reward_shaping", "hindsight"): HINDSIGHT,
    ("potential_shaping", "hindsight"): HINDSIGHT,
    ("reward_clip", "reward_normalizer"): "its statistics would be of clipped rewards",
    ("reward_scale", "reward_normalizer"): "dividing by the rewards' own scale would undo it",
    ("observation_clip", "observation_normalizer"): "its statistics would be of clipped observ",
    ("frame_stack", "observation_normalizer"): "its statistics would count each frame once for",
    ("reward_shaping", "reward_weights"): WEIGHTED,
    ("potential_shaping", "reward_weights"): WEIGHTED,
    ("reward_normalizer", "reward_weights"): WEIGHTED,
    ("reward_clip", "reward_weights"): WEIGHTED,
    ("reward_scale", "reward_weights"): WEIGHTED,
    ("observation_normalizer", "reward_shaping"): OWN,
    ("observation_normalizer", "potential_shaping"): OWN,
    ("observation_clip", "reward_shaping"): OWN,
    ("observation_clip", "potential_shaping"): OWN,
    ("frame_stack", "reward_shaping"): OWN,
    ("frame_stack", "potential_shaping"): OWN,
}
PAIRS = [(a, b) for a in ALL for b in ALL if a is not b]


@pytest.mark.parametrize(("earlier", "later"), PAIRS, ids=lambda t: t.name)
def test_every_order_of_two(earlier, later):
    """Each pair by itself, so that what is allowed is told apart from what is not."""
    reason = REFUSED.get((earlier.name, later.name))
    if reason is None:
        check_order((earlier, later))
        return
    with pytest.raises(ConfigError) as error:
        check_order((earlier, later))
    message = str(error.value)
    assert message.startswith(f"transforms: {earlier.name} before {later.name}: ")
    assert reason in message
    assert message.endswith(f"; put {later.name} before {earlier.name}")
    assert "\n" not in message


def test_the_registrys_own_order_is_right():
    check_order(ALL)
    assert list(TRANSFORMS) == [transform.name for transform in ALL]


def test_two_of_one_name_and_what_is_no_transform():
    with pytest.raises(ConfigError, match="there are two of the name 'reward_clip'"):
        check_order((RewardClip(1.0), RewardScale(), RewardClip(2.0)))
    with pytest.raises(ConfigError, match=r"'reward_clip' is not a distrl\.transforms\.Transform"):
        check_order(("reward_clip",))


FLOATS = EnvironmentSpec(
    {"a": dm_specs.Array((2,), np.float32), "b": dm_specs.Array((3,), np.int32)},
    dm_specs.DiscreteArray(2, np.int32),
)
SYMBOLS = FLOATS._replace(observation=dm_specs.DiscreteArray(4, np.int32))
VECTOR = FLOATS._replace(reward=dm_specs.Array((2,), np.float32))


@pytest.mark.parametrize(
    ("transform", "env_spec", "message"),
    [
        (ObservationNormalizer(), SYMBOLS, r"observation_normalizer finds no observation that"),
        (ObservationNormalizer(leaves=("c",)), FLOATS, r"leaves: no 'c'; there is a float32\[2\]"),
        (ObservationNormalizer(leaves=("b",)), FLOATS, "leaves: 'b' does not suit it"),
        (ObservationClip(), SYMBOLS, "observation_clip finds no observation that suits it"),
        (FrameStack(), SYMBOLS, "frame_stack finds no observation that suits it"),
        (
            RewardClip(),
            VECTOR,
            r"reward_clip takes one reward a step, and the reward's shape is \[2",
        ),
        (RewardNormalizer(), VECTOR, "put reward_weights before reward_normalizer"),
        (RewardShaping(reward), VECTOR, "put reward_weights before reward_shaping"),
        (RewardWeights((1.0,)), VECTOR, r"has 1 numbers, and the reward's shape is \[2\]"),
        (RewardWeights((1.0,)), FLOATS, r"has 1 numbers, and the reward's shape is \[\]"),
        (RewardShaping(lambda o, a, r, n: n["a"]), FLOATS, "must give one number a transition"),
    ],
)
def test_what_does_not_suit_the_environment(transform, env_spec, message):
    with pytest.raises(ConfigError, match=message) as error:
        specs_seen((transform,), env_spec)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RewardClip(0.0), "reward_clip.limit: expected a number above 0, got 0.0"),
        (lambda: RewardScale(-1), "reward_scale.scale: expected a number above 0, got -1"),
        (lambda: ObservationNormalizer(epsilon=0), "observation_normalizer.epsilon: expected"),
        (lambda: ObservationNormalizer(clip=0), "clip: expected a number above 0, or None, got 0"),
        (lambda: RewardNormalizer(clip="10"), "reward_normalizer.clip: expected a number"),
        (lambda: RewardWeights((1.0, "2")), "reward_weights.weights must be a tuple of numbers"),
        (lambda: RewardShaping(3), "reward_shaping.function must be a function, got 3"),
        (lambda: PotentialShaping(reward, 2), r"potential_shaping.discount: expected .* in \[0, 1"),
        (lambda: FrameStack(1), "frame_stack.num_frames must be an integer of at least 2, got 1"),
    ],
)
def test_settings_that_cannot_work(make, message):
    with pytest.raises(ConfigError, match=message):
        make()


def experiment(*transforms, agent=None):
    return Experiment(
        PythonEnvironment(CountingEnvironment), agent or CheckingConfig(), transforms=transforms
    )


def test_an_experiment_checks_its_transforms():
    with pytest.raises(ConfigError, match="put reward_normalizer before reward_clip"):
        experiment(RewardClip(), RewardNormalizer())
    with pytest.raises(ConfigError, match=r"reward_weights.weights has 1 numbers"):
        experiment(RewardWeights((1.0,)))


@dataclasses.dataclass(frozen=True)
class Own(Stepwise):
    """A user's transform: `function` of the time step."""

    function: Callable[[Any], Any]
    changed: tuple[str, ...] = ("observation", "reward")

    name = "own"

    @property
    def changes(self):
        return frozenset(self.changed)

    def apply(self, statistics, timestep):
        return self.function(timestep)


class Plain(Stepwise):
    name = "plain"

    def apply(self, statistics, timestep):
        return timestep


@dataclasses.dataclass(frozen=True)
class Nameless(Stepwise):
    def apply(self, statistics, timestep):
        return timestep


def doubled(timestep):
    return timestep._replace(reward=2 * timestep.reward)


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (Plain(), "Plain must be a dataclass .*write `@dataclasses.dataclass"),
        (Nameless(), "Nameless must have a `name`, a string"),
        (Own(lambda step: None), "own must return a TimeStep, and returns None"),
        (
            Own(lambda step: step._replace(observation=step.observation[..., :2])),
            r"own must give observations of shape \(.*, 4\), as its `spec` .* gives \(.*, 2\)",
        ),
        (
            Own(lambda step: step._replace(reward=0.0)),
            r"own must give rewards of shape .* gives \(\)",
        ),
        (
            Own(doubled, ()),
            r"own changes the reward, .*: declare `changes = frozenset\({'reward'}\)`",
        ),
        (
            Own(doubled, ("rewards",)),
            "own.changes has 'rewards'; there is 'observation' and 'reward'",
        ),
    ],
)
def test_a_transform_of_ones_own_that_is_not_what_it_says_is_named(transform, message):
    with pytest.raises(ConfigError, match=message) as error:
        experiment(transform)
    assert "\n" not in str(error.value)
    experiment(Own(doubled, ("reward",)))


@dataclasses.dataclass(frozen=True)
class Counting(Stepwise):
    """A transform with the statistics `initial`."""

    initial: Any

    name = "counting"

    def apply(self, statistics, timestep):
        return timestep

    def initial_statistics(self, env_spec):
        return self.initial

    def batch_statistics(self, batch):
        return self.initial

    def merge_statistics(self, old, new):
        return old


@dataclasses.dataclass(frozen=True)
class Forgetful(Own):
    def batch_statistics(self, batch):
        return {"steps": np.float32(1)}


@pytest.mark.parametrize(
    ("transform", "message"),
    [
        (Counting(None), r"counting.initial_statistics returns None, .*: return NumPy arrays, or "),
        (
            Forgetful(doubled, ("reward",)),
            "own has batch_statistics, and no initial_statistics: statistics need initial_stat.*,",
        ),
    ],
)
def test_statistics_that_would_never_change_are_refused(transform, message):
    with pytest.raises(ConfigError, match=message) as error:
        experiment(transform)
    assert "\n" not in str(error.value)
    experiment(Counting(()))
    experiment(Counting({"steps": np.zeros((), np.float32)}))


def test_the_agent_is_made_for_what_it_sees():
    made = experiment(FrameStack(3)).make_agent()
    assert isinstance(made, TransformedAgent)
    assert made.env_spec.observation.shape == (4,)
    assert made.agent.env_spec.observation.shape == (12,)
    struct = experiment(FrameStack(3)).trajectory_struct()
    assert struct.timestep.observation.shape == (4,)  # each frame is stored once
    assert struct.state["frame_stack"]["observation"].shape == (2, 4)
    assert not isinstance(experiment().make_agent(), TransformedAgent)


def test_transforms_by_name():
    known = RewardClip(5.0)
    assert by_name(["reward_normalizer", "reward_clip"], (known, RewardScale())) == (
        RewardNormalizer(),
        known,
    )
    with pytest.raises(ConfigError, match=r"no 'reward_clp'; did you mean reward_clip\?"):
        by_name(["reward_clp"])
    with pytest.raises(ConfigError, match="potential_shaping needs function, discount: put it"):
        by_name(["potential_shaping"])


NO_BACKEND = """
from jax._src import xla_bridge
from distrl.agents.impala import IMPALAConfig
from distrl.envs import PythonEnvironment
from distrl.experiment import Experiment, LearnedPolicy, deferred_checks
from distrl.testing import CountingEnvironment
from distrl.transforms import *
import dm_env, numpy as np
from dm_env import specs

class Small(CountingEnvironment):
    def action_spec(self):
        return specs.DiscreteArray(2, np.int32, "action")

first = lambda observation: observation[..., 0]
experiment = Experiment(PythonEnvironment(Small), IMPALAConfig(), transforms=(
    RewardShaping(lambda before, action, reward, after: reward + first(after)),
    PotentialShaping(first, 0.99), ObservationNormalizer(), ObservationClip(5.0),
    RewardNormalizer(), RewardClip(), RewardScale(), FrameStack(2)))
experiment.make_agent()
assert not xla_bridge.backends_are_initialized()
"""


def test_an_experiment_makes_no_backend():
    done = subprocess.run(
        [sys.executable, "-c", NO_BACKEND], capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_impala_behind_a_frame_stack_takes_pixels():
    spec = FLOATS._replace(observation=dm_specs.BoundedArray((1, 84, 84), np.uint8, 0, 255))
    seen = specs_seen((FrameStack(4),), spec)[-1]
    assert IMPALAConfig().make(seen).env_spec.observation.shape == (4, 84, 84)


def test_another_discount_than_the_agents_is_refused():
    shaping, replay = PotentialShaping(reward, 0.9), ReplayConfig("uniform")
    shaping.check(DQNConfig(discount=0.9), None, replay)
    with pytest.raises(ConfigError, match=r"discount=0\.9 is not agent\.discount=0\.95, so that"):
        shaping.check(DQNConfig(discount=0.95), None, replay)
    tunable = Tunable(DQNConfig(discount=0.95), {"learning_rate": (1e-4, 1e-2)})
    with pytest.raises(ConfigError, match=r"discount=0\.9 is not agent\.discount=0\.95, so that"):
        shaping.check(tunable, None, replay)
    tunable = Tunable(DQNConfig(discount=0.9), {"discount": (0.8, 0.99)})
    with pytest.raises(ConfigError, match=r"potential_shaping with Tunable: agent\.discount would"):
        shaping.check(tunable, None, replay)


def test_returns_that_end_at_a_time_limit_are_not_shaped_by_a_potential():
    shaping, replay = PotentialShaping(reward, 0.99), ReplayConfig()
    with pytest.raises(ConfigError, match=r"potential_shaping with ReinforceConfig: returns that"):
        shaping.check(ReinforceConfig(discount=0.99), None, replay)


@pytest.mark.parametrize("transform", [Plain(), Nameless()], ids=["plain", "nameless"])
def test_a_transform_without_settings_or_name_is_refused_before_flags_are_made(transform):
    with deferred_checks(), pytest.raises(ConfigError, match=r"transforms: \w+ must "):
        experiment(transform)
    policy = {"task": LearnedPolicy(CheckingConfig(), transforms=(transform,))}
    with deferred_checks(), pytest.raises(ConfigError, match=r"transforms: \w+ must "):
        Experiment(PythonEnvironment(CountingEnvironment), policies=policy)
