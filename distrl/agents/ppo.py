"""PPO: several clipped updates from one batch of the policy's own actions.

Schulman et al. 2017, https://arxiv.org/abs/1707.06347.
"""

import dataclasses
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from distrl.agents.actor_critic import ActorCritic, check_on_policy, check_settings, gae
from distrl.agents.agent import Logs, params_key
from distrl.agents.means import mean_over, normalize
from distrl.agents.networks import NetworkConfig
from distrl.agents.settings import check_count, check_number
from distrl.errors import ConfigError
from distrl.learner_group.devices import split
from distrl.replay.buffer import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.types import TIME_FIELDS, Params, StepType, Trajectory


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
      gae_lambda: of generalised advantage estimation, in [0, 1].
      normalize_advantages: to mean 0 and standard deviation 1 over the batch.
      epochs: passes over a batch.
      minibatches: of each pass; must divide the batch's transitions, or its unrolls for an agent
        with memory.
      clip_ratio: the ratio of new to behaviour probability has no gradient beyond 1 -+ this, where
        going further would pay.
      clip_value: the same for the value's distance from the one at the batch's start; None: not
        clipped. In units of the (transformed) rewards.
      target_kl: no more updates from a batch once the divergence of the new policy from the
        behaviour's, estimated on a minibatch, is above this; None: all of them. Lag of the actors
        counts. It saves no time: what is dropped is computed.
      learning_rate: Adam's (epsilon 1e-5).
      anneal_updates: the learning rate falls linearly to 0 over so many updates, of which a batch
        makes epochs * minibatches; None: constant.
      max_gradient_norm: gradients are scaled down to this global norm; None: never.
      entropy_cost: weight of the entropy bonus.
      baseline_cost: weight of the value loss, which is half the mean squared error.
    """

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
    max_gradient_norm: float | None = 0.5
    entropy_cost: float = 0.01
    baseline_cost: float = 0.5

    def __post_init__(self) -> None:
        check_settings(self)
        check_number(self, "gae_lambda", lambda x: 0 <= x <= 1, "in [0, 1]")
        if not isinstance(self.normalize_advantages, bool):
            raise ConfigError(
                "agent.normalize_advantages: expected True or False, got "
                f"{self.normalize_advantages!r}"
            )
        for field in ("epochs", "minibatches"):
            check_count(self, field)
        check_number(self, "clip_ratio", lambda x: x > 0, "above 0")
        for field in ("clip_value", "target_kl"):
            if getattr(self, field) is not None:
                check_number(self, field, lambda x: x > 0, "above 0, or None")

    def check_replay(self, replay: ReplayConfig, batch_size: int) -> None:
        """Refuses tables that PPO cannot learn from, and batches that it cannot split.

        Raises:
          ConfigError: with the arithmetic.
        """
        check_on_policy("PPO", replay)
        self.minibatch_size(replay.unroll_length, batch_size)

    def minibatch_size(self, unroll_length: int, batch_size: int) -> int:
        """Transitions of a minibatch, or unrolls for an agent with memory.

        Raises:
          ConfigError: `minibatches` does not divide the batch; with the arithmetic.
        """
        if self.network.core == "none":
            total = unroll_length * batch_size
            text = f"{batch_size} unrolls of {unroll_length} transitions are {total} transitions"
        else:
            total, text = batch_size, f"{batch_size} unrolls are shuffled whole (it has memory)"
        size, rest = divmod(total, self.minibatches)
        if rest:
            fitting = [n for n in range(1, total + 1) if total % n == 0]
            near = min(fitting, key=lambda n: abs(math.log(n / self.minibatches)))
            raise ConfigError(
                f"agent.minibatches={self.minibatches} does not divide a batch: {text}, "
                f"{total} / {self.minibatches} = {total / self.minibatches:.1f}; take "
                f"agent.minibatches={near} or another learner.batch_size"
            )
        return size

    def make(self, env_spec: EnvironmentSpec) -> "PPO":
        """The agent for an environment. Raises ConfigError where the two do not fit."""
        return PPO(self, env_spec)


def clipped_surrogate(log_ratio: jax.Array, advantage: jax.Array, clip_ratio: float) -> jax.Array:
    """PPO's objective (to be made large), element by element.

    Args:
      log_ratio: log of new over behaviour probability of the actions.
      advantage: of the actions.
      clip_ratio: beyond 1 -+ this the ratio has no gradient, where going further would pay.
    """
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip_ratio, 1 + clip_ratio)
    return jnp.minimum(ratio * advantage, clipped * advantage)


class PPOState(NamedTuple):
    """The learner state."""

    opt_state: Any
    updates: jax.Array  # int32, made so far
    key: jax.Array  # uint32 [2], of the shuffling


class PPO(ActorCritic):
    """See PPOConfig and ActorCritic.

    A batch from the replay is first `prepared`: with its advantages and targets, which are the
    same for all its minibatches. Minibatches are parts of prepared batches.
    """

    config: PPOConfig

    def initial_learner_state(self, params: Params) -> PPOState:
        """See `Agent`. The key is drawn from the parameters: another seed, other shuffling."""
        start = super().initial_learner_state(params)
        return PPOState(start.opt_state, start.updates, params_key(params, use=1))

    def prepare(self, params: Params, batch: Trajectory) -> Trajectory:
        """The batch with its advantages and targets by `params`, and without its last step.

        Args:
          params: of the values.
          batch: [T + 1, B, ...].

        Returns:
          [T, B, ...], one row for each transition; the extras are log_prob, value, advantage
          (normalised, if so configured) and target, all float32.
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
        timestep, action, log_prob, value, version = jax.tree.map(
            lambda x: x[:-1],
            (timestep, batch.action, batch.extras["log_prob"], value, batch.version),
        )
        target = advantage + value
        if config.normalize_advantages:
            advantage = normalize(advantage, timestep.step_type != StepType.LAST)
        extras = {"log_prob": log_prob, "value": value, "advantage": advantage, "target": target}
        return batch._replace(
            timestep=timestep,
            action=action,
            extras=jax.lax.stop_gradient(extras),
            version=version,
        )

    def minibatch(self, batch: Trajectory, index: jax.Array) -> Trajectory:
        """A part of a prepared batch [T, B, ...].

        Args:
          batch: prepared.
          index: int [M]. For an agent with memory unrolls, each below B; else transitions, below
            T * B: the one of row t and unroll b is t * B + b.

        Returns:
          [T, M, ...] or [1, M, ...]. The fields of whole unrolls, among them the recurrent state
          before the first step, go with their unrolls.
        """
        unrolls = batch.stream_id.shape[0]
        rows: Any = slice(None)
        columns = index
        if self.config.network.core == "none":
            rows, columns = index[None] // unrolls, index % unrolls
        return Trajectory(
            **{
                name: split(jax.tree.map(lambda x: x[rows, columns], nest), axis=1)
                if name in TIME_FIELDS
                else split(jax.tree.map(lambda x: x[columns], nest))
                for name, nest in batch._asdict().items()
            }
        )

    def compute_gradients(
        self, params: Params, learner_state: PPOState, batch: Trajectory
    ) -> tuple[Params, Logs]:
        """See `Agent`; of a batch from the replay as a whole, or of a minibatch."""
        if "advantage" not in batch.extras:
            batch = self.prepare(params, batch)
        return jax.grad(self.loss, has_aux=True)(params, batch)

    def loss(self, params: Params, batch: Trajectory) -> tuple[jax.Array, Logs]:
        """The loss on a minibatch, a mean over its real transitions, with what is logged of it."""
        config, distribution, extras = self.config, self.network.distribution, batch.extras
        policy, value, _ = self.network.unroll(params, batch.timestep, batch.state)
        real = batch.timestep.step_type != StepType.LAST
        mean = mean_over(real)
        # Masked before exp: what was stored for an action that nobody took may be infinite.
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
        entropy = mean(distribution.entropy(policy))
        loss = policy_loss + config.baseline_cost * value_loss - config.entropy_cost * entropy
        logs = {
            "loss": loss,
            "policy_loss": policy_loss,
            "value_loss": value_loss,
            "entropy": entropy,
            "value": mean(value),
            "advantage": mean(extras["target"] - extras["value"]),
            "kl_behaviour": mean(ratio - 1 - log_ratio),  # estimated; never negative
            "clip_fraction": mean(jnp.abs(ratio - 1) > config.clip_ratio),
            "real_fraction": jnp.mean(real),
        }
        return loss, logs

    def learner_step(
        self, params: Params, learner_state: PPOState, batch: Trajectory
    ) -> tuple[Params, PPOState, Logs]:
        """See `Agent`: `epochs` passes over the batch, one update for each minibatch.

        What is logged is the mean over the minibatches, and how many of them made an update.

        Raises:
          ConfigError: see `PPOConfig.minibatch_size`.
        """
        config = self.config
        transitions, unrolls = (n - k for n, k in zip(batch.version.shape, (1, 0)))
        size = config.minibatch_size(transitions, unrolls)
        batch = self.prepare(params, batch)
        keys = jax.random.split(learner_state.key, config.epochs + 1)
        items = jnp.arange(size * config.minibatches)
        orders = jax.vmap(lambda key: jax.random.permutation(key, items))(keys[1:])

        def update(carry: Any, index: jax.Array) -> tuple[Any, Any]:
            params, learner_state, going = carry
            part = self.minibatch(batch, index)
            grads, logs = self.compute_gradients(params, learner_state, part)
            after, opt_state, more = self.apply_gradients(params, learner_state, grads)
            after_state = self.update_learner_state(after, opt_state, learner_state)
            made = going
            if config.target_kl is not None:  # what comes after the first "no" is dropped
                made = going & (logs["kl_behaviour"] <= config.target_kl)
                after, after_state = jax.tree.map(
                    lambda new, old: jnp.where(made, new, old),
                    (after, after_state),
                    (params, learner_state),
                )
            return (after, after_state, made), ({**logs, **more}, going, made)

        start = (params, learner_state._replace(key=keys[0]), jnp.asarray(True))
        indices = orders.reshape(config.epochs * config.minibatches, size)
        (params, learner_state, _), (logs, looked_at, made) = jax.lax.scan(
            update, start, indices, unroll=self._unrolls_loops()
        )
        mean = mean_over(looked_at)
        logs = {name: mean(x) for name, x in logs.items()}
        return params, learner_state, {**logs, "minibatches": jnp.sum(made)}

    def _unrolls_loops(self) -> bool:
        """True for convolutions on a CPU.

        XLA's CPU compiler finds the fast form of their gradients only outside of loops: in a loop
        an update takes some ten times as long. The price is time to compile, for each update.
        """
        pixels = any(len(leaf.shape) >= 3 for leaf in jax.tree.leaves(self.env_spec.observation))
        return pixels and jax.default_backend() == "cpu"
