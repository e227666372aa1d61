"""How an agent's functions are compiled, and in how many threads they run on a CPU."""

import functools
import os
import threading
from collections.abc import Iterable
from typing import Any

import jax

from distrl.agents.agent import Agent
from distrl.agents.modules import images
from distrl.agents.structs import first_step, has_memory, params_struct
from distrl.errors import ConfigError
from distrl.runtime.compilation_cache import share_by_threads
from distrl.runtime.freed_memory import keep_freed_memory
from distrl.runtime.host_resources import keep_to_cores, native_threads, threads_named
from distrl.runtime.traceback_text import one_line

_HAS_BOTH = jax.__version_info__ < (0, 6)  # later ones have the new runtime only
# The widest layer whose arithmetic is better not divided among threads.
_SMALL = 256 if _HAS_BOTH and (os.cpu_count() or 1) <= 2 else 128
_LONG = 10_000_000  # parameters times transitions of an update that takes about 1 ms
_COMPUTES = "XLAEigen"  # in the names of threads that share a computation
_THREADS = "PJRT_NPROC"  # threads of a client for the CPU; read when JAX makes its clients
_starting = threading.Lock()
_started = False
_computing_threads: set[int] = set()


def start_backend(agents: Iterable[Agent]) -> None:
    """Makes JAX's clients, with one thread on the CPU where all layers of the agents are small.

    More threads cost small networks more than they bring: on two cores with JAX 0.12, an update of
    PPO for HalfCheetah takes 24 to 31 ms in two threads and 20 in one, which halves its CPU time,
    and an inference for 16 streams 180 us and 100. With JAX 0.5 that holds for layers of 256 units,
    too: SAC for HalfCheetah makes 160 updates a second in two threads and 208 in one, medians of
    four rounds. Whether it does on more cores was not measured. R2D2 for CartPole, whose LSTM of
    128 units has gates of 512, makes 160 to 171 updates a second in two threads and 202 to 209 in
    one with JAX 0.12, under `heavy_env`; with JAX 0.5 125 and 98.

    Where some layers are larger, freed memory stays in the process, see `keep_freed_memory`.

    Call it before the process's first computation, and after it has forked; it does nothing later.
    A number of threads that the user has set stays.

    Args:
      agents: all that this process may run.

    Raises:
      ConfigError: JAX has no device of the platforms that JAX_PLATFORMS names.
    """
    global _started
    with _starting:
        if _started:
            return
        _started = True
        are_small = all(map(_is_small, agents))
        if not are_small:
            keep_freed_memory()
        if _THREADS in os.environ or not are_small:
            make_clients()
            return
        os.environ[_THREADS] = "1"
        before = native_threads()
        try:
            make_clients()
        finally:
            del os.environ[_THREADS]  # child processes may have other agents
        if not _HAS_BOTH and jax.default_backend() == "cpu":
            _computing_threads.update(native_threads() - before)


def is_long(agent: Agent, transitions: int) -> bool:
    """Whether an update on so many transitions takes long enough to do other things meanwhile.

    To have it computed by another thread than the calling one costs about 0.1 ms. On two cores with
    JAX 0.12 an update of DQN for CartPole takes 0.3 ms, for 2 million parameters times transitions,
    and one of TD3 for Pendulum 3 ms, for 52 million.
    """
    size = sum(leaf.size for leaf in jax.tree.leaves(params_struct(agent)))
    return size * transitions >= _LONG


def computing_threads() -> set[int]:
    """Returns the native ids of the threads that compute instead of those that call JAX.

    Empty where the calling threads compute themselves, as with JAX's older runtime, and where
    several threads may compute at a time, see `start_backend`.
    """
    return set(_computing_threads)


def make_clients() -> None:
    """Makes JAX's clients, unless it has them.

    Raises:
      ConfigError: see `start_backend`.
    """
    _share_compiled()
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # JAX has no message where all platforms fail
        chosen = jax.config.jax_platforms  # type: ignore[attr-defined]
        if not chosen:
            raise
        text = one_line(error)
        raise ConfigError(
            f"JAX_PLATFORMS={chosen}: JAX has no such device here{text and ': '}{text}; name one "
            "that it has, such as cpu, or leave it unset"
        ) from error


@functools.cache  # the clients that exist keep their threads
def _share_compiled() -> None:
    share_by_threads(os.environ.get(_THREADS) or str(len(os.sched_getaffinity(0))))


def spread_threads() -> None:
    """Keeps each of XLA's threads on a core of its own, on machines with two.

    Other threads that wake and sleep between them, such as actors', had the system leave both on
    one core for seconds: SAC for Pendulum makes 255 to 310 updates a second under `heavy_env` then,
    and 350 with a core for each. Call it where actors need little of the cores: IMPALA for Pong,
    whose actors need much, makes 6 % fewer updates with it. With JAX's older runtime, whose threads
    have no names, it does nothing. Whether it helps on more cores was not measured.
    """
    threads, cores = sorted(threads_named(_COMPUTES)), sorted(os.sched_getaffinity(0))
    if len(threads) == len(cores) == 2:
        for thread, core in zip(threads, cores, strict=True):
            keep_to_cores(thread, {core})


def compiler_options(agent: Agent) -> dict[str, bool | str] | None:
    """Returns `compiler_options` for `jax.jit` of an agent's functions, None: XLA's own.

    On CPUs, XLA's newer runtime interprets a list of small operations, of which the older one makes
    one function. For vectors, that takes half the time of an update of PPO and of an inference for
    64 streams; the newer one is 15 % faster at the convolutions of large images.

    Products with small matrices stay in one thread, whatever `start_backend` has done: waking
    others takes DQN's update of CartPole from 440 to 610 us, and one thread's code for them is a
    tenth faster at inferences, too.

    JAX 0.12 has two libraries for convolutions. YNNPACK, to which XLA gives them, takes half again
    as long at the gradients of 256 frames of Atari, so it gets the matrix products only. oneDNN
    computes convolutions in bfloat16, with AMX where the CPU has it, in a quarter of the time.
    """
    if jax.default_backend() != "cpu":
        return None
    has_large_images = images.has_large(agent.env_spec.observation)
    if not _HAS_BOTH:
        return _options_for_images(agent) if has_large_images else None
    if has_large_images:
        return None
    options: dict[str, bool | str] = {"xla_cpu_use_thunk_runtime": False}
    if _is_small(agent):
        options["xla_cpu_multi_thread_eigen"] = False
    return options


def update_options(agent: Agent) -> dict[str, bool | str] | None:
    """As `compiler_options`, for an agent's updates.

    XLA's older runtime ends the process when it compiles the gradients of some recurrent networks,
    such as an LSTM's for 16 unrolls of 48 steps ("could not find evaluated value for: %while").
    """
    return None if _HAS_BOTH and has_memory(agent) else compiler_options(agent)


def may_overwrite() -> bool:
    """Whether functions may overwrite arrays that they are given: `donate_argnums` of `jax.jit`.

    With JAX 0.5 on CPUs, updates that came from the compilation cache, and were given memory that
    was not JAX's own, made wrong numbers and ended the process.
    """
    return not _HAS_BOTH


def _options_for_images(agent: Agent) -> dict[str, bool | str] | None:
    options: dict[str, bool | str] = {
        "xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"
    }
    if _acts_in_bfloat16(agent):
        options["xla_cpu_experimental_onednn_custom_call"] = True
    return options if _are_known(tuple(options.items())) else None


def _acts_in_bfloat16(agent: Agent) -> bool:
    """Whether `actor_step` computes in bfloat16, at least in parts; runs nothing."""
    step, *given = first_step(agent, 1)
    return "bf16[" in str(jax.make_jaxpr(step)(*given))


@functools.cache
def _are_known(options: tuple[tuple[str, bool | str], ...]) -> bool:
    """Whether this JAX has these experimental options."""
    try:
        jax.jit(lambda x: x, compiler_options=dict(options)).lower(0.0).compile()
    except jax.errors.JaxRuntimeError as error:
        if "INVALID_ARGUMENT" not in str(error):
            raise
        return False
    return True


def _is_small(agent: Agent) -> bool:
    leaves, _ = jax.tree_util.tree_flatten_with_path(params_struct(agent))
    return all(max(leaf.shape, default=0) <= _widest(path) for path, leaf in leaves)


def _widest(path: tuple[Any, ...]) -> int:
    # A memory's products are of one time step each, and an LSTM's gates are as wide as four layers.
    is_memory = any("core" in str(getattr(key, "key", "")).split("/") for key in path)
    return 4 * _SMALL if is_memory and not _HAS_BOTH else _SMALL
