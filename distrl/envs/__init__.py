"""Batched environments: one interface over every kind of pool."""

from distrl.envs.multi_agent.control_flow import Act, ControlFlow, End
from distrl.envs.multi_agent.copies import Copies
from distrl.envs.multi_agent.environment import MultiAgentEnvironment
from distrl.envs.native import NativeEnvironment
from distrl.envs.pool import Environment, Pool
from distrl.envs.python import PoolConfig, PythonEnvironment, WrapperConfig
from distrl.envs.suites import make

__all__ = [
    "Act",
    "ControlFlow",
    "Copies",
    "End",
    "Environment",
    "MultiAgentEnvironment",
    "NativeEnvironment",
    "Pool",
    "PoolConfig",
    "PythonEnvironment",
    "WrapperConfig",
    "make",
]
