"""PPO's clipped surrogate objective."""

import jax
import jax.numpy as jnp


def clipped_surrogate(log_ratio: jax.Array, advantage: jax.Array, clip_ratio: float) -> jax.Array:
    """Returns PPO's objective (to be maximised), element by element.

    Args:
      log_ratio: log of new over behaviour probability of the actions.
      advantage: advantages of the actions.
      clip_ratio: beyond 1 plus or minus this, the ratio has no gradient that leads further away.
    """
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - clip_ratio, 1 + clip_ratio)
    return jnp.minimum(ratio * advantage, clipped * advantage)
