"""Optimisers as the algorithms use them."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from distrl.types import Params

OPTIMIZERS = ("adam", "rmsprop")


def make_optimizer(
    learning_rate: optax.ScalarOrSchedule, max_gradient_norm: float | None, name: str = "adam"
) -> optax.GradientTransformationExtraArgs:
    """Returns an optimiser, behind a clip of the gradients' global norm.

    Args:
      learning_rate: a number, or a schedule over updates.
      max_gradient_norm: gradients are scaled down to this norm; None: never.
      name: one of OPTIMIZERS. Both have an epsilon of 1e-5, RMSProp under the root, and correct
        their bias towards 0 at the start. RMSProp's `update` takes the number of updates made
        before as `count`, which Adam ignores.
    """
    if name == "adam":
        optimizer = optax.adam(learning_rate, eps=1e-5)
    else:
        scale = _scale_by_rms(decay=0.99, epsilon=1e-5)
        optimizer = optax.chain(scale, optax.scale_by_learning_rate(learning_rate))
    if max_gradient_norm is None:
        return optax.with_extra_args_support(optimizer)
    return optax.chain(optax.clip_by_global_norm(max_gradient_norm), optimizer)


def _scale_by_rms(decay: float, epsilon: float) -> optax.GradientTransformationExtraArgs:
    """Returns the division by the root of the moving average of the squared gradients.

    The average starts at 0, so the first ones are too small by 1 - decay ** updates: uncorrected,
    the first update is 1 / sqrt(1 - decay) = 10 times as large as the learning rate. It differs
    from `optax.scale_by_rms(bias_correction=True)` in that the learner's state counts the updates,
    not a second counter: the state is that of uncorrected RMSProp, whose checkpoints load.
    """

    def init(params: Params) -> optax.ScaleByRmsState:
        return optax.ScaleByRmsState(jax.tree.map(jnp.zeros_like, params))

    def update(
        grads: Params, state: Any, params: Params | None = None, *, count: Any, **_: Any
    ) -> tuple[Params, optax.ScaleByRmsState]:
        nu = jax.tree.map(
            lambda g, average: (1 - decay) * jnp.square(g) + decay * average, grads, state.nu
        )
        share = 1 - jnp.float32(decay) ** (count + 1)
        grads = jax.tree.map(
            lambda g, average: g * jax.lax.rsqrt(average / share + epsilon), grads, nu
        )
        return grads, optax.ScaleByRmsState(nu)

    return optax.GradientTransformationExtraArgs(init, update)
