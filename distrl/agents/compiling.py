"""How an agent's functions are compiled."""

import jax

from distrl.agents.agent import Agent, has_memory
from distrl.agents.modules import images
from distrl.specs import EnvironmentSpec

_HAS_BOTH = jax.__version_info__ < (0, 6)  # later ones have the new runtime only


def compiler_options(env_spec: EnvironmentSpec) -> dict[str, bool] | None:
    """Returns `compiler_options` for `jax.jit` of an agent's functions, None: XLA's own.

    On CPUs, XLA's newer runtime interprets a list of small operations, of which the older one makes
    one function. For vectors, that takes half the time of an update of PPO and of an inference for
    64 streams; the newer one is 15 % faster at the convolutions of large images.

    Args:
      env_spec: what the agent was made for.
    """
    if not _HAS_BOTH or jax.default_backend() != "cpu" or images.has_large(env_spec.observation):
        return None
    return {"xla_cpu_use_thunk_runtime": False}


def update_options(agent: Agent) -> dict[str, bool] | None:
    """As `compiler_options`, for an agent's updates.

    XLA's older runtime ends the process when it compiles the gradients of some recurrent networks,
    such as an LSTM's for 16 unrolls of 48 steps ("could not find evaluated value for: %while").
    """
    return None if has_memory(agent) else compiler_options(agent.env_spec)
