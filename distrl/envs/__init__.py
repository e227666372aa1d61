"""Batched environments: one interface over every kind of pool."""

from distrl.envs.native import NativeEnvironment
from distrl.envs.pool import Environment, Pool
from distrl.envs.python import PoolConfig, PythonEnvironment, WrapperConfig
from distrl.envs.suites import make

__all__ = [
    "Environment",
    "NativeEnvironment",
    "Pool",
    "PoolConfig",
    "PythonEnvironment",
    "WrapperConfig",
    "make",
]
