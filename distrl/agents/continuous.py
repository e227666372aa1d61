"""Continuous control: MLPs for a policy, and critics of observation and action, with their loss."""

import math
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple, TypeVar

import haiku as hk
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.agents.agent import PRIORITIES, Logs
from distrl.agents.defaults import Defaults, has_pixels, sampled, step_bytes, unrolls_within
from distrl.agents.losses.means import mean_over
from distrl.agents.losses.prioritized import importance_weights, unroll_priorities
from distrl.agents.modules import torsos
from distrl.agents.modules.normals import BoundedActions
from distrl.agents.modules.recurrence import check_burn_in, check_unrolls
from distrl.agents.networks import NetworkConfig, check_network
from distrl.agents.settings import InputSettings, check_scalar_reward
from distrl.config import ActorsConfig, LearnerConfig
from distrl.errors import ConfigError
from distrl.field_checks import check_count
from distrl.learner_group.devices import merge_steps, unmerge_steps
from distrl.replay.config import ReplayConfig
from distrl.runtime.traceback_text import one_line
from distrl.specs import EnvironmentSpec
from distrl.types import Nest, Params

_Config = TypeVar("_Config")


SHARED = NetworkConfig(hidden_sizes=(128,), activation="relu", core_size=128)
"""The default of what policy and critics share, where there is something."""


class ContinuousDefaults(InputSettings):
    """Settings and defaults that DDPG, SAC and TD3 share; see `distrl.agents.defaults`.

    Attributes:
      network: what policy and critics share: a torso, for observations with images, and with the
        core "lstm" a memory, whose unrolls begin with the state that the actor stored. The critics'
        loss alone trains it; see `distrl.agents.encoders`. Without images and memory there is none,
        unless it has another `torso` than "auto" or names `inputs`: policy and critics take the
        observations, by MLPs of `hidden_sizes` each.
      burn_in: steps of each unroll that only bring the memory of network and target network up to
        date and are not learned from; less than the unroll has transitions.
      importance_exponent: an unroll sampled with probability p counts with the weight
        (p / the batch's least p) ** -importance_exponent (Schaul et al. 2016, beta). 1 corrects
        a prioritized table's bias; a uniform table has none.
      scale_integers: whether integers are scaled from their bounds to [0, 1]; False: only the
        bytes of images are, by 255.
    """

    RANDOM_STEPS: ClassVar[int] = 1_000  # environment steps before the first update

    hidden_sizes: tuple[int, ...]
    network: NetworkConfig
    burn_in: int

    def check_shared(self) -> None:
        """Raises ConfigError for those of these settings that cannot work."""
        check_network(self)
        if self.network.heads is not None:
            raise ConfigError(
                "agent.network.heads: policy and critics have their own layers, of "
                f"agent.hidden_sizes={self.hidden_sizes}; leave it None"
            )
        check_count(self, "burn_in", least=0)
        check_burn_in(self.burn_in, self.network)

    @property
    def untunable(self) -> dict[str, str]:
        """See `Tunable`."""
        reasons = {"initial_temperature": "the temperature begins with it, and is learned"}
        exploration = getattr(self, "exploration", None)
        if exploration is not None and not exploration.is_constant:
            reasons["exploration_noise"] = "the schedule of `exploration` only begins with it"
        return reasons

    def check_replay(self, replay: ReplayConfig, batch_size: int) -> None:
        """Raises ConfigError if unrolls are too short for `burn_in`."""
        check_unrolls(self.burn_in, 1, replay.unroll_length)

    @classmethod
    def preset(cls: type[_Config], env_spec: EnvironmentSpec) -> _Config:
        """Returns settings that suit an environment: the defaults suit all.

        Sources: SAC, table 1 of Haarnoja et al. 2018 (https://arxiv.org/abs/1812.05905), but for
        the critics' rate, CleanRL's sac_continuous_action.py; TD3 and DDPG, its authors'
        sfujim/TD3, as in CleanRL's td3_continuous_action.py and ddpg_continuous_action.py; TD3's
        rates of 1e-3, table 3 of its paper; its rates and the 10,000 random steps of both,
        rl-baselines3-zoo's hyperparams/td3.yml.
        """
        return cls()

    def defaults(
        self,
        env_spec: EnvironmentSpec,
        actors: ActorsConfig | None = None,
        learner: LearnerConfig | None = None,
    ) -> Defaults:
        """Returns the parts that suit these settings; see `Defaults`.

        There is one update of 256 transitions for each environment step; with images of 36 pixels
        and more one for every two steps, as in DrQ-v2 (Yarats et al. 2021,
        https://arxiv.org/abs/2107.09645), and with memory one of 320 for every five.
        """
        if self.network.core != "none":
            return self._of_unrolls(env_spec, actors, learner, 20, 16, 64)
        if has_pixels(env_spec):
            return self._of_unrolls(env_spec, actors, learner, 8, 32, 128)
        actors = actors or ActorsConfig(num_envs=4)
        learner = learner or LearnerConfig(batch_size=256)
        replay = sampled(
            actors,
            learner,
            "uniform",
            unroll_length=1,
            max_size=min(1_000_000, 2_000_000_000 // (2 * step_bytes(env_spec) + 100)),  # 2 GB
            min_size_to_sample=self.RANDOM_STEPS,
            samples_per_insert=256,
            error_buffer=4_096,
        )
        return Defaults(actors, learner, replay)

    def _of_unrolls(
        self,
        env_spec: EnvironmentSpec,
        actors: ActorsConfig | None,
        learner: LearnerConfig | None,
        length: int,
        batch_size: int,
        samples: int,
    ) -> Defaults:
        """Returns the parts for unrolls of several transitions, each sampled `samples` times."""
        actors = actors or ActorsConfig(num_envs=4)
        learner = learner or LearnerConfig(batch_size=batch_size)
        replay = sampled(
            actors,
            learner,
            "uniform",
            unroll_length=length,
            max_size=unrolls_within(500_000 // length, env_spec, length),
            min_size_to_sample=self.RANDOM_STEPS // length,
            samples_per_insert=samples,
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
            f"action: {algorithm} takes one BoundedArray of floats, got {one_line(repr(action))}; "
            "for other actions take impala or ppo, for discrete ones also dqn"
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

    The values are [..., num_critics]; actions are in the environment's units. Actions beyond their
    bounds, which other policies may have stored, count as the bounds, which were executed.

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
        done = jnp.clip(actions.encode(action), -1, 1)
        x = {"action": done, "observation": observation}
        values = [hk.to_module(critic)(name=f"critic_{number}")(x) for number in range(num_critics)]
        return jnp.concatenate(values, axis=-1)

    return _feed_forward(forward, env_spec.observation, env_spec.action)


def split_transitions(observation: Nest) -> tuple[Nest, Nest]:
    """Returns the observations at the start and at the end of each transition, [T, B, ...].

    Args: observation: [T + 1, B, ...].
    """
    return jax.tree.map(lambda x: x[:-1], observation), jax.tree.map(lambda x: x[1:], observation)


def critic_loss(
    values: jax.Array,
    targets: jax.Array,
    real: jax.Array,
    probability: jax.typing.ArrayLike,
    importance_exponent: float,
) -> tuple[jax.Array, Logs]:
    """Returns half the critics' summed squared errors, a mean over real transitions, and its logs.

    Args:
      values: float32 [T, B, num_critics], the critics' of the actions that were taken.
      targets: float32 [T, B], what each critic should have said, without gradients.
      real: bool [T, B], the transitions that count.
      probability: float32 [B], the probability with which each unroll was sampled.
      importance_exponent: see `ContinuousDefaults`.

    Returns:
      The loss, a scalar, and scalars to log, with the unrolls' new PRIORITIES, [B], among them.
    """
    mean = mean_over(real)
    error = jnp.where(real[..., None], targets[..., None] - values, 0)
    weight = importance_weights(probability, importance_exponent)
    loss = 0.5 * mean(weight * jnp.sum(jnp.square(error), axis=-1))
    td_error = jnp.mean(jnp.abs(error), axis=-1)
    logs = {
        "value": mean(values[..., 0]),
        "target": mean(targets),
        "td_error": mean(td_error),
        "real_fraction": jnp.mean(real),
        PRIORITIES: unroll_priorities(td_error, real),
    }
    return loss, logs


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
