"""Optimisers as the algorithms use them."""

import optax

OPTIMIZERS = ("adam", "rmsprop")


def make_optimizer(
    learning_rate: optax.ScalarOrSchedule, max_gradient_norm: float | None, name: str = "adam"
) -> optax.GradientTransformation:
    """Returns an optimiser, behind a clip of the gradients' global norm.

    Args:
      learning_rate: a number, or a schedule over updates.
      max_gradient_norm: gradients are scaled down to this norm; None: never.
      name: one of OPTIMIZERS. Both have an epsilon of 1e-5, RMSProp under the root.
    """
    if name == "adam":
        optimizer = optax.adam(learning_rate, eps=1e-5)
    else:
        optimizer = optax.rmsprop(learning_rate, decay=0.99, eps=1e-5)
    if max_gradient_norm is None:
        return optimizer
    return optax.chain(optax.clip_by_global_norm(max_gradient_norm), optimizer)
