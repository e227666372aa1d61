"""The workloads that `scaling.py` measures, and an actor's and a learner's parts of each."""

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from distrl import presets
from distrl.actor import Actor
from distrl.agents.agent import Agent
from distrl.experiment import Experiment
from distrl.inference.messages import InferenceMessages
from distrl.inferencer import Inferencer
from distrl.learner import Learner
from distrl.learning.random_batches import NoReplay
from distrl.replay.buffer import ReplayConfig
from distrl.replay.columns import Block
from distrl.replay.unrolls import Unroller
from distrl.types import Inference, Sample, TimeStep
from distrl.variables.client import VariableClient

WORKLOADS = {"CartPole-v1": 32, "Pong-v5": 8}
"""Environment name to environments per actor, as in the presets."""
_QUEUE = 512  # unrolls

Clock = Callable[[], float]


def preset(env: str) -> Experiment:
    """Returns the experiment that `distrl train --env=...` runs."""
    return presets.experiment(env)


def replay_config(experiment: Experiment) -> ReplayConfig:
    """Returns the settings of the measured tables, which are large enough that nobody waits."""
    return dataclasses.replace(experiment.replay, max_size=_QUEUE, backend="reverb")


def fixed_inferencer(
    agent: Agent, num_envs: int, codec: InferenceMessages | None = None
) -> Inferencer:
    """Returns an inferencer whose parameters never change."""
    params = jax.jit(agent.initial_params)(jax.random.PRNGKey(0))

    class Source:
        def get_variables(self, newer_than: int) -> Any:
            return (0, params) if newer_than < 0 else None

    variables = VariableClient(Source(), 2**62)
    return Inferencer(
        agent, variables, seed=0, max_streams=num_envs, batch_sizes=[num_envs], codec=codec
    )


def cpu_per_call(work: Callable[[], Any], seconds: float, *clocks: Clock) -> list[float]:
    """Returns the CPU seconds of one call by each clock, measured for at least `seconds`."""
    began = time.monotonic()
    before = [clock() for clock in clocks]
    calls = 0
    while calls == 0 or time.monotonic() < began + seconds:
        work()
        calls += 1
    return [(clock() - then) / calls for clock, then in zip(clocks, before)]


class FixedParams:
    """A source of parameters of a given size, and their agent as far as a service needs it."""

    def __init__(self, nbytes: int, new_each_time: bool = False) -> None:
        """Args:
        nbytes: size of the parameters.
        new_each_time: whether each call gets a new version.
        """
        self.version = 0
        self._new = new_each_time
        rng = np.random.default_rng(0)
        self._params = {"w": rng.normal(size=max(1, nbytes // 4)).astype(np.float32)}

    def initial_params(self, rng: Any) -> Any:
        """See `Agent`."""
        return {"w": jnp.zeros(self._params["w"].shape, jnp.float32)}

    def get_variables(self, newer_than: int = -1) -> Any:
        """See `VariableSource`."""
        self.version += self._new
        return (self.version, self._params) if self.version > newer_than else None


class _CuttingReplay:
    """A replay that cuts steps into unrolls, as every one does, and keeps the first `keep`."""

    def __init__(self, experiment: Experiment) -> None:
        self._unroller = Unroller(experiment.trajectory_struct(), experiment.replay.unroll_length)
        self.columns = self._unroller.columns
        self.blocks: list[Block] = []
        self.keep = 0

    def needs_state(self, stream_ids: np.ndarray, life: int | None = None) -> bool:
        return self._unroller.needs_state(stream_ids, life)

    def add(
        self, stream_ids: np.ndarray, timestep: TimeStep, inference: Inference, life: int = 0
    ) -> None:
        block = self._unroller.cut(stream_ids, timestep, inference, life)
        if block is not None and len(self.blocks) < self.keep:
            self.blocks.append(block)


class Bench:
    """The parts of a workload, ready to be measured round by round."""

    def __init__(self, env: str, seconds: float) -> None:
        """Args:
        env: a name in WORKLOADS.
        seconds: duration of each measurement of a round.
        """
        self.env, self._seconds = env, seconds
        self.experiment = preset(env)
        self.num_envs = WORKLOADS[env]
        self.agent = self.experiment.make_agent()
        self._inferencer = fixed_inferencer(self.agent, self.num_envs)
        self._replay = _CuttingReplay(self.experiment)
        self._pool = self.experiment.environment.make_pool(
            self.num_envs, self.num_envs, range(self.num_envs)
        )
        self.actor = Actor(self._pool, self._inferencer, self._replay)  # type: ignore[arg-type]
        # Unrolls of real steps, because their contents decide how well they compress.
        self._replay.keep = -(-self.experiment.learner.batch_size // self.num_envs)
        while len(self._replay.blocks) < self._replay.keep:
            self.actor.step()
        self.block = self._replay.blocks[0]
        self.columns = self._replay.columns
        batch = self.columns.join(self._replay.blocks)
        ones = np.ones(batch.size, np.float32)
        keys = np.arange(batch.size, dtype=np.uint64)
        self._sample = Sample(self.columns.trajectory(batch, ones), keys)
        self._learner = Learner(self.agent, NoReplay(), seed=0)  # type: ignore[arg-type]
        for _ in range(3):
            self._learner.update(self._sample)

    def sizes(self) -> dict[str, float]:
        """Returns the workload's figures that are not costs."""
        messages, config = InferenceMessages(self.agent), self.experiment
        params = jax.eval_shape(self.agent.initial_params, jax.random.PRNGKey(0))
        leaves = jax.tree.leaves(params)
        return {
            "num_envs": self.num_envs,
            "unroll_length": config.replay.unroll_length,
            "batch_size": config.learner.batch_size,
            "unrolls_per_item": self.block.size,
            "unroll_bytes": self.columns.nbytes(self.block.size) / self.block.size,
            "param_bytes": sum(leaf.size * leaf.dtype.itemsize for leaf in leaves),
            "request_bytes": messages.request.row_bytes,
            "answer_bytes": messages.answer.row_bytes,
        }

    def acting(self) -> dict[str, float]:
        """Measures `env_step`, `infer` and `overhead` once."""
        pool, num_envs = self._pool, self.num_envs
        ids = np.arange(num_envs, dtype=np.int32)
        timestep = self.actor._timestep
        action = self._inferencer.inference(ids, timestep).action
        infer = self._cpu(lambda: self._inferencer.inference(ids, timestep))
        actor_step = self._cpu(self.actor.step)

        def env_step() -> None:
            pool.send(action, pool.env_ids)
            self.actor._timestep = pool.recv()

        env = self._cpu(env_step)
        overhead = max(0.0, actor_step - env - infer)
        return {"env_step": env / num_envs, "infer": infer, "overhead": overhead}

    def learn(self) -> float:
        """Measures `learn` once."""

        def update() -> None:
            self._learner.update(self._sample)
            jax.block_until_ready(self._learner.state().params)

        steps = self.experiment.learner.batch_size * self.experiment.replay.unroll_length
        cost = self._cpu(update) / steps
        self._learner.take_report()  # else policy lags would accumulate
        return cost

    def _cpu(self, work: Callable[[], Any]) -> float:
        return cpu_per_call(work, self._seconds, time.process_time)[0]

    def report(self) -> Any:
        """Returns an actor's report about a tenth of a second."""
        self.actor.take_report()
        until = time.monotonic() + 0.1
        while time.monotonic() < until:
            self.actor.step()
        return self.actor.take_report()
