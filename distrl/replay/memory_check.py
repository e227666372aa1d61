"""Checks that a table fits into this machine's memory, beside what else a run needs."""

from distrl.errors import ConfigError
from distrl.runtime.host_resources import free_memory, memory_limit

_REST = 1.5e9  # bytes of a run's other processes: each with JAX takes 0.2 to 0.5 GB
_REST_SHARE = 0.25  # share of the memory that these need at most


def check_fits_memory(max_size: int, nbytes: int) -> None:
    """Raises ConfigError if a table can never fit, whatever else runs now.

    Args:
      max_size: the table's capacity in unrolls.
      nbytes: the table's size.
    """
    limit = memory_limit()
    rest = _rest(limit)
    if nbytes > limit - rest:
        unroll = nbytes / max_size
        raise ConfigError(
            f"replay.max_size={max_size} unrolls of {size(unroll)} need {size(nbytes)}, and this "
            f"machine has {size(limit)}, of which the rest of the run needs about {size(rest)}; "
            f"at most {int((limit - rest) / unroll)} unrolls fit"
        )


def shortage(nbytes: int) -> str | None:
    """Returns a warning if there is too little free memory now for tables of this size."""
    free = free_memory()
    rest = _rest(memory_limit())
    if nbytes <= free - rest:
        return None
    return (
        f"the full replay table needs {size(nbytes)} and the rest of the run about {size(rest)}, "
        f"but only {size(free)} of memory are free now: unless other programs free some, the "
        "kernel may end this one; use a smaller replay.max_size"
    )


def size(nbytes: float) -> str:
    """Returns a number of bytes as text, in a unit that suits it."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if nbytes >= factor:
            return f"{nbytes / factor:.1f} {unit}"
    return f"{nbytes:.0f} B"


def _rest(limit: int) -> float:
    return min(_REST, _REST_SHARE * limit)
