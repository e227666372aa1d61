"""Networks for continuous control: MLPs for a policy, and for critics of observation and action."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents import torsos
from distrl.agents.defaults import Defaults, sampled, step_bytes
from distrl.agents.distributions import BoundedActions
from distrl.agents.settings import InputSettings, check_scalar_reward
from distrl.config import ActorsConfig, LearnerConfig
from distrl.errors import ConfigError
from distrl.learner_group.devices import merge_steps, unmerge_steps
from distrl.specs import EnvironmentSpec
from distrl.types import Nest, Params

_Config = TypeVar("_Config")


class ContinuousDefaults(InputSettings):
    """Defaults that DDPG, SAC and TD3 share; see `distrl.agents.defaults`."""

    @classmethod
    def preset(cls: type[_Config], env_spec: EnvironmentSpec) -> _Config:
        """Returns settings that suit an environment: the defaults suit all."""
        return cls()

    def defaults(
        self,
        env_spec: EnvironmentSpec,
        actors: ActorsConfig | None = None,
        learner: LearnerConfig | None = None,
    ) -> Defaults:
        """Returns the parts that suit these settings; see `Defaults`.

        There is one update of 256 transitions for each environment step.
        """
        actors = actors or ActorsConfig(num_envs=4)
        learner = learner or LearnerConfig(batch_size=256)
        replay = sampled(
            actors,
            learner,
            "uniform",
            unroll_length=1,
            max_size=min(1_000_000, 2_000_000_000 // (2 * step_bytes(env_spec) + 100)),  # 2 GB
            min_size_to_sample=1_000,
            samples_per_insert=256,
            error_buffer=4_096,
        )
        return Defaults(actors, learner, replay)


class FeedForward(NamedTuple):
    """Pure functions over parameters.

    Attributes:
      init: rng -> params.
      apply: (params, *inputs [..., *]) -> outputs [..., *], with any leading axes.
    """

    init: Callable[[jax.Array], Params]
    apply: Callable[..., jax.Array]


def check_env_spec(env_spec: EnvironmentSpec, algorithm: str) -> None:
    """Refuses environments that the algorithm of this name cannot control.

    Raises:
      ConfigError: the action is not one bounded array of floats, or the reward not one number.
    """
    check_scalar_reward(env_spec, algorithm)
    action = env_spec.action
    if not (isinstance(action, dm_specs.BoundedArray) and np.issubdtype(action.dtype, np.floating)):
        raise ConfigError(
            f"action: {algorithm} takes one BoundedArray of floats, got "
            + " ".join(repr(action).split())
        )


def make_policy(
    env_spec: EnvironmentSpec,
    hidden_sizes: Sequence[int],
    activation: str,
    num_outputs: int,
    scale_integers: bool = True,
) -> FeedForward:
    """Returns a network with outputs `apply(params, observation)`, [..., num_outputs], near 0.

    Raises:
      ConfigError: observations are not scalars or vectors, or a nest of them.
    """
    make_torso = torsos.for_observation(
        "mlp", hidden_sizes, activation, env_spec.observation, scale_integers=scale_integers
    )

    def forward(observation: Nest) -> jax.Array:
        head = hk.Linear(num_outputs, w_init=torsos.scaled(0.01), name="policy_head")
        return head(make_torso()(observation))

    return _feed_forward(forward, env_spec.observation)


def make_critics(
    env_spec: EnvironmentSpec,
    actions: BoundedActions,
    hidden_sizes: Sequence[int],
    activation: str,
    num_critics: int,
    scale_integers: bool = True,
) -> FeedForward:
    """Returns independent critics with values `apply(params, observation, action)`.

    The values are [..., num_critics]; actions are in the environment's units.

    Raises:
      ConfigError: observations are not scalars or vectors, or a nest of them.
    """
    encoded = dm_specs.Array((actions.size,), np.float32)
    inputs = {"action": encoded, "observation": env_spec.observation}
    make_torso = torsos.for_observation(
        "mlp", hidden_sizes, activation, inputs, scale_integers=scale_integers
    )

    def critic(x: Nest) -> jax.Array:
        return hk.Linear(1, w_init=torsos.scaled(1.0), name="value_head")(make_torso()(x))

    def forward(observation: Nest, action: jax.Array) -> jax.Array:
        x = {"action": actions.encode(action), "observation": observation}
        values = [hk.to_module(critic)(name=f"critic_{number}")(x) for number in range(num_critics)]
        return jnp.concatenate(values, axis=-1)

    return _feed_forward(forward, env_spec.observation, env_spec.action)


def now_and_then(observation: Nest) -> tuple[Nest, Nest]:
    """Returns the observations at the start and at the end of each transition, [T, B, ...].

    Args: observation: [T + 1, B, ...].
    """
    return jax.tree.map(lambda x: x[:-1], observation), jax.tree.map(lambda x: x[1:], observation)


def _feed_forward(forward: Callable[..., jax.Array], *input_specs: Nest) -> FeedForward:
    """Returns the network of a Haiku function from inputs [N, ...] to outputs [N, F]."""
    transformed: Any = hk.without_apply_rng(hk.transform(forward))
    examples = [specs.zeros(spec, 1) for spec in input_specs]

    @jax.jit  # without it, some hundred small operations would be compiled one by one
    def init(rng: jax.Array) -> Params:
        return transformed.init(rng, *examples)

    def apply(params: Params, *inputs: Nest) -> jax.Array:
        leading = _leading(inputs[0], examples[0])
        if len(leading) == 2:  # steps and streams
            return unmerge_steps(transformed.apply(params, *merge_steps(inputs)), *leading)
        rows = math.prod(leading)
        merged = jax.tree.map(lambda x: x.reshape(rows, *x.shape[len(leading) :]), inputs)
        return transformed.apply(params, *merged).reshape(*leading, -1)

    return FeedForward(init, apply)


def _leading(inputs: Nest, example: Nest) -> tuple[int, ...]:
    """Returns the axes of `inputs` before those of one example [1, ...]."""
    leaf: Any = jax.tree.leaves(inputs)[0]
    return leaf.shape[: leaf.ndim - (jax.tree.leaves(example)[0].ndim - 1)]
