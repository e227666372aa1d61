"""What the outputs of a Q-network are: mean returns, or distributions over returns (C51)."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax

from distrl.agents.losses.returns import n_step_bootstrap, n_step_targets
from distrl.agents.losses.rlax_import import rlax
from distrl.types import StepType, TimeStep


class TDErrors(NamedTuple):
    """Temporal differences of a batch's transitions, all [T, B]."""

    loss: jax.Array  # differentiable with respect to the online network's outputs
    target: jax.Array  # as values
    error: jax.Array  # target - value; 0 at transitions that are not real
    surprise: jax.Array  # what priorities follow from; 0 at transitions that are not real


class ActionValues(Protocol):
    """What the outputs of a Q-network are."""

    def values(self, outputs: jax.Array) -> jax.Array:
        """Returns the network's outputs as action values, [..., num_actions]."""

    def errors(
        self, timestep: TimeStep, outputs: jax.Array, value: jax.Array, bootstrap: jax.Array
    ) -> TDErrors:
        """Returns the temporal differences of a batch.

        Args:
          timestep: [T + 1, B, ...].
          outputs: [T, B, *], the online network's for the actions taken.
          value: [T, B], the same as values.
          bootstrap: [T + 1, B, *], the target network's for the actions to bootstrap from.
        """


class _Returns:
    """What both kinds of values have in common: discount, n-step returns and their rescaling."""

    def __init__(self, discount: float, n_step: int, rescale: bool):
        """Args:
        discount: gamma, for each step.
        n_step: rewards that a target sums.
        rescale: the outputs are h of returns; see `DQNConfig.value_rescaling`.
        """
        self._gamma, self._n_step = discount, n_step
        self._scale: Callable[[Any], jax.Array]
        self._unscale: Callable[[Any], jax.Array]
        self._scale, self._unscale = rlax.SIGNED_HYPERBOLIC_PAIR if rescale else rlax.IDENTITY_PAIR


class MeanReturns(_Returns):
    """Outputs are mean returns, [..., num_actions]."""

    def __init__(self, discount: float, n_step: int, rescale: bool, huber_delta: float | None):
        """Args:
        discount, n_step, rescale: as in `_Returns`.
        huber_delta: errors above it count linearly; None: half the squared error everywhere.
        """
        super().__init__(discount, n_step, rescale)
        self._huber_delta = huber_delta

    def values(self, outputs: jax.Array) -> jax.Array:
        """See `ActionValues`."""
        return outputs

    def errors(
        self, timestep: TimeStep, outputs: jax.Array, value: jax.Array, bootstrap: jax.Array
    ) -> TDErrors:
        """See `ActionValues`."""
        unscaled, discount = self._unscale(bootstrap), self._gamma * timestep.discount
        columns = (timestep.step_type, timestep.reward, discount, unscaled)
        target = self._scale(n_step_targets(*columns, self._n_step))
        real = timestep.step_type[:-1] != StepType.LAST
        error = jnp.where(real, target - value, 0)
        if self._huber_delta is None:
            loss = 0.5 * jnp.square(error)
        else:
            loss = optax.huber_loss(error, delta=self._huber_delta)
        return TDErrors(loss, target, error, error)


class ReturnDistributions(_Returns):
    """Outputs are logits over returns, [..., num_actions, num_atoms].

    Bellemare et al. 2017, https://arxiv.org/abs/1707.06887.
    """

    def __init__(self, discount: float, n_step: int, rescale: bool, atoms: npt.NDArray[Any]):
        """Args:
        discount, n_step, rescale: as in `_Returns`.
        atoms: float32 [num_atoms], the returns, evenly spaced.
        """
        super().__init__(discount, n_step, rescale)
        self._atoms = atoms

    def values(self, outputs: jax.Array) -> jax.Array:
        """See `ActionValues`."""
        return jax.nn.softmax(outputs) @ self._atoms

    def errors(
        self, timestep: TimeStep, outputs: jax.Array, value: jax.Array, bootstrap: jax.Array
    ) -> TDErrors:
        """See `ActionValues`."""
        goal = self._target_probs(timestep, bootstrap)
        log_probs = jax.nn.log_softmax(outputs)
        real = timestep.step_type[:-1] != StepType.LAST
        loss = jnp.where(real, optax.kl_divergence(log_probs, goal), 0)
        target = goal @ self._atoms
        return TDErrors(loss, target, jnp.where(real, target - value, 0), loss)

    def _target_probs(self, timestep: TimeStep, logits: jax.Array) -> jax.Array:
        """Returns probabilities [T, B, num_atoms] for logits [T + 1, B, num_atoms]."""
        discount = self._gamma * timestep.discount
        ends = n_step_bootstrap(timestep.step_type, timestep.reward, discount, self._n_step)
        probs = jnp.take_along_axis(jax.nn.softmax(logits), ends.end[..., None], axis=0)
        returns = ends.reward[..., None] + ends.factor[..., None] * self._unscale(self._atoms)
        project = jax.vmap(jax.vmap(rlax.categorical_l2_project, (0, 0, None)), (0, 0, None))
        return jax.lax.stop_gradient(project(self._scale(returns), probs, self._atoms))


def make_action_values(config: Any) -> ActionValues:
    """Returns what the outputs of the network of a `DQNConfig` are."""
    shared = (config.discount, config.n_step, config.value_rescaling)
    if config.num_atoms == 1:
        return MeanReturns(*shared, config.huber_delta)
    atoms = np.linspace(config.value_min, config.value_max, config.num_atoms, dtype=np.float32)
    return ReturnDistributions(*shared, atoms)


def select(values: jax.Array, one_hot: jax.Array) -> jax.Array:
    """Returns values [T, B, num_actions, ...] of the actions in `one_hot` [T, B, num_actions].

    On a CPU this is cheaper than a gather.
    """
    if values.ndim == one_hot.ndim:
        return jnp.sum(values * one_hot, axis=-1)
    return jnp.sum(values * one_hot[..., None], axis=-2)
