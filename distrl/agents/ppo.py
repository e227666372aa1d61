"""PPO: several clipped updates from one batch of the policy's own actions.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347.
"""

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from distrl.agents.actor_critic import ActorCritic, check_on_policy, check_settings
from distrl.agents.agent import Logs, params_key
from distrl.agents.components import ByName, components_field
from distrl.agents.defaults import (
    Defaults,
    has_grid,
    has_pixels,
    is_discrete,
    queue,
    reward_transforms,
)
from distrl.agents.losses.means import mean_over, normalize
from distrl.agents.losses.minibatches import minibatch_size, take_minibatch
from distrl.agents.losses.returns import gae
from distrl.agents.losses.surrogate import clipped_surrogate
from distrl.agents.modules.torsos import has_convolutions
from distrl.agents.networks import NetworkConfig
from distrl.agents.optimizers import if_made
from distrl.config import ActorsConfig, LearnerConfig
from distrl.errors import SpecError
from distrl.field_checks import check_count, check_flag, check_number, check_positive_or_none
from distrl.random_keys import derive, numbered
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.types import Params, StepType, Trajectory


@dataclasses.dataclass(frozen=True)
class PPOConfig:
    """PPO's settings. Losses are means over the real transitions of a minibatch.

    A learner step takes the whole batch (in one process, as many unrolls as there are streams:
    all that the last parameters did) and passes over it `epochs` times, each time shuffled and
    split into `minibatches`, with one update each. An agent without memory shuffles transitions,
    one with memory whole unrolls, which begin with the state that the actor stored.

    Attributes:
      network: torso, core and sizes.
      discount: gamma, for each step, in [0, 1].
      gae_lambda: lambda of generalised advantage estimation, in [0, 1].
      normalize_advantages: scale advantages to mean 0 and standard deviation 1 over the batch.
        The divisor is at least a hundredth of the root mean square of the values' targets, so that
        noise stays small where all actions are about equally good.
      epochs: passes over a batch.
      minibatches: minibatches of each pass; must divide the batch's transitions, or its unrolls
        for an agent with memory.
      clip_ratio: beyond 1 plus or minus this, the ratio of the new to the behaviour policy's
        probability has no gradient in the direction that would improve the loss.
      clip_value: further than this from its prediction before the batch's first update, the value
        has no gradient in the direction that would improve the loss. In units of (transformed)
        rewards; None: unclipped.
      target_kl: no more updates from a batch once the divergence of the new policy from the
        behaviour policy, estimated on a minibatch, is above this; None: all of them. The actors'
        lag adds to it. It saves no time: dropped updates are computed, too, and count for
        `anneal_updates`.
      learning_rate: Adam's learning rate (epsilon 1e-5).
      anneal_updates: gradient steps over which the learning rate falls linearly to 0, epochs *
        minibatches for each batch; None: constant.
      anneal_over_budget: the learning rate falls linearly to 0 over `goal.max_env_steps`, if the
        run has one, instead of over `anneal_updates`.
      max_gradient_norm: gradients are scaled down to this global norm; None: never.
      entropy_cost: weight of the entropy bonus.
      baseline_cost: weight of the value loss, which is half the mean squared error.
      components: settings of the optimiser by component of the network, which are torso, core,
        policy_head and value_head; see `ComponentConfig`.
    """

    on_policy: ClassVar[bool] = True

    network: NetworkConfig = NetworkConfig()
    discount: float = 0.99
    gae_lambda: float = 0.95
    normalize_advantages: bool = True
    epochs: int = 4
    minibatches: int = 4
    clip_ratio: float = 0.2
    clip_value: float | None = None
    target_kl: float | None = None
    learning_rate: float = 1e-3
    anneal_updates: int | None = None
    anneal_over_budget: bool = False
    max_gradient_norm: float | None = 0.5
    entropy_cost: float = 0.01
    baseline_cost: float = 0.5
    components: ByName = components_field("actor_critic")

    def __post_init__(self) -> None:
        check_settings(self)
        check_number(self, "gae_lambda", lambda x: 0 <= x <= 1, "in [0, 1]")
        check_flag(self, "normalize_advantages")
        for field in ("epochs", "minibatches"):
            check_count(self, field)
        check_number(self, "clip_ratio", lambda x: x > 0, "above 0")
        check_positive_or_none(self, "clip_value")
        check_positive_or_none(self, "target_kl")

    def check_replay(self, replay: ReplayConfig, batch_size: int) -> None:
        """Raises ConfigError for tables PPO cannot learn from and batches it cannot split."""
        check_on_policy("PPO", replay)
        self.minibatch_size(replay.unroll_length, batch_size)

    def minibatch_size(self, unroll_length: int, batch_size: int) -> int:
        """Returns the size of a minibatch of this agent; see `minibatches.minibatch_size`."""
        return minibatch_size(self.minibatches, unroll_length, batch_size, self.whole_unrolls)

    @property
    def updates_per_batch(self) -> int:
        """Updates that a learner step makes."""
        return self.epochs * self.minibatches

    @property
    def whole_unrolls(self) -> bool:
        """Whether unrolls are shuffled whole: for a network with memory."""
        return self.network.core != "none"

    @classmethod
    def preset(cls, env_spec: EnvironmentSpec) -> "PPOConfig":
        """Returns settings that suit an environment.

        Sources: with pixels and for continuous actions openai/baselines'
        baselines/ppo2/defaults.py, as in CleanRL's ppo_atari.py and ppo_continuous_action.py; for
        MiniGrid lcswillems/rl-starter-files' scripts/train.py, but for a learning rate that falls.
        """
        if has_pixels(env_spec):
            return cls(learning_rate=2.5e-4, anneal_over_budget=True, clip_ratio=0.1)
        if has_grid(env_spec):
            symbols = NetworkConfig(one_hot_integers=True)
            return cls(symbols, minibatches=8, anneal_over_budget=True)
        if is_discrete(env_spec):
            return cls()
        return cls(
            epochs=10,
            minibatches=32,
            learning_rate=3e-4,
            anneal_over_budget=True,
            entropy_cost=0.0,
        )

    def defaults(
        self,
        env_spec: EnvironmentSpec,
        actors: ActorsConfig | None = None,
        learner: LearnerConfig | None = None,
    ) -> Defaults:
        """Returns the parts that suit these settings; see `Defaults`.

        A batch is one unroll of every stream: all that one version of the parameters did.
        """
        if has_pixels(env_spec) or has_grid(env_spec):
            num_envs, unroll_length = 4 if has_pixels(env_spec) else 8, 128
        elif is_discrete(env_spec):
            num_envs, unroll_length = 8, 64
        else:
            num_envs, unroll_length = 4, 256
        transforms = reward_transforms(env_spec)
        actors = actors or ActorsConfig(num_envs=num_envs)
        learner = learner or LearnerConfig(batch_size=actors.num_streams)
        return Defaults(actors, learner, queue(actors, learner, unroll_length), transforms)

    def make(self, env_spec: EnvironmentSpec) -> "PPO":
        """Returns the agent for an environment. Raises ConfigError if the two do not fit."""
        return PPO(self, env_spec)


class PPOState(NamedTuple):
    """The learner state."""

    opt_state: Any
    updates: jax.Array  # int32, minibatches so far; those that `target_kl` drops count too
    key: jax.Array  # uint32 [2], parent of the next batch's keys


class PPO(ActorCritic):
    """See PPOConfig and ActorCritic.

    A batch from the replay is first prepared: it gets its advantages and targets, which are the
    same for all its minibatches. Minibatches are parts of prepared batches.
    """

    config: PPOConfig

    def initial_learner_state(self, params: Params) -> PPOState:
        """See `Agent`. The key is drawn from the parameters, so that it depends on the seed."""
        state = super().initial_learner_state(params)
        return PPOState(state.opt_state, state.updates, params_key(params, "learner"))

    def prepare(self, params: Params, batch: Trajectory) -> Trajectory:
        """Returns the batch with its advantages and targets, and without its last step.

        Args:
          params: the parameters that give the values.
          batch: [T + 1, B, ...].

        Returns:
          [T, B, ...], one row for each transition; with the extras value, advantage (normalised,
          if so configured) and target, float32, beside those of the actors.

        Raises:
          SpecError: the actors store an extra of such a name.
        """
        config, timestep = self.config, batch.timestep
        _, value, _ = self.network.unroll(params, timestep, batch.state)
        advantage = gae(
            timestep.step_type,
            timestep.reward,
            config.discount * timestep.discount,
            value,
            config.gae_lambda,
        )
        timestep, action, stored, value, version = jax.tree.map(
            lambda x: x[:-1],
            (timestep, batch.action, batch.extras, value, batch.version),
        )
        target = advantage + value
        if config.normalize_advantages:
            advantage = normalize(advantage, target, timestep.step_type != StepType.LAST)
        made = {"value": value, "advantage": advantage, "target": target}
        for name in made.keys() & stored.keys():
            raise SpecError(f"the extra {name!r} of actor_step has a name of PPO's; take another")
        return batch._replace(
            timestep=timestep,
            action=action,
            extras=jax.lax.stop_gradient({**stored, **made}),
            version=version,
        )

    def minibatch(self, batch: Trajectory, index: jax.Array) -> Trajectory:
        """Returns a part of a prepared batch; see `take_minibatch`."""
        return take_minibatch(batch, index, self.config.whole_unrolls)

    def compute_gradients(
        self, params: Params, learner_state: PPOState, batch: Trajectory
    ) -> tuple[Params, Logs]:
        """See `Agent`; the batch comes from the replay, or is a minibatch."""
        if "advantage" not in batch.extras:
            batch = self.prepare(params, batch)
        return super().compute_gradients(params, learner_state, batch)

    def loss(self, params: Params, batch: Trajectory) -> tuple[jax.Array, Logs]:
        """Returns the loss on a minibatch, a mean over its real transitions, and logs."""
        config, distribution, extras = self.config, self.network.distribution, batch.extras
        policy, value, _ = self.network.unroll(params, batch.timestep, batch.state)
        real = batch.timestep.step_type != StepType.LAST
        mean = mean_over(real)
        # Masked before exp: what was stored for an action that was not taken may be infinite.
        log_ratio = distribution.log_prob(policy, batch.action) - extras["log_prob"]
        log_ratio = jnp.where(real, log_ratio, 0.0)
        ratio = jnp.exp(log_ratio)
        policy_loss = -mean(clipped_surrogate(log_ratio, extras["advantage"], config.clip_ratio))
        error = jnp.square(extras["target"] - value)
        if config.clip_value is not None:
            near = extras["value"] + jnp.clip(
                value - extras["value"], -config.clip_value, config.clip_value
            )
            error = jnp.maximum(error, jnp.square(extras["target"] - near))
        value_loss = 0.5 * mean(error)
        loss, logs = self._total_loss(policy, value, real, policy_loss, value_loss)
        more = {
            "advantage": mean(extras["target"] - extras["value"]),
            "kl_behaviour": mean(ratio - 1 - log_ratio),  # estimated; never negative
            "clip_fraction": mean(jnp.abs(ratio - 1) > config.clip_ratio),
        }
        return loss, {**logs, **more}

    def learner_step(
        self, params: Params, learner_state: PPOState, batch: Trajectory
    ) -> tuple[Params, PPOState, Logs]:
        """See `Agent`: `epochs` passes over the batch, one update for each minibatch.

        Logs are means over the minibatches, and the number of those that made an update.

        Raises:
          ConfigError: see `PPOConfig.minibatch_size`.
        """
        config = self.config
        transitions, unrolls = (n - k for n, k in zip(batch.version.shape, (1, 0)))
        size = config.minibatch_size(transitions, unrolls)
        batch = self.prepare(params, batch)
        items = jnp.arange(size * config.minibatches)
        shuffling = derive(learner_state.key, "shuffle")
        orders = jax.vmap(lambda epoch: jax.random.permutation(numbered(shuffling, epoch), items))(
            jnp.arange(config.epochs)
        )

        def update(carry: Any, index: jax.Array) -> tuple[Any, Any]:
            params, learner_state, going = carry
            part = self.minibatch(batch, index)
            grads, logs = self.compute_gradients(params, learner_state, part)
            after, opt_state, more = self.apply_gradients(params, learner_state, grads)
            after_state = self.update_learner_state(after, opt_state, learner_state)
            made = going
            if config.target_kl is not None:  # updates after the first refusal are dropped
                made = going & (logs["kl_behaviour"] <= config.target_kl)
                dropped = params, learner_state._replace(updates=after_state.updates)
                after, after_state = if_made(made, (after, after_state), dropped)
            return (after, after_state, made), ({**logs, **more}, going, made)

        learner_state = learner_state._replace(key=derive(learner_state.key, "next"))
        start = (params, learner_state, jnp.asarray(True))
        indices = orders.reshape(config.epochs * config.minibatches, size)
        (params, learner_state, _), (logs, looked_at, made) = jax.lax.scan(
            update, start, indices, unroll=self._inlines_minibatches()
        )
        mean = mean_over(looked_at)
        logs = {name: mean(x) for name, x in logs.items()}
        return params, learner_state, {**logs, "minibatches": jnp.sum(made)}

    def _inlines_minibatches(self) -> bool:
        """Returns whether the loop over minibatches is written out: for convolutions on a CPU.

        XLA's CPU compiler finds the fast form of their gradients only outside of loops: in a loop
        an update takes some ten times as long. The price is compilation time, for each update.
        """
        convolves = has_convolutions(self.config.network.torso, self.env_spec.observation)
        return convolves and jax.default_backend() == "cpu"
