"""Settings of an experiment's parts, checked when they are made."""

import dataclasses
from typing import Any, ClassVar

from distrl.envs.time_limit import with_time_limit
from distrl.errors import ConfigError
from distrl.field_checks import (
    check_choice,
    check_flag,
    check_whole,
    is_number,
    is_whole,
    plain_numbers,
)
from distrl.learner_config import LearnerConfig as LearnerConfig  # documented here as well
from distrl.runtime.durations import check_duration


@dataclasses.dataclass(frozen=True)
class ActorsConfig:
    """The actors.

    Attributes:
      num_actors: actors of the program, 1,024 at most; in one process their environments form one
        pool.
      num_envs: environments per actor, 4,096 at most.
      wait_num: environments that an actor waits for in each step. None: all (synchronous).
      pin: pin an actor's process to one core if a library steps its environments in one thread:
        the two only ever wait for each other, and waking another core costs more than a step of a
        cheap environment. Not where a learner of short updates, which the actors wait for, would
        have no core left. In one process both share a core while that is measured to be faster.
      max_actors: upper limit for `distrl actors RUN N`, which scales a running program; 1,024 at
        most. None: `num_actors`.
      min_actors: act in rounds; one ends when this many actors have delivered their unrolls, and
        `round_grace` is over. The learner learns between rounds. None: actors act all the time.
      round_grace: seconds that a round stays open after `min_actors` have delivered.
      late_data: what happens to unrolls of a round that has ended: "keep" or "drop".
    """

    num_actors: int = 2
    num_envs: int = 32
    wait_num: int | None = None
    pin: bool = True
    max_actors: int | None = None
    min_actors: int | None = None
    round_grace: float = 0.0
    late_data: str = "keep"

    BEFORE: ClassVar[dict[str, Any]] = {"round_grace": 0.0, "late_data": "keep"}

    def __post_init__(self) -> None:
        plain_numbers(self)
        for name in ("num_actors", "num_envs"):
            check_whole(self, name, "actors")
        check_whole(self, "max_actors", "actors", none=True)
        check_flag(self, "pin", "actors")
        if self.max_actors is not None and self.max_actors < self.num_actors:
            raise ConfigError(
                f"actors.max_actors={self.max_actors} is less than actors.num_actors="
                f"{self.num_actors}"
            )
        wait_num = self.wait_num
        if wait_num is not None and not (is_whole(wait_num) and wait_num <= self.num_envs):
            raise ConfigError(
                f"actors.wait_num must lie between 1 and actors.num_envs={self.num_envs}, "
                f"got {wait_num!r}"
            )
        self._check_rounds()

    def _check_rounds(self) -> None:
        check_choice(self, "late_data", ("keep", "drop"), "actors")
        check_duration("actors.round_grace", self.round_grace, zero=True, infinite=False)
        if self.min_actors is None:
            if self.round_grace or self.late_data != "keep":
                raise ConfigError(
                    "actors.round_grace and actors.late_data are for rounds; set actors.min_actors"
                )
            return
        if not (is_whole(self.min_actors) and self.min_actors <= self.num_actors):
            raise ConfigError(
                f"actors.min_actors must lie between 1 and actors.num_actors={self.num_actors}, "
                f"got {self.min_actors!r}"
            )
        if self.wait_num not in (None, self.num_envs):
            raise ConfigError(
                f"actors.min_actors: in a round every stream makes an unroll, and with "
                f"actors.wait_num={self.wait_num} these end at different times; leave it None"
            )

    @property
    def late_streams(self) -> int:
        """The most streams that may deliver twice in a round: late, and in time."""
        if self.min_actors is None or self.late_data == "drop":
            return 0
        return (self.largest_num_actors - self.min_actors) * self.num_envs

    @property
    def largest_num_actors(self) -> int:
        """The largest number of actors that may run at a time."""
        return self.max_actors or self.num_actors

    @property
    def envs_per_step(self) -> int:
        """Environments that an actor waits for in each step."""
        return self.wait_num or self.num_envs

    @property
    def num_streams(self) -> int:
        """Streams of all actors."""
        return self.num_actors * self.num_envs

    def with_streams(self, count: int) -> "ActorsConfig":
        """Returns the actors with `count` streams instead of each environment."""
        wait_num = None if self.wait_num is None else self.wait_num * count
        return dataclasses.replace(self, num_envs=self.num_envs * count, wait_num=wait_num)


@dataclasses.dataclass(frozen=True)
class InferenceConfig:
    """Inference of actions.

    Attributes:
      num_inferencers: inference services in `light_env`; actors are spread over them evenly.
      sync_interval: inferences between two refreshes of the parameters. None: one unroll.
      timeout: deadline in seconds of a request, the service's first compilation included.
      num_gpus: GPUs of the services, one each; services share them if there are fewer. 0: they run
        on the CPU and see none.
      share_gpus: whether these are the learner's GPUs, beginning with its first, and others only if
        the learner has fewer.
      transport: how actors ask a service: "shared_memory", where all of them are on its machine;
        "courier", calls over the network; or "auto", which takes the first where it can.
    """

    num_inferencers: int = 1
    sync_interval: int | None = None
    timeout: float = 120.0
    num_gpus: int = 0
    share_gpus: bool = False
    transport: str = "auto"

    def __post_init__(self) -> None:
        plain_numbers(self)
        check_choice(self, "transport", ("auto", "courier", "shared_memory"), "inference")
        check_whole(self, "num_inferencers", "inference")
        check_whole(self, "sync_interval", "inference", none=True)
        check_duration("inference.timeout", self.timeout)
        check_whole(self, "num_gpus", "inference", least=0)
        check_flag(self, "share_gpus", "inference")
        if self.share_gpus and not self.num_gpus:
            raise ConfigError(
                "inference.share_gpus=True with inference.num_gpus=0: the services use none; take "
                "inference.num_gpus=1"
            )
        if self.num_gpus > self.num_inferencers:
            raise ConfigError(
                f"inference.num_gpus={self.num_gpus} is more than inference.num_inferencers="
                f"{self.num_inferencers}: an inferencer uses one"
            )


@dataclasses.dataclass(frozen=True)
class EvaluatorConfig:
    """Evaluation during training, on separate environments.

    Attributes:
      num_evaluators: evaluators of the program, 0 or 1.
      num_envs: environments of the evaluator, 4,096 at most.
      episodes: episodes played greedily in one evaluation.
      interval: seconds between the starts of two evaluations.
      max_episode_steps: a time limit of the evaluator's environments, besides their own, or None.
      max_seconds: seconds after which an evaluation ends, and only the episodes that have ended
        count, so that long ones may be missing; None: no limit.
    """

    num_evaluators: int = 0
    num_envs: int = 10
    episodes: int = 10
    interval: float = 10.0
    max_episode_steps: int | None = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        plain_numbers(self)
        check_whole(self, "num_evaluators", "evaluator", least=0)
        if self.num_evaluators > 1:
            raise ConfigError(f"evaluator.num_evaluators must be 0 or 1, got {self.num_evaluators}")
        for name in ("num_envs", "episodes"):
            check_whole(self, name, "evaluator")
        check_whole(self, "max_episode_steps", "evaluator", none=True)
        check_duration("evaluator.interval", self.interval)
        check_duration("evaluator.max_seconds", self.max_seconds, none="or None")

    def limited(self, environment: Any) -> Any:
        """Returns an environment with the evaluator's time limit. Raises ConfigError: it can't."""
        limit = self.max_episode_steps
        return environment if limit is None else with_time_limit(environment, limit)


@dataclasses.dataclass(frozen=True)
class SupervisionConfig:
    """What happens to nodes that die or hang.

    All but the monitor are restarted (the learner, and a replay on Reverb, from the last
    checkpoint), with a back-off while they fail soon. Three lives in a row that end with the same
    traceback end the program with it. Limits are in seconds; None: no limit.

    Attributes:
      restarts: restarts of one node, in total; 0: the first failure ends the program.
      idle_limit: seconds without progress or CPU use before a working node is considered hung.
      busy_limit: seconds without progress before a working node that uses the CPU is considered
        hung: longer than any step of an environment, and than the longest compilation.
      stopped_limit: seconds after which a node that a signal has stopped is considered hung.
      call_timeout: deadline in seconds of a call to the learner or the monitor.
      insert_timeout: seconds that an actor waits for room in the replay, without a sign of progress
        of the learner, before it fails.
      log_limit_mb: size of a node's log in MB, beyond which the middle is left out; None: no limit.
    """

    restarts: int = 100
    idle_limit: float | None = 60.0
    busy_limit: float | None = 600.0
    stopped_limit: float | None = 10.0
    call_timeout: float = 60.0
    insert_timeout: float = 600.0
    log_limit_mb: float | None = 50.0

    def __post_init__(self) -> None:
        plain_numbers(self)
        check_whole(self, "restarts", "supervision", least=0)
        for name in ("call_timeout", "insert_timeout"):
            check_duration(f"supervision.{name}", getattr(self, name))
        limit = self.log_limit_mb
        if limit is not None and not (is_number(limit, infinite=True) and limit >= 0.1):
            raise ConfigError(f"supervision.log_limit_mb must be 0.1 or more, or None; got {limit}")
        for name in ("idle_limit", "busy_limit", "stopped_limit"):
            check_duration(f"supervision.{name}", getattr(self, name), none="or None")


@dataclasses.dataclass(frozen=True)
class MetricsConfig:
    """Where metrics go besides `metrics.csv`.

    Attributes:
      episodes: write a row for each episode to `episodes.csv`, of 100 MB at most.
      json_lines: write the rows to `metrics.jsonl` as well.
      tensorboard: write event files for TensorBoard, in the run folder; needs tensorboardX.
      wandb: log to Weights & Biases, which must be installed and logged in.
    """

    episodes: bool = True
    json_lines: bool = False
    tensorboard: bool = False
    wandb: bool = False

    BEFORE: ClassVar[dict[str, Any]] = {
        "episodes": True, "json_lines": False, "tensorboard": False, "wandb": False
    }  # fmt: skip

    def __post_init__(self) -> None:
        plain_numbers(self)
        for field in dataclasses.fields(self):
            check_flag(self, field.name, "metrics")


@dataclasses.dataclass(frozen=True)
class CheckpointConfig:
    """When the whole program is saved, and what is kept.

    Attributes:
      period: seconds between two checkpoints. None: only when the run ends or is stopped.
      keep: newest checkpoints to keep, besides the one with the best evaluation or, without
        evaluations, with the best mean return in training.
      replay: save the replay's table too; without it a resumed run starts with an empty one.
      grace: seconds that the learner may take to save when the program is stopped.
    """

    period: float | None = 300.0
    keep: int = 3
    replay: bool = True
    grace: float = 30.0

    def __post_init__(self) -> None:
        plain_numbers(self)
        none = "or None for the end only"
        check_duration("checkpoint.period", self.period, none=none, infinite=False)
        check_whole(self, "keep", "checkpoint")
        check_flag(self, "replay", "checkpoint")
        check_duration("checkpoint.grace", self.grace, infinite=False)
