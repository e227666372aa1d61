"""What is to be trained, as one checked dataclass; the sizes derived from it in one place."""

import dataclasses
import math
from typing import Protocol

from distrl import specs
from distrl.agents.agent import Agent, extras_struct, state_struct
from distrl.checkpointing.store import CheckpointConfig
from distrl.envs.pool import Environment
from distrl.errors import ConfigError
from distrl.learner_group.devices import check_split
from distrl.lockstep import LockstepSchedule
from distrl.metrics import Goal
from distrl.replay.buffer import ReplayConfig
from distrl.transforms.agent import TransformedAgent
from distrl.transforms.base import Transform, check_order, specs_seen
from distrl.types import Trajectory


class AgentConfig(Protocol):
    """An algorithm's settings.

    It may have `check_replay(replay: ReplayConfig, batch_size: int)` as well, which raises
    ConfigError where the algorithm can't learn from such a table or batch.
    """

    def make(self, env_spec: specs.EnvironmentSpec) -> Agent:
        """The agent. Raises ConfigError where it does not suit the environment."""


@dataclasses.dataclass(frozen=True)
class ActorsConfig:
    """Who acts.

    Attributes:
      num_actors: actors of the program; in one process their environments form one pool.
      num_envs: environments of each actor.
      wait_num: environments that an actor waits for each turn. None: all (synchronous).
      pin: an actor that is a process, and whose environments one thread of a library steps, keeps
        to one core: the two only ever wait for each other, and waking another core costs more
        than a step of a cheap environment.
      max_actors: so many may act at a time: `distrl actors RUN 6` changes their number while the
        program runs. None: num_actors.
    """

    num_actors: int = 2
    num_envs: int = 32
    wait_num: int | None = None
    pin: bool = True
    max_actors: int | None = None

    def __post_init__(self) -> None:
        for name in ("num_actors", "num_envs"):
            if getattr(self, name) < 1:
                raise ConfigError(f"actors.{name} must be 1 or more, got {getattr(self, name)}")
        if self.max_actors is not None and self.max_actors < self.num_actors:
            raise ConfigError(
                f"actors.max_actors={self.max_actors} is less than actors.num_actors="
                f"{self.num_actors}"
            )
        if self.wait_num is not None and not 1 <= self.wait_num <= self.num_envs:
            raise ConfigError(
                f"actors.wait_num must lie between 1 and actors.num_envs={self.num_envs}, "
                f"got {self.wait_num}"
            )


@dataclasses.dataclass(frozen=True)
class InferenceConfig:
    """How actions are inferred.

    Attributes:
      num_inferencers: services of the light-environment topology, over which actors are spread.
      sync_interval: inferences between two refreshes of the parameters. None: one an unroll.
      timeout: seconds that a request may take, the service's first compilation included.
      num_gpus: GPUs of the services, one for each, or shared by them where there are fewer; 0: they
        run on the CPU and see none.
    """

    num_inferencers: int = 1
    sync_interval: int | None = None
    timeout: float = 120.0
    num_gpus: int = 0

    def __post_init__(self) -> None:
        if self.num_inferencers < 1:
            raise ConfigError(
                f"inference.num_inferencers must be 1 or more, got {self.num_inferencers}"
            )
        if self.sync_interval is not None and self.sync_interval < 1:
            raise ConfigError(
                f"inference.sync_interval must be 1 or more, got {self.sync_interval}"
            )
        if self.timeout <= 0:
            raise ConfigError(f"inference.timeout must be more than 0 s, got {self.timeout}")
        if self.num_gpus < 0:
            raise ConfigError(f"inference.num_gpus must be 0 or more, got {self.num_gpus}")
        if self.num_gpus > self.num_inferencers:
            raise ConfigError(
                f"inference.num_gpus={self.num_gpus} is more than inference.num_inferencers="
                f"{self.num_inferencers}: an inferencer uses one"
            )


@dataclasses.dataclass(frozen=True)
class LearnerConfig:
    """How the learner consumes.

    Attributes:
      batch_size: unrolls in an update.
      timeout: seconds without a batch after which the learner fails.
      num_gpus: GPUs of the learner's node; 0: it runs on the CPU and sees none.
      num_devices: that a batch is split over, evenly. 0: all that JAX has in the learner's
        process: its GPUs, or the one CPU.
    """

    batch_size: int = 64
    timeout: float = 120.0
    num_gpus: int = 0
    num_devices: int = 0

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"learner.batch_size must be 1 or more, got {self.batch_size}")
        if self.timeout <= 0:
            raise ConfigError(f"learner.timeout must be more than 0 s, got {self.timeout}")
        for name in ("num_gpus", "num_devices"):
            if getattr(self, name) < 0:
                raise ConfigError(f"learner.{name} must be 0 or more, got {getattr(self, name)}")
        if 0 < self.num_gpus < self.num_devices:
            raise ConfigError(
                f"learner.num_devices={self.num_devices} is more than "
                f"learner.num_gpus={self.num_gpus}"
            )
        check_split(self.batch_size, self.num_devices or self.num_gpus or 1)


@dataclasses.dataclass(frozen=True)
class EvaluatorConfig:
    """Evaluation beside training, on environments of its own.

    Attributes:
      num_evaluators: 0 (none) or 1.
      num_envs: environments of the evaluator.
      episodes: played greedily in one evaluation.
      interval: seconds between two evaluations.
    """

    num_evaluators: int = 0
    num_envs: int = 10
    episodes: int = 10
    interval: float = 10.0

    def __post_init__(self) -> None:
        if self.num_evaluators not in (0, 1):
            raise ConfigError(f"evaluator.num_evaluators must be 0 or 1, got {self.num_evaluators}")
        for name in ("num_envs", "episodes", "interval"):
            if getattr(self, name) <= 0:
                raise ConfigError(
                    f"evaluator.{name} must be more than 0, got {getattr(self, name)}"
                )


@dataclasses.dataclass(frozen=True)
class SupervisionConfig:
    """What is done about nodes of a program that die or hang.

    Actors, inferencers, evaluators, a replay in shared memory and the learner (from its last
    checkpoint) are started again, after a pause that grows while they fail soon. Three lives in a
    row that end with the same traceback end the program with it. Seconds; None: for ever.

    Attributes:
      restarts: of one node, in all; 0: the first failure ends the program.
      idle_limit: a node that should work, does not get on, and uses no processor counts as hanging.
      busy_limit: as `idle_limit`, of one that uses the processor: longer than any step of an
        environment, and than the longest compilation.
      stopped_limit: a node that is stopped by a signal counts as hanging.
      call_timeout: of a call to the learner or the monitor.
      insert_timeout: that an actor waits for room in the replay before it fails.
    """

    restarts: int = 100
    idle_limit: float | None = 60.0
    busy_limit: float | None = 600.0
    stopped_limit: float | None = 10.0
    call_timeout: float = 60.0
    insert_timeout: float = 600.0

    def __post_init__(self) -> None:
        if self.restarts < 0:
            raise ConfigError(f"supervision.restarts must be 0 or more, got {self.restarts}")
        for name in ("call_timeout", "insert_timeout"):
            if not getattr(self, name) > 0:
                raise ConfigError(
                    f"supervision.{name} must be more than 0 s, got {getattr(self, name)}"
                )
        for name in ("idle_limit", "busy_limit", "stopped_limit"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"supervision.{name} must be more than 0 s, or None; got {value}")


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An experiment, the same under every topology.

    It is checked when made: what cannot work raises ConfigError, with the arithmetic.

    Attributes:
      environment: what acts are taken in.
      agent: the algorithm's settings.
      replay: how experience reaches the learner.
      actors, inference, learner, evaluator: the parts.
      supervision: of the parts that are nodes of a program.
      checkpoint: when the whole program is saved.
      transforms: of time steps, in order, from the raw one to the agent.
      evaluation_environment: what the evaluator plays in, with the same spaces; None: the same.
      goal: when the run ends.
      lockstep: which parameters make which experience, and in which order it is stored, follows
        from counts alone, so that two runs make the same parameters; see `distrl.lockstep`. For
        one process, and for heavy_env with its replay in shared memory.
      seed: the root of every seed of the run.
      task: names tables and metrics.
    """

    environment: Environment
    agent: AgentConfig
    replay: ReplayConfig = ReplayConfig()
    actors: ActorsConfig = ActorsConfig()
    inference: InferenceConfig = InferenceConfig()
    learner: LearnerConfig = LearnerConfig()
    evaluator: EvaluatorConfig = EvaluatorConfig()
    supervision: SupervisionConfig = SupervisionConfig()
    checkpoint: CheckpointConfig = CheckpointConfig()
    transforms: tuple[Transform, ...] = ()
    evaluation_environment: Environment | None = None
    goal: Goal = Goal()
    lockstep: bool = False
    seed: int = 0
    task: str = "task"

    def __post_init__(self) -> None:
        if self.seed < 0:
            raise ConfigError(f"seed must be 0 or more, got {self.seed}")
        check_order(self.transforms)
        self._check_evaluation_environment()
        if self.replay.num_shards > self.actors.num_actors:
            raise ConfigError(
                f"replay.num_shards={self.replay.num_shards} is more than "
                f"actors.num_actors={self.actors.num_actors}: an actor writes to one shard, and "
                "some would get nothing"
            )
        self.replay.check(self.learner.batch_size, self.num_streams)
        check_replay = getattr(self.agent, "check_replay", None)
        if check_replay is not None:
            check_replay(self.replay, self.learner.batch_size)
        self.goal.check(self.environment.spec())
        if self.inference.num_inferencers > self.actors.num_actors:
            raise ConfigError(
                f"inference.num_inferencers={self.inference.num_inferencers} is more than "
                f"actors.num_actors={self.actors.num_actors}: some would serve no one"
            )
        if self.lockstep:
            self.lockstep_schedule()
        struct = self.trajectory_struct()  # the agent's own checks, and shapes that do not fit
        memory = self.replay.nbytes(struct)
        limit = _memory_limit()
        if memory > limit:
            raise ConfigError(
                f"replay.max_size={self.replay.max_size} unrolls of "
                f"{memory / self.replay.max_size / 1e6:.1f} MB need {memory / 1e9:.1f} GB, and "
                f"this machine has {limit / 1e9:.1f} GB; at most "
                f"{int(limit / (memory / self.replay.max_size))} unrolls fit"
            )

    def _check_evaluation_environment(self) -> None:
        if self.evaluation_environment is None:
            return
        trained, played = self.environment.spec(), self.evaluation_environment.spec()
        if (
            specs.struct(trained.observation) != specs.struct(played.observation)
            or trained.action != played.action
            or specs.struct(trained.reward) != specs.struct(played.reward)
        ):
            raise ConfigError(
                f"evaluation_environment: {self.evaluation_environment.name} has {played[:3]}; the "
                f"agent is made for {self.environment.name}'s observations, actions and rewards, "
                f"{trained[:3]}"
            )

    def lockstep_schedule(self) -> LockstepSchedule:
        """What happens when, in lockstep. Raises ConfigError where that cannot be."""
        if self.actors.wait_num not in (None, self.actors.num_envs):
            raise ConfigError(
                f"lockstep: actors.wait_num={self.actors.wait_num} of {self.actors.num_envs} "
                "environments come in the order in which they happen to end; leave it None"
            )
        if self.max_actors != self.actors.num_actors:
            raise ConfigError(
                f"lockstep: actors.max_actors={self.max_actors}: actors that come and go make no "
                "two runs alike; leave it None"
            )
        if self.replay.period not in (None, self.replay.unroll_length):
            raise ConfigError(
                f"lockstep: replay.period={self.replay.period} makes more than one unroll of each "
                "stream a round; leave it None"
            )
        if self.replay.backend == "reverb":
            raise ConfigError(
                "lockstep: a Reverb server takes what comes first; take "
                "replay.backend=shared_memory"
            )
        actors = self.actors
        return LockstepSchedule(
            self.replay, self.learner.batch_size, actors.num_actors, actors.num_envs
        )

    def make_agent(self) -> Agent:
        """The agent, behind its transforms if there are any."""
        return make_agent(self.agent, self.transforms, self.environment.spec())

    def trajectory_struct(self) -> Trajectory:
        """Shapes and dtypes of what is stored, of one stream at one step."""
        agent = self.make_agent()
        return specs.trajectory_struct(agent.env_spec, extras_struct(agent), state_struct(agent))

    @property
    def max_actors(self) -> int:
        """Actors that there may be at a time."""
        return self.actors.max_actors or self.actors.num_actors

    @property
    def wait_num(self) -> int:
        """Environments that an actor waits for each turn."""
        return self.actors.wait_num or self.actors.num_envs

    @property
    def num_streams(self) -> int:
        """Of all actors."""
        return self.actors.num_actors * self.actors.num_envs

    @property
    def sync_interval(self) -> int:
        """Inferences of an actor's own inferencer between two refreshes of its parameters."""
        if self.inference.sync_interval is not None:
            return self.inference.sync_interval
        return self.replay.unroll_length * self.actors.num_envs // self.wait_num

    @property
    def unrolls_per_item(self) -> int:
        """Unrolls that one item of a remote queue holds: fewer messages, and batches stay whole."""
        if self.replay.table != "queue":
            return 1
        shard_size = self.replay.max_size // self.replay.num_shards
        return math.gcd(self.wait_num, self.learner.batch_size, shard_size)

    @property
    def shard_batch(self) -> int:
        """Unrolls of a batch that one of the replay's shards gives, rounded up to whole items."""
        per_item = self.unrolls_per_item
        return per_item * math.ceil(self.learner.batch_size / (per_item * self.replay.num_shards))

    def resolved_goal(self) -> Goal:
        """The goal with "auto" replaced by the environment's own threshold."""
        return self.goal.resolve(getattr(self.environment, "return_threshold", None))


def make_agent(
    config: AgentConfig, transforms: tuple[Transform, ...], env_spec: specs.EnvironmentSpec
) -> Agent:
    """An agent, behind its transforms if there are any."""
    if not transforms:
        return config.make(env_spec)
    agent = config.make(specs_seen(transforms, env_spec)[-1])
    return TransformedAgent(agent, transforms, env_spec)


def _memory_limit() -> int:
    """Bytes of this machine's memory that the process may use."""
    with open("/proc/meminfo") as lines:
        total = int(next(lines).split()[1]) * 1024
    try:
        with open("/sys/fs/cgroup/memory.max") as file:
            text = file.read().strip()
    except FileNotFoundError:  # no cgroup of the second version: the machine's own limit
        return total
    return total if text == "max" else min(total, int(text))
