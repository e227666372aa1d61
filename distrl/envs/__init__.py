"""Batched environments: one interface over every kind of pool."""

from distrl.envs.native import NativeEnvironment
from distrl.envs.pool import Environment, Pool
from distrl.envs.python import PythonEnvironment

__all__ = ["Environment", "NativeEnvironment", "Pool", "PythonEnvironment"]
