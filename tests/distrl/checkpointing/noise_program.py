"""Run by tests: actors of a noisy environment in separate processes; a policy from its file.

noise_program.py actors pipes ADDRESS     8 processes that send their steps to ADDRESS
noise_program.py actors reverb ADDRESS    8 processes that add their unrolls to a Reverb server
noise_program.py serve                    the Reverb server
noise_program.py act PARAMS DATA ACTIONS  actions of saved parameters for saved observations
"""

import os
import socket
import sys
from multiprocessing.connection import Client
from pathlib import Path
from typing import Any

import dm_env
import jax
import numpy as np
from dm_env import specs as dm_specs

from distrl.actor import Actor
from distrl.agents.impala import IMPALAConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.structs import extras_struct, state_struct
from distrl.checkpointing.params_file import load_params
from distrl.envs import PythonEnvironment
from distrl.replay.buffer import ReplayConfig
from distrl.specs import trajectory_struct
from distrl.transforms import ObservationNormalizer, RewardNormalizer, TransformedAgent
from distrl.transforms.base import specs_seen
from distrl.types import AgentOutput, Inference, TimeStep

NUM_ACTORS, NUM_ENVS, BATCH = 8, 2, 8
CONFIG = ReplayConfig(unroll_length=20, max_size=16)
MEANS = np.array([0.0, 1e4, -3e5, 1e-3])
SPREADS = np.array([1.0, 1e-2, 1e-1, 1e3])


class Noise(dm_env.Environment):
    """Observes badly scaled noise, its seed, and a count of its observations."""

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)
        self._seed, self._count = seed, -1

    def _observe(self) -> dict[str, np.ndarray]:
        self._count += 1
        return {
            "count": np.array([self._seed, self._count], np.int32),
            "noise": (self._rng.normal(size=4) * SPREADS + MEANS).astype(np.float32),
        }

    def reset(self) -> dm_env.TimeStep:
        return dm_env.restart(self._observe())

    def step(self, action: Any) -> dm_env.TimeStep:
        reward = float(np.float32(self._rng.normal() * 5 + 3))
        if self._rng.random() < 0.1:
            return dm_env.termination(reward, self._observe())
        return dm_env.transition(reward, self._observe())

    def observation_spec(self) -> dict[str, dm_specs.Array]:
        return {
            "count": dm_specs.Array((2,), np.int32, "count"),
            "noise": dm_specs.Array((4,), np.float32, "noise"),
        }

    def action_spec(self) -> dm_specs.DiscreteArray:
        return dm_specs.DiscreteArray(3, np.int32, "action")

    def reward_spec(self) -> dm_specs.Array:
        return dm_specs.Array((), np.float32, "reward")


ENVIRONMENT = PythonEnvironment(Noise)


def make_agent() -> TransformedAgent:
    transforms, spec = (ObservationNormalizer(), RewardNormalizer()), ENVIRONMENT.spec()
    config = IMPALAConfig(NetworkConfig(hidden_sizes=(8,)))
    return TransformedAgent(config.make(specs_seen(transforms, spec)[-1]), transforms, spec)


def struct() -> Any:
    agent = make_agent()
    return trajectory_struct(agent.env_spec, extras_struct(agent), state_struct(agent))


class RandomActions:
    """An inferencer of random actions, which needs no JAX."""

    def __init__(self, seed: int):
        self._rng = np.random.default_rng(seed)

    def inference(self, stream_ids: np.ndarray, timestep: TimeStep, *_: Any) -> Inference:
        n = len(stream_ids)
        return Inference(
            self._rng.integers(3, size=n, dtype=np.int32),
            {"log_prob": np.full(n, -np.log(3), np.float32)},
            0,
        )


class Sender:
    """A replay that sends steps to the test, and waits until the test has added them."""

    def __init__(self, address: str):
        self._connection = Client(address, "AF_UNIX")

    def needs_state(self, *_: Any) -> bool:
        return False

    def add(self, stream_ids: Any, timestep: Any, inference: Any, life: int) -> None:
        self._connection.send((stream_ids, TimeStep(*timestep[:5]), inference, life))
        self._connection.recv()


def reverb_client(address: str) -> Any:
    import reverb

    from distrl.replay.reverb.buffer import ReverbReplayBuffer

    return ReverbReplayBuffer(reverb.Client(address), struct(), CONFIG, BATCH, "task")


def act_until_killed(index: int, transport: str, address: str) -> None:
    replay = Sender(address) if transport == "pipes" else reverb_client(address)
    pool = ENVIRONMENT.make_pool(NUM_ENVS, NUM_ENVS, range(NUM_ENVS * index, NUM_ENVS * 99))
    actor = Actor(pool, RandomActions(index), replay, first_stream=NUM_ENVS * index)  # type: ignore[arg-type]
    while True:
        actor.step()


def actors(transport: str, address: str) -> None:
    """Forks the actors, prints their process ids, and waits for them."""
    if transport == "reverb":
        import reverb  # noqa: F401  # once, before the fork
    pids = []
    for index in range(NUM_ACTORS):
        pid = os.fork()
        if pid == 0:
            try:
                act_until_killed(index, transport, address)
            finally:
                os._exit(1)
        pids.append(pid)
    print(*pids, flush=True)
    for pid in pids:
        os.waitpid(pid, 0)


def serve() -> None:
    import reverb

    from distrl.replay.reverb.server import reverb_tables

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    server = reverb.Server(reverb_tables(CONFIG, struct(), BATCH, "task", 1), port)
    print(f"127.0.0.1:{port}", flush=True)
    sys.stdin.read()
    server.stop()


def actions(agent: TransformedAgent, params: Any, observation: Any) -> dict[str, np.ndarray]:
    """Returns actions for observations `[N, ...]`: sampled with a fixed key, and greedy."""
    n = len(observation["noise"])
    step = TimeStep(
        np.ones(n, np.int8), np.zeros(n, np.float32), np.ones(n, np.float32), observation,
        np.zeros(n, np.int32),
    )  # fmt: skip

    def act(params: Any, evaluation: bool) -> AgentOutput:
        return agent.actor_step(np.array([1, 2], np.uint32), params, step, (), evaluation)[0]  # type: ignore[arg-type]

    sampled, greedy = (jax.jit(act, static_argnums=1)(params, flag) for flag in (False, True))
    return {"sampled": np.asarray(sampled.action), "greedy": np.asarray(greedy.action)}


def act(params_path: str, data_path: str, out_path: str) -> None:
    agent = make_agent()
    like = jax.eval_shape(agent.initial_params, jax.ShapeDtypeStruct((2,), np.uint32))
    version, params = load_params(Path(params_path), like)
    with np.load(data_path) as data:
        np.savez(out_path, version=version, **actions(agent, params, dict(data)))


if __name__ == "__main__":
    {"actors": actors, "serve": serve, "act": act}[sys.argv[1]](*sys.argv[2:])
