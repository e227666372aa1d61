"""The settings of JAX that this code depends on, whatever the user has set."""

import contextlib

import jax

_PRNG, _RANKS, _GUARD = "threefry2x32", "allow", "allow"
# The first makes keys uint32 [2], and gives a seed the same numbers everywhere.
_SETTINGS = {
    "jax_default_prng_impl": _PRNG,
    "jax_numpy_rank_promotion": _RANKS,
    "jax_transfer_guard": _GUARD,
    "jax_transfer_guard_host_to_device": _GUARD,
    "jax_transfer_guard_device_to_host": _GUARD,
    "jax_transfer_guard_device_to_device": _GUARD,
}


def use_own_settings() -> None:
    """Applies the settings to this process, in which only distrl uses JAX."""
    for name, value in _SETTINGS.items():
        if not _is_own(name):
            jax.config.update(name, value)


def own_settings() -> contextlib.AbstractContextManager[object]:
    """Returns a context with the settings, for calls from the user's code."""
    if all(map(_is_own, _SETTINGS)):  # entering a context takes 20 us, a look 1 us
        return contextlib.nullcontext()
    stack = contextlib.ExitStack()
    stack.enter_context(jax.default_prng_impl(_PRNG))
    stack.enter_context(jax.numpy_rank_promotion(_RANKS))
    stack.enter_context(jax.transfer_guard(_GUARD))
    return stack


def _is_own(name: str) -> bool:
    return getattr(jax.config, name) in (_SETTINGS[name], None)
