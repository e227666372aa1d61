"""JAX's persistent cache of compiled functions."""

import jax


def compile_afresh() -> None:
    """Has this process compile all functions itself.

    What `JAX_COMPILATION_CACHE_DIR` keeps may have been compiled under other settings and round
    differently, so that two runs of the same program need not agree in every bit.
    """
    jax.config.update("jax_enable_compilation_cache", False)
