"""A task: what is learned, with everything that belongs to it."""

import dataclasses
import math
from typing import Protocol

from distrl import specs
from distrl.agents.agent import Agent
from distrl.agents.networks import check_late_rewards
from distrl.agents.settings import algorithm
from distrl.agents.structs import extras_struct, state_struct
from distrl.annealing import annealed_agent
from distrl.config import ActorsConfig, EvaluatorConfig, InferenceConfig, LearnerConfig
from distrl.envs.multi_agent.environment import SeveralAgents
from distrl.envs.pool import Environment
from distrl.errors import ConfigError
from distrl.goal import Goal
from distrl.lockstep import LockstepSchedule
from distrl.replay import memory_check
from distrl.replay.buffer import ReplayConfig
from distrl.transforms.agent import TransformedAgent
from distrl.transforms.base import Transform, check_order, specs_seen
from distrl.types import Trajectory

_EPISODE_SYNC = 16  # most steps of a stream between two refreshes of the parameters


class AgentConfig(Protocol):
    """An algorithm's settings.

    It may also have `check_replay(replay: ReplayConfig, batch_size: int)`, which raises ConfigError
    if the algorithm can't learn from such a table or batch; `acts`, false if it chooses no actions;
    `on_policy`, true if it learns from its own policy's actions only; `whole_episodes`, true if it
    learns from unrolls that are whole episodes; `anneal_over_budget`: see `distrl.annealing`; and
    `defaults`, the parts of an experiment that suit it: see `distrl.agents.defaults`.
    """

    def make(self, env_spec: specs.EnvironmentSpec) -> Agent:
        """Returns the agent. Raises ConfigError if it does not suit the environment."""


@dataclasses.dataclass(frozen=True)
class Task:
    """An agent that learns, its table, learner, evaluator and goal.

    An experiment has one or more, by name. Tables, nodes, seeds and checkpoints of a task carry its
    name or its index.

    Attributes:
      name: unique in the experiment.
      index: position in the experiment; task 0 has the node "learner/0".
      environment, evaluation_environment, agent, transforms, replay, learner, evaluator, goal:
        see `Experiment`.
      actors, inference: the experiment's, from which the task's sizes follow; with several agents,
        `actors.num_envs` is the number of the task's streams in an actor.
      agents: ids of the environment's agents that it may act for; () if the environment has one.
      learns_from: name of the policy from whose steps it learns; None: its own.
    """

    name: str
    index: int
    environment: Environment
    evaluation_environment: Environment | None
    agent: AgentConfig
    transforms: tuple[Transform, ...]
    replay: ReplayConfig
    learner: LearnerConfig
    evaluator: EvaluatorConfig
    goal: Goal
    actors: ActorsConfig
    inference: InferenceConfig
    agents: tuple[str, ...] = ()
    learns_from: str | None = None

    @property
    def env_spec(self) -> specs.EnvironmentSpec:
        """Spec of what the task's agent sees, before transforms."""
        if not isinstance(self.environment, SeveralAgents):
            return self.environment.spec()
        return self.environment.agents().agents[self.agents[0]]

    @property
    def streams_per_env(self) -> int:
        """The most streams that the task has in one environment."""
        return len(self.agents) or 1

    @property
    def is_evaluated(self) -> bool:
        """Whether an evaluator plays episodes with its parameters."""
        acts: bool = getattr(self.agent, "acts", True)
        # With several agents, the agents of a policy that learns from another follow that one.
        return acts and not (self.agents and self.learns_from)

    def batch_sizes(self, num_envs: int) -> tuple[int, ...]:
        """Returns the sizes of inference batches of so many environments; (): any size.

        With several agents, which come and go, each new size would have to be compiled.
        """
        largest = num_envs * self.streams_per_env
        return tuple(-(-largest // part) for part in (8, 4, 2, 1)) if self.agents else ()

    @property
    def table_bytes(self) -> int:
        """Memory of the full table."""
        return self.replay.nbytes(self.trajectory_struct())

    def check_memory(self) -> None:
        """Raises ConfigError if the table can't fit; an agent's checks come with its shapes."""
        memory_check.check_fits_memory(self.replay.max_size, self.table_bytes)

    def batch_struct(self, struct: Trajectory) -> Trajectory:
        """Returns shapes and dtypes of the learner's batches, from those of a step of a stream."""
        return specs.batch_struct(struct, self.replay.unroll_length, self.learner.batch_size)

    @property
    def is_coupled(self) -> bool:
        """Whether acting and learning wait for each other, by a queue or by a ratio of samples."""
        return self.replay.table == "queue" or self.replay.samples_per_insert is not None

    def check(self) -> None:
        """Raises ConfigError for what can't work, with the arithmetic."""
        check_order(self.transforms)
        if self.replay.num_shards > self.actors.num_actors:
            raise ConfigError(
                f"replay.num_shards={self.replay.num_shards} is more than "
                f"actors.num_actors={self.actors.num_actors}: an actor writes to one shard, and "
                "some would get nothing"
            )
        self.replay.check(self.learner.batch_size, self.actors.num_streams)
        if self.learner.batch_size > self.replay.max_size:
            raise ConfigError(
                f"learner.batch_size={self.learner.batch_size} is more than replay.max_size="
                f"{self.replay.max_size} unrolls, so that every batch would repeat some: use a "
                f"learner.batch_size of at most {self.replay.max_size}, or a larger table"
            )
        self._check_whole_episodes()
        self._check_data_schedule()
        check_late_rewards(algorithm(self.agent), self.env_spec)
        check_replay = getattr(self.agent, "check_replay", None)
        if check_replay is not None:
            check_replay(self.replay, self.learner.batch_size)
        if self.learner.num_gradient_workers:
            self.make_agent().check_shares()
        if self.transforms:
            agent = self.make_agent()
            assert isinstance(agent, TransformedAgent)
            batch = self.batch_struct(self.trajectory_struct(agent))
            agent.check_transforms(self.agent, self.replay, batch)
        self.goal.check(self.env_spec)

    def _check_whole_episodes(self) -> None:
        name = type(algorithm(self.agent)).__name__.removesuffix("Config")
        learns_from_whole = getattr(self.agent, "whole_episodes", False)
        if not self.replay.whole_episodes:
            if learns_from_whole:
                raise ConfigError(
                    f"replay.whole_episodes=False cuts episodes, and {name} needs all rewards that "
                    "follow an action; use replay.whole_episodes=True, with a replay.unroll_length "
                    "of the longest episode"
                )
            return
        if not learns_from_whole:
            raise ConfigError(
                f"replay.whole_episodes is for algorithms that learn from whole episodes, such as "
                f"REINFORCE, and {name} learns from unrolls of any steps; leave it False"
            )
        if self.actors.min_actors is not None:
            raise ConfigError(
                "replay.whole_episodes makes an unroll when an episode ends, and actors.min_actors "
                "one of every stream in each round; leave one of them out"
            )
        limit = getattr(self.environment, "episode_limit", None)
        if limit is not None and limit > self.replay.unroll_length:
            raise ConfigError(
                f"replay.unroll_length={self.replay.unroll_length}: episodes of "
                f"{self.environment.name} may have {limit} steps, and {name} learns from whole "
                f"ones; use a replay.unroll_length of at least {limit}, or a lower "
                "max_episode_steps"
            )

    def _check_data_schedule(self) -> None:
        actors, replay = self.actors, self.replay
        if self.learns_from is not None and self.learner.max_policy_lag is not None:
            raise ConfigError(
                f"learner.max_policy_lag of {self.name!r}, which learns from the steps of "
                f"{self.learns_from!r}: these have that policy's versions, whose age says nothing "
                "here; leave it None"
            )
        if actors.min_actors is None:
            return
        refused = {
            "environments with several agents, which come and go": bool(self.agents),
            "environments with late rewards, whose steps are stored later": bool(
                self.env_spec.reward_delay
            ),
            f"replay.period={replay.period}, whose unrolls end within a round": (
                replay.period not in (None, replay.unroll_length)
            ),
            "replay.whole_episodes, whose unrolls end with episodes": replay.whole_episodes,
            f"inference.sync_interval={self.inference.sync_interval}, as parameters change with "
            "rounds": self.inference.sync_interval is not None,
            "a table without a number of samples per unroll, which has no last batch; set "
            "replay.samples_per_insert": (
                replay.table != "queue" and replay.samples_per_insert is None
            ),
        }
        for name, given in refused.items():
            if given:
                raise ConfigError(f"actors.min_actors: there are no rounds with {name}")
        try:
            replay.check(self.learner.batch_size, self.actors.num_streams + actors.late_streams)
        except ConfigError as error:
            raise ConfigError(
                f"actors.min_actors={actors.min_actors}: with the {actors.late_streams} streams "
                f"that may be late, a round has {actors.num_streams + actors.late_streams} "
                f"unrolls: {error}"
            ) from None

    def make_agent(self) -> Agent:
        """Returns the agent, behind its transforms if there are any."""
        return make_agent(annealed_agent(self), self.transforms, self.env_spec)

    def trajectory_struct(self, agent: Agent | None = None) -> Trajectory:
        """Returns shapes and dtypes of what is stored, for one stream at one step.

        Args:
          agent: the task's agent, if it has been made already.
        """
        agent = agent or self.make_agent()
        return specs.trajectory_struct(agent.env_spec, extras_struct(agent), state_struct(agent))

    def lockstep_schedule(self) -> LockstepSchedule:
        """Returns the order of events in lockstep. Raises ConfigError if there can't be one."""
        actors = self.actors
        if actors.envs_per_step != actors.num_envs:
            raise ConfigError(
                f"lockstep: actors.wait_num={actors.wait_num} of {actors.num_envs} "
                "environments finish in no fixed order; leave it None"
            )
        if actors.largest_num_actors != actors.num_actors:
            raise ConfigError(
                f"lockstep: actors.max_actors={actors.largest_num_actors}: actors that come and go "
                "make no two runs alike; leave it None"
            )
        if self.replay.whole_episodes:
            raise ConfigError(
                "lockstep: replay.whole_episodes makes unrolls when episodes end, and the schedule "
                "counts steps; leave lockstep out"
            )
        if actors.min_actors is not None:
            raise ConfigError("lockstep: actors.min_actors ends rounds by the clock; leave it None")
        if self.learner.max_policy_lag is not None:
            raise ConfigError(
                f"lockstep: learner.max_policy_lag={self.learner.max_policy_lag} would drop "
                "unrolls, and the schedule counts on each; leave it None: in lockstep, what a "
                "queue holds is never older than the updates of two rounds"
            )
        if self.replay.period not in (None, self.replay.unroll_length):
            raise ConfigError(
                f"lockstep: replay.period={self.replay.period} makes more than one unroll of each "
                "stream a round; leave it None"
            )
        if (delay := self.env_spec.reward_delay) >= self.replay.unroll_length:
            raise ConfigError(
                f"lockstep: unrolls are stored {delay} steps late, as rewards are, and actors wait "
                f"for updates from them after replay.unroll_length={self.replay.unroll_length} "
                f"steps; use one of at least {delay + 1}"
            )
        if self.replay.backend == "reverb":
            raise ConfigError(
                "lockstep: a Reverb server uses what arrives first; take "
                "replay.backend=shared_memory"
            )
        if self.learner.num_gradient_workers:
            raise ConfigError(
                "lockstep: with learner.num_gradient_workers the shares of a batch, whose sums are "
                "rounded, depend on which workers are ready; take 0"
            )
        return LockstepSchedule(
            self.replay, self.learner.batch_size, actors.num_actors, actors.num_envs
        )

    @property
    def sync_interval(self) -> int:
        """Inferences of an actor's own inferencer between two refreshes of its parameters."""
        if self.inference.sync_interval is not None:
            return self.inference.sync_interval
        length = self.replay.unroll_length
        if self.replay.whole_episodes:  # these end at any time
            length = min(length, _EPISODE_SYNC)
        return length * self.actors.num_envs // self.actors.envs_per_step

    @property
    def unrolls_per_item(self) -> int:
        """Unrolls in one item of a remote queue: fewer messages, and batches stay whole."""
        # Unrolls of several agents, and whole episodes, end at different times.
        if self.replay.table != "queue" or self.agents or self.replay.whole_episodes:
            return 1
        shard_size = self.replay.max_size // self.replay.num_shards
        return math.gcd(self.actors.envs_per_step, self.learner.batch_size, shard_size)

    @property
    def shard_batch(self) -> int:
        """Unrolls of a batch that one of the replay's shards gives, rounded up to whole items."""
        per_item = self.unrolls_per_item
        return per_item * math.ceil(self.learner.batch_size / (per_item * self.replay.num_shards))

    def resolved_goal(self) -> Goal:
        """Returns the goal with "auto" replaced by the environment's own threshold."""
        return self.goal.resolve(getattr(self.environment, "return_threshold", None))


def make_agent(
    config: AgentConfig, transforms: tuple[Transform, ...], env_spec: specs.EnvironmentSpec
) -> Agent:
    """Returns an agent, behind its transforms if there are any."""
    if not transforms:
        return config.make(env_spec)
    agent = config.make(specs_seen(transforms, env_spec)[-1])
    return TransformedAgent(agent, transforms, env_spec)
