"""Tests the user's own parts, and the data path by exact arithmetic.

`check_transform` and `check_pool` are for the user's own transforms and pools; CountingEnvironment
and CheckingAgent check whatever is between them.
"""

import dataclasses
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from dm_env import specs as dm_specs
from gymnasium import spaces

from distrl.agents.agent import Agent, LearnerState, Logs
from distrl.envs.simulator import Simulator
from distrl.specs import EnvironmentSpec
from distrl.testing.pools import check_pool
from distrl.transforms.comparison import check_transform
from distrl.types import AgentOutput, Params, State, StepType, TimeStep, Trajectory

__all__ = [
    "COUNT",
    "ECHO",
    "SEED",
    "STEP",
    "CheckingAgent",
    "CheckingConfig",
    "CountingAgents",
    "CountingEnvironment",
    "LateCountingEnvironment",
    "check_pool",
    "check_transform",
    "errors",
]

SEED, COUNT, STEP, ECHO = range(4)
"""Columns of a CountingEnvironment's observation."""


class CountingEnvironment(dm_env.Environment):
    """Counts its steps and echoes its actions.

    The observation is float32 `[4]`: the seed (modulo 4096), the number of steps and resets so
    far, the number of steps in this episode, and the action that led here (-1 at FIRST).
    Episode lengths cycle through 3, 4, 5, 6, 7 steps. Even lengths are true ends, odd ones time
    limits. The reward is the number of the step in its episode.
    """

    def __init__(self, seed: int):
        """Args: seed: part of the observations; selects the first episode's length."""
        self._seed = seed % 4096
        self._count = -1
        self._step = 0
        self._episode = seed % 5 - 1

    @property
    def _length(self) -> int:
        return 3 + self._episode % 5

    def _observe(self, echo: float) -> npt.NDArray[Any]:
        self._count += 1
        return np.array([self._seed, self._count, self._step, echo], np.float32)

    def reset(self) -> dm_env.TimeStep:
        """See dm_env."""
        self._episode += 1
        self._step = 0
        return dm_env.restart(self._observe(-1))

    def step(self, action: Any) -> dm_env.TimeStep:
        """See dm_env."""
        self._step += 1
        observation, reward = self._observe(float(action)), float(self._step)
        if self._step < self._length:
            return dm_env.transition(reward, observation)
        if self._length % 2:
            return dm_env.truncation(reward, observation)
        return dm_env.termination(reward, observation)

    def observation_spec(self) -> dm_specs.Array:
        """See dm_env."""
        return dm_specs.Array((4,), np.float32, "observation")

    def action_spec(self) -> dm_specs.DiscreteArray:
        """See dm_env."""
        return dm_specs.DiscreteArray(2**31 - 1, np.int32, "action")

    def reward_spec(self) -> dm_specs.Array:
        """See dm_env."""
        return dm_specs.Array((), np.float32, "reward")


class LateCountingEnvironment(Simulator):
    """A CountingEnvironment whose rewards are known `delay` steps later."""

    def __init__(self, seed: int, delay: int = 2):
        """Args: seed: the CountingEnvironment's seed. delay: delay of rewards in steps."""
        self.reward_delay = delay
        self._env = CountingEnvironment(seed)
        self._rewards: list[float] = []

    def reset_simulator(self) -> None:
        """See `Simulator`."""
        self._now = self._env.reset()
        self._rewards = []

    def step_simulator(self, env_action: Any) -> tuple[bool, bool]:
        """See `Simulator`."""
        self._now = self._env.step(env_action)
        self._rewards.append(self._now.reward)
        last = self._now.last()
        return last and self._now.discount == 0, last and self._now.discount == 1

    def get_state(self) -> npt.NDArray[Any]:
        """See `Simulator`."""
        return self._now.observation

    def get_reward(self, step: int) -> float:
        """See `Simulator`."""
        return self._rewards[step]

    def observation_spec(self) -> dm_specs.Array:
        """See dm_env."""
        return self._env.observation_spec()

    def action_spec(self) -> dm_specs.DiscreteArray:
        """See dm_env."""
        return self._env.action_spec()


class CountingAgents:
    """A parallel environment of PettingZoo's form: each agent has a CountingEnvironment of its own.

    Agents leave at the ends of their own episodes, at different steps; the next episode begins for
    all when the last one has left. Agent k of the environment with seed s has the seed 3 s + k.
    """

    possible_agents = ("a", "b", "c")

    def __init__(self, seed: int):
        """Args: seed: see above."""
        seed %= 1024
        self._envs = {
            agent: CountingEnvironment(3 * seed + k) for k, agent in enumerate(self.possible_agents)
        }
        self.agents: list[str] = []

    def observation_space(self, agent: str) -> spaces.Box:
        """See PettingZoo."""
        return spaces.Box(-np.inf, np.inf, (4,), np.float32)

    def action_space(self, agent: str) -> spaces.Discrete:
        """See PettingZoo."""
        return spaces.Discrete(2**31 - 1)

    def reset(self, seed: int | None = None, options: Any = None) -> tuple[Any, Any]:
        """See PettingZoo."""
        self.agents = list(self.possible_agents)
        return {agent: env.reset().observation for agent, env in self._envs.items()}, {}

    def step(self, actions: dict[str, Any]) -> tuple[Any, Any, Any, Any, Any]:
        """See PettingZoo."""
        assert set(actions) == set(self.agents)
        steps = {agent: self._envs[agent].step(action) for agent, action in actions.items()}
        self.agents = [agent for agent in self.agents if not steps[agent].last()]
        return (
            {agent: step.observation for agent, step in steps.items()},
            {agent: step.reward for agent, step in steps.items()},
            {agent: step.last() and step.discount == 0 for agent, step in steps.items()},
            {agent: step.last() and step.discount == 1 for agent, step in steps.items()},
            {},
        )

    def close(self) -> None:
        """See PettingZoo."""


@dataclasses.dataclass(frozen=True)
class CheckingConfig:
    """The `AgentConfig` of a CheckingAgent.

    Attributes:
      recurrent: keep a recurrent state and check it.
    """

    recurrent: bool = True

    def make(self, env_spec: EnvironmentSpec) -> "CheckingAgent":
        """See `AgentConfig`."""
        return CheckingAgent(env_spec, self.recurrent)


class CheckingAgent(Agent):
    """An agent whose action is the version of its parameters; its state counts steps since reset.

    Its learner step adds one to the parameters and counts errors in the batch, which must come from
    CountingEnvironments; see `errors`.
    """

    def __init__(self, env_spec: EnvironmentSpec, recurrent: bool):
        """Args: env_spec: a CountingEnvironment's spec. recurrent: keep a state and check it."""
        self.env_spec = env_spec
        self._recurrent = recurrent

    def initial_params(self, rng: jax.Array) -> Params:
        """See `Agent`: the version, int32."""
        return {"version": jnp.zeros((), jnp.int32)}

    def initial_state(self, batch_size: int) -> State:
        """See `Agent`: steps since the reset."""
        return np.zeros((batch_size, 2), np.float32) if self._recurrent else ()

    def actor_step(
        self,
        rng: jax.Array,
        params: Params,
        timestep: TimeStep,
        state: State,
        evaluation: bool = False,
    ) -> tuple[AgentOutput, State]:
        """See `Agent`."""
        action = jnp.broadcast_to(params["version"], timestep.step_type.shape)
        seen = timestep.observation[:, STEP]
        if self._recurrent:
            seen = state[:, 0]
            state = jnp.stack([state[:, 0] + 1, timestep.observation[:, COUNT]], axis=1)
        return AgentOutput(action, {"seen": seen}), state

    def initial_learner_state(self, params: Params) -> LearnerState:
        """See `Agent`: totals of checked steps and of errors, and the largest policy lag."""
        return {name: jnp.zeros((), jnp.int32) for name in ("checked", *_CHECKS, "largest_lag")}

    def compute_gradients(
        self, params: Params, learner_state: LearnerState, batch: Trajectory
    ) -> tuple[Params, Logs]:
        """See `Agent`: no gradient; the totals as logs."""
        counts = errors(batch, self._recurrent)
        totals = {name: learner_state[name] + counts[name] for name in counts}
        lag = params["version"] - jnp.min(batch.version[:-1])
        totals["largest_lag"] = jnp.maximum(learner_state["largest_lag"], lag)
        return {"version": jnp.ones((), jnp.int32)}, {"loss": jnp.zeros(()), **totals}

    def apply_gradients(
        self, params: Params, learner_state: LearnerState, grads: Params
    ) -> tuple[Params, Any, Logs]:
        """See `Agent`."""
        return {"version": params["version"] + grads["version"]}, None, {}

    def update_learner_state(
        self, params: Params, opt_state: Any, learner_state: LearnerState
    ) -> LearnerState:
        """See `Agent`; `learner_step` updates the totals."""
        return learner_state

    def learner_step(
        self, params: Params, learner_state: LearnerState, batch: Trajectory
    ) -> tuple[Params, LearnerState, Logs]:
        """See `Agent`."""
        params, learner_state, logs = super().learner_step(params, learner_state, batch)
        return params, {name: logs[name] for name in learner_state}, logs


_CHECKS = (
    "wrong_version", "wrong_count", "wrong_echo", "wrong_boundary", "wrong_reward", "wrong_state",
)  # fmt: skip


def errors(batch: Trajectory, recurrent: bool) -> dict[str, Any]:
    """Counts checked and wrong steps in a batch from CountingEnvironments.

    Args:
      batch: `[T + 1, B]`, with a CheckingAgent's actions.
      recurrent: whether the agent kept a recurrent state.

    Returns:
      `checked`: steps checked. `wrong_version`: the recorded version is not the action.
      `wrong_count`: the environment's count does not increase by one, or the stream changed.
      `wrong_echo`: an action reached another environment. `wrong_boundary`: a discount violates the
      table of `TimeStep`. `wrong_reward`. `wrong_state`: the stored state, or a state unrolled from
      it, is not the actor's.
    """
    step, obs = batch.timestep, batch.timestep.observation
    kind = step.step_type
    first, last = kind == StepType.FIRST, kind == StepType.LAST
    # Below, rows are steps 1..T, each compared with the step before it.
    steady = obs[1:, :, SEED] == obs[:-1, :, SEED]
    counts = obs[1:, :, COUNT] == obs[:-1, :, COUNT] + 1
    echo = jnp.where(first[1:], -1, batch.action[:-1].astype(jnp.float32))
    order = jnp.where(first[1:], last[:-1], ~last[:-1])
    true_end = last & (obs[:, :, STEP] % 2 == 0)
    wrong = {
        "wrong_version": batch.action != batch.version,
        "wrong_count": ~(steady & counts),
        "wrong_echo": obs[1:, :, ECHO] != echo,
        "wrong_boundary": (step.discount != jnp.where(true_end, 0.0, 1.0))
        | (first != (obs[:, :, STEP] == 0)),
        "wrong_reward": step.reward != obs[:, :, STEP],
        "wrong_state": batch.extras["seen"] != obs[:, :, STEP],
    }
    totals = {name: jnp.sum(value).astype(jnp.int32) for name, value in wrong.items()}
    totals["wrong_boundary"] += jnp.sum(~order).astype(jnp.int32)
    if recurrent:
        carried = batch.state[:, 0]
        for t in range(kind.shape[0]):
            carried = jnp.where(first[t], 0.0, carried)
            totals["wrong_state"] += jnp.sum(carried != batch.extras["seen"][t]).astype(jnp.int32)
            carried = carried + 1
        before = jnp.where(first[0], 0.0, obs[0, :, COUNT] - 1)
        totals["wrong_state"] += jnp.sum(
            jnp.where(first[0], 0.0, batch.state[:, 1]) != before
        ).astype(jnp.int32)
    totals["checked"] = jnp.sum(~last[:-1]).astype(jnp.int32)
    return totals
