"""Environments with several agents, as an experiment names them."""

import abc
import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from distrl import specs
from distrl.envs.adapters.builder import call_builder
from distrl.envs.adapters.stepper import Stepper
from distrl.envs.adapters.wrappers import WrapperConfig, wrap
from distrl.envs.multi_agent.assignment import Assignment
from distrl.envs.multi_agent.control_flow import ControlFlow, ControlFlowStepper
from distrl.envs.multi_agent.joint import JointSpec
from distrl.envs.multi_agent.parallel import ParallelStepper
from distrl.envs.multi_agent.pool import AgentPool
from distrl.envs.multi_agent.turns import TurnStepper
from distrl.envs.pool import Pool
from distrl.envs.pool_config import PoolConfig
from distrl.envs.python import check_settings
from distrl.errors import ConfigError


class SeveralAgents(abc.ABC):
    """An environment with several agents; see `Environment`.

    Attributes:
      joint: whether the agents of one environment share its episodes, which an evaluator counts.
    """

    name: str
    joint: ClassVar[bool] = True

    @abc.abstractmethod
    def agents(self) -> JointSpec:
        """Returns the agents' specs."""

    @abc.abstractmethod
    def spec(self) -> specs.EnvironmentSpec:
        """See `Environment`: the spec of what a pool steps."""

    @abc.abstractmethod
    def make_pool(self, num_envs: int, wait_num: int, seeds: Sequence[int]) -> Pool:
        """See `Environment`."""

    def agent_pool(self, pool: Pool, assignment: Assignment, first_environment: int) -> AgentPool:
        """Returns the agents' streams of a pool that `make_pool` made; see `AgentPool`."""
        return AgentPool(pool, self.agents(), assignment, first_environment)


def steps_per_env_step(environment: object, agents: Sequence[str]) -> float:
    """Returns the time steps that some agents have in an environment step: 1 if it has one agent.

    In a `ControlFlow`, whose agents act in an order of their own, this is the maximum.
    """
    if not isinstance(environment, SeveralAgents):
        return 1.0
    spec = environment.agents()
    return len(agents) / len(spec.agents) if spec.in_turns else float(len(agents))


@dataclasses.dataclass(frozen=True)
class MultiAgentEnvironment(SeveralAgents):
    """An environment with several agents, written in Python.

    Attributes:
      builder: function that returns one PettingZoo environment, parallel or turn-based (AEC), or
        one `ControlFlow`. It is called with the environment's seed if it has a parameter called
        `seed`, or one required parameter; otherwise without arguments. A PettingZoo environment
        also gets the seed in its first `reset`.
      name: name for messages and run folders; the builder's name unless given.
      wrappers: only `clip_actions` and `max_episode_steps` (in joint steps; not for a
        `ControlFlow`) can be set.
      pool: how several environments are stepped, and what happens if one misbehaves.
      return_threshold: mean return at which the environment counts as solved; None: unknown.
    """

    builder: Callable[..., Any]
    name: str = ""
    wrappers: WrapperConfig = WrapperConfig()
    pool: PoolConfig = PoolConfig()
    return_threshold: float | None = None

    def __post_init__(self) -> None:
        check_settings(self, "a PettingZoo environment or a ControlFlow")
        if self.wrappers.post_process is not None:
            raise ConfigError(
                "environment.wrappers.post_process is for environments of one agent: change "
                "actions in a wrapper of PettingZoo's, or in to_env_action of a simulator"
            )
        for name in ("action_repeat", "frame_stack"):
            if getattr(self.wrappers, name) != 1:
                raise ConfigError(
                    f"environment.wrappers.{name}={getattr(self.wrappers, name)}: agents of one "
                    "environment have steps of their own; use a transform, which follows each "
                    "agent's"
                )

    def agents(self) -> JointSpec:
        """Returns the agents' specs. The first call builds one environment and closes it.

        Raises:
          ConfigError: distrl cannot use the builder's environment.
        """
        return self._agents

    @functools.cached_property
    def _agents(self) -> JointSpec:
        # Cached in the instance and pickled with it, so that workers do not build another one.
        stepper = self._make_adapter(0)
        try:
            return stepper.joint_spec
        finally:
            stepper.close()

    def spec(self) -> specs.EnvironmentSpec:
        """Returns the spec of the joint steps; see `distrl.envs.multi_agent.joint`."""
        return self._agents.joint()

    def make_stepper(self, seed: int) -> Stepper:
        """Returns one environment with its wrappers, for a pool's worker.

        Args:
          seed: the environment's seed, in [0, 2**31).
        """
        stepper, wrappers = self._make_adapter(seed), self.wrappers
        if isinstance(
            stepper, TurnStepper
        ):  # it has the limit itself: agents that wait end there, too
            wrappers = dataclasses.replace(wrappers, max_episode_steps=None)
        return wrap(stepper, self.spec(), wrappers)

    def make_pool(self, num_envs: int, wait_num: int, seeds: Sequence[int]) -> Pool:
        """See `Environment`. It steps joint steps, which `AgentPool` splits by agent."""
        return self.pool.pool_class()(self, num_envs, wait_num, seeds)

    def _make_adapter(self, seed: int) -> "ParallelStepper | TurnStepper | ControlFlowStepper":
        env = call_builder(self.builder, seed)
        limit = self.wrappers.max_episode_steps
        if isinstance(env, ControlFlow):
            if limit is not None:
                raise ConfigError(
                    f"environment.wrappers.max_episode_steps={limit} would lose the rewards of "
                    f"waiting agents, which {type(env).__name__} has: let it end episodes itself"
                )
            return ControlFlowStepper(env)
        if not hasattr(env, "possible_agents"):
            raise ConfigError(
                "environment.builder must return a PettingZoo environment with possible_agents, or "
                f"a ControlFlow; got a {type(env).__name__}"
            )
        if hasattr(env, "agent_iter"):
            return TurnStepper(env, seed, limit)
        return ParallelStepper(env, seed)
