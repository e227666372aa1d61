"""Normal policies over continuous actions: pure functions of the policy head's outputs.

Leading axes are arbitrary: `[B]` in an actor, `[T, B]` in a learner.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs as dm_specs

from distrl.agents.losses.batch_share import draw
from distrl.errors import ConfigError

MIN_LOG_STD, MAX_LOG_STD = -5.0, 1.0
"""Bounds of a Normal policy's log standard deviation, in units of half the action's range. The
entropy bonus would widen it forever, since actions outside the range are clipped anyway."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def clip_with_return(x: jax.Array, low: float, high: float) -> jax.Array:
    """Clips `x` to [low, high]; a descent can bring back what is out of bounds.

    At or beyond a bound, a gradient whose descent would lead further out is 0. One that leads back
    passes, whereas that of `jnp.clip` is 0 in both directions: what an optimiser has once moved
    past a bound would stay there forever.
    """
    return jnp.clip(x, low, high)


def _clip_forward(x: jax.Array, low: float, high: float) -> tuple[jax.Array, jax.Array]:
    return jnp.clip(x, low, high), x


def _clip_backward(low: float, high: float, x: jax.Array, grad: jax.Array) -> tuple[jax.Array]:
    leads_out = ((x >= high) & (grad < 0)) | ((x <= low) & (grad > 0))
    return (jnp.where(leads_out, 0, grad),)


clip_with_return.defvjp(_clip_forward, _clip_backward)


class NormalParams(NamedTuple):
    """Parameters in units of half the action's range around its centre, [..., D]."""

    mean: jax.Array
    log_std: jax.Array


class ActionUnits:
    """The units of a continuous action of any shape with D elements.

    In networks it is [..., D], in units of half its range around its centre: the bounds are -1 and
    1. Where a bound is missing the unit is 1: one bound is a unit from the centre, and without any
    the centre is 0.

    Attributes:
      size: D.
      log_half: sum of the logs of half the ranges: a log-density in the action's own units is less
        by this than one in the networks' units.
    """

    def __init__(self, spec: dm_specs.Array):
        """Args: spec: of the action, of floats.

        Raises:
          ConfigError: a minimum is not below its maximum.
        """
        bounds = getattr(spec, "minimum", -np.inf), getattr(spec, "maximum", np.inf)
        low, high = (
            np.broadcast_to(bound, spec.shape).astype(np.float32).astype(np.float64).reshape(-1)
            for bound in bounds
        )
        if not np.all(low < high):
            raise ConfigError(
                "action: a continuous action needs bounds with minimum < maximum in every "
                f"element, got minimum {low.tolist()} and maximum {high.tolist()}"
            )
        low = np.where(np.isfinite(low), low, np.where(np.isfinite(high), high - 2, -1))
        high = np.where(np.isfinite(high), high, low + 2)
        self.shape = tuple(spec.shape)
        self.dtype = np.dtype(spec.dtype)
        self.size = low.size
        self._centre = ((low + high) / 2).astype(np.float32)
        self._half = ((high - low) / 2).astype(np.float32)
        self.log_half = float(np.sum(np.log(self._half)))

    def encode(self, action: jax.typing.ArrayLike) -> jax.Array:
        """Returns the action as network input: in units of half its range, float32 [..., D]."""
        x = jnp.asarray(action, jnp.float32)
        leading = x.shape[: x.ndim - len(self.shape)]
        return jnp.divide(x.reshape(*leading, self.size) - self._centre, self._half)

    def decode(self, x: jax.Array) -> jax.Array:
        """Returns the action [..., *shape] for [..., D] in units of half its range."""
        action = self._centre + self._half * x
        return jnp.asarray(action.reshape(*x.shape[:-1], *self.shape), self.dtype)

    def named_parameters(self, normal: NormalParams) -> dict[str, jax.Array]:
        """Returns `mean` and `std` of Normals, [..., *shape] in the action's units."""
        centre = self.decode(jnp.zeros_like(normal.mean))
        return {
            "mean": self.decode(normal.mean),
            "std": self.decode(jnp.exp(normal.log_std)) - centre,
        }


class BoundedActions(ActionUnits):
    """The units of an action that has both bounds in every element."""

    def __init__(self, spec: dm_specs.BoundedArray):
        """Args: spec: of the action.

        Raises:
          ConfigError: a bound is missing, or a minimum is not below its maximum.
        """
        super().__init__(spec)
        missing = ~(np.isfinite(spec.minimum) & np.isfinite(spec.maximum))
        if missing.any():
            raise ConfigError(
                "action: this algorithm needs finite bounds in every element, got minimum "
                f"{spec.minimum.tolist()} and maximum {spec.maximum.tolist()}; impala, ppo, a2c "
                "and reinforce need none"
            )


class DiagonalNormal(ActionUnits):
    """Independent Normals over a continuous action, with or without bounds.

    Samples are not clipped to the bounds, so that their log-probabilities are exact; the
    environment's wrapper clips. Log-probabilities and entropy are densities in the action's units.
    """

    @property
    def params_shape(self) -> NormalParams:
        """Shapes of the parameters, without leading axes."""
        shape: Any = (self.size,)
        return NormalParams(shape, shape)

    def sample_with_log_prob(self, rng: jax.Array, params: NormalParams) -> tuple[jax.Array, Any]:
        """Returns an action [..., *shape] and its log-probability [...]."""
        noise = draw(jax.random.normal, rng, params.mean.shape)
        action = self.decode(params.mean + jnp.exp(params.log_std) * noise)
        return action, self._density(params, noise)

    def mode(self, params: NormalParams) -> jax.Array:
        return self.decode(params.mean)

    def log_prob(self, params: NormalParams, action: jax.Array) -> jax.Array:
        noise = (self.encode(action) - params.mean) * jnp.exp(-params.log_std)
        return self._density(params, noise)

    def entropy(self, params: NormalParams) -> jax.Array:
        per_element = params.log_std + 0.5 * math.log(2 * math.pi * math.e)
        return jnp.sum(per_element, axis=-1) + self.log_half

    def _density(self, params: NormalParams, noise: jax.Array) -> jax.Array:
        return _normal_density(params, noise) - self.log_half


class SquashedNormal(BoundedActions):
    """Independent Normals through a tanh, scaled to the bounds: no action is outside them.

    The parameters are those of the Normals; log-probabilities are densities in the action's own
    units, as in DiagonalNormal.
    """

    def sample_with_log_prob(self, rng: jax.Array, params: NormalParams) -> tuple[jax.Array, Any]:
        """Returns an action [..., *shape] and its log-probability [...]; both have gradients."""
        noise = draw(jax.random.normal, rng, params.mean.shape)
        x = params.mean + jnp.exp(params.log_std) * noise
        return self.decode(jnp.tanh(x)), self._density(params, noise, x)

    def log_prob(self, params: NormalParams, action: jax.Array) -> jax.Array:
        """Returns the log-density of actions; those at a bound count as 1e-6 of it inside."""
        x = jnp.arctanh(jnp.clip(self.encode(action), -1 + 1e-6, 1 - 1e-6))
        return self._density(params, (x - params.mean) * jnp.exp(-params.log_std), x)

    def _density(self, params: NormalParams, noise: jax.Array, x: jax.Array) -> jax.Array:
        # log(1 - tanh(x)^2), without the square: that is 1 in float32 as soon as |x| is 9.
        slope = 2 * (math.log(2) - x - jax.nn.softplus(-2 * x))
        return _normal_density(params, noise) - jnp.sum(slope, axis=-1) - self.log_half

    def mode(self, params: NormalParams) -> jax.Array:
        """Returns the Normals' mode through the tanh: the median of the actions."""
        return self.decode(jnp.tanh(params.mean))


def _normal_density(params: NormalParams, noise: jax.Array) -> jax.Array:
    """Returns the Normals' log-density at `mean + exp(log_std) * noise`, [..., D] to [...]."""
    per_element = -0.5 * jnp.square(noise) - params.log_std - 0.5 * math.log(2 * math.pi)
    return jnp.sum(per_element, axis=-1)
