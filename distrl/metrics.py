"""What the parts count, and the one place that adds it up."""

import collections
import csv
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from distrl.errors import ConfigError
from distrl.types import StepType, TimeStep

Report = dict[str, Any]  # {"env_steps": int, "episodes": [[return, length], ...], ...}


class EpisodeStatistics:
    """Returns and lengths of the episodes of a pool's environments, and its count of steps.

    A step is a transition: FIRST is none, so a reset is never counted.
    """

    def __init__(self, num_envs: int):
        """Args: num_envs: of the pool."""
        self._returns = np.zeros(num_envs, np.float64)
        self._turns = np.zeros(num_envs, np.int64)  # asynchronous: of each environment
        self._turn = 0  # synchronous: of all of them
        self._began = np.zeros(num_envs, np.int64)  # turn of the episode's FIRST
        self._steps = 0
        self._episodes: list[list[float]] = []

    def add(self, timestep: TimeStep, env_ids: np.ndarray | None = None) -> None:
        """Counts one vector step; `env_ids` None where it is all environments in order."""
        kinds = timestep.step_type
        self._steps += np.count_nonzero(kinds)  # FIRST is 0
        if env_ids is None:
            self._returns += timestep.reward
            self._turn += 1
        else:
            self._returns[env_ids] += timestep.reward
            self._turns[env_ids] += 1
        last = kinds == StepType.LAST
        if not np.count_nonzero(last):
            return
        rows = np.flatnonzero(last)
        envs = rows if env_ids is None else env_ids[rows]
        turns = self._turn if env_ids is None else self._turns[envs]
        # Turns are counted from 1, and the episode's own turns are its steps and its FIRST.
        lengths = turns - self._began[envs] - 1
        self._episodes.extend(
            map(list, zip(self._returns[envs].tolist(), lengths.tolist(), strict=True))
        )
        self._returns[envs] = 0.0  # what follows is FIRST, whose reward is 0
        self._began[envs] = turns

    def take(self) -> Report:
        """What came since the last call."""
        report = {"env_steps": int(self._steps), "episodes": self._episodes}
        self._steps, self._episodes = 0, []
        return report


@dataclasses.dataclass(frozen=True)
class Goal:
    """When a run ends by itself; None: never for that reason.

    Attributes:
      mean_return: the mean return of the last `window` episodes reaches this. "auto": the
        environment's own threshold where it names one and no other end is set; None: no goal.
      window: episodes that the mean is taken over.
      max_env_steps: environment steps that the learner has trained on.
      max_seconds: since the first learner step.
    """

    mean_return: float | str | None = "auto"
    window: int = 100
    max_env_steps: int | None = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.mean_return, str) and self.mean_return != "auto":
            raise ConfigError(
                f"goal.mean_return must be a number, 'auto' or None, got {self.mean_return!r}"
            )
        for name in ("window", "max_env_steps", "max_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"goal.{name} must be more than 0, got {value}")

    def resolve(self, return_threshold: float | None) -> "Goal":
        """The goal with "auto" replaced, given the environment's own threshold."""
        if self.mean_return != "auto":
            return self
        budget = self.max_env_steps is not None or self.max_seconds is not None
        return dataclasses.replace(self, mean_return=None if budget else return_threshold)


class Monitor:
    """Adds up the reports of all nodes, prints progress, writes `metrics.csv`, judges the goal."""

    def __init__(
        self,
        goal: Goal,
        on_end: Callable[[str, bool], None],
        run_dir: Path | None = None,
        interval: float = 2.0,
        printer: Callable[[str], None] = print,
    ):
        """Args:
        goal: with "auto" already resolved.
        on_end: called once, with the reason and whether the run reached what it was asked for.
        run_dir: where `metrics.csv` is written; None: nowhere.
        interval: seconds between two lines.
        printer: takes a line of progress.
        """
        self._goal = goal
        self._on_end = on_end
        self._interval = interval
        self._printer = printer
        self._lock = threading.Lock()
        self._seen: dict[str, int] = {}
        self._acted = 0
        self._episodes = 0
        self._recent: collections.deque[float] = collections.deque(maxlen=goal.window)
        self._learner: dict[str, float] = {}
        self._evaluation: float | None = None
        self._began = time.monotonic()
        self._first_update: float | None = None
        self._last_line = (self._began, 0)
        self._ended = False
        self._file = open(run_dir / "metrics.csv", "w", newline="") if run_dir else None  # noqa: SIM115
        self._csv = csv.writer(self._file) if self._file else None
        self._header: list[str] = []

    def report(self, node: str, number: int, reports: Sequence[Mapping[str, Any]]) -> None:
        """Takes one node's reports.

        Args:
          node: its name.
          number: of this call, rising by one; a repeated one is dropped, because a remote call
            may come twice.
          reports: as `Actor.take_report`, `Learner.take_report` or the evaluator give them.
        """
        with self._lock:
            if self._seen.get(node, -1) >= number:
                return
            self._seen[node] = number
            for report in reports:
                self._add(report)
            if time.monotonic() - self._last_line[0] >= self._interval:
                self.line()
            self._judge()

    def _add(self, report: Mapping[str, Any]) -> None:
        if "learner_steps" in report:
            self._learner = dict(report)
            if self._first_update is None and report["learner_steps"] > 0:
                self._first_update = time.monotonic()
                self._printer(f"first learner step {self._first_update - self._began:.1f} s in")
        elif "evaluation_return" in report:
            self._evaluation = float(report["evaluation_return"])
        else:
            self._acted += int(report["env_steps"])
            for episode_return, _ in report["episodes"]:
                self._episodes += 1
                self._recent.append(float(episode_return))

    @property
    def mean_return(self) -> float | None:
        """Of the last `window` episodes; None before the first one ended."""
        return float(np.mean(self._recent)) if self._recent else None

    def snapshot(self) -> dict[str, Any]:
        """Everything that is known now."""
        return {
            "seconds": round(time.monotonic() - self._began, 2),
            "env_steps": int(self._learner.get("env_steps", 0)),
            "env_steps_acted": self._acted,
            "learner_steps": int(self._learner.get("learner_steps", 0)),
            "episodes": self._episodes,
            "mean_return": self.mean_return,
            "evaluation_return": self._evaluation,
            **{
                name: value
                for name, value in sorted(self._learner.items())
                if name not in ("env_steps", "learner_steps")
            },
        }

    def line(self) -> None:
        """Prints one line of progress and appends one to `metrics.csv`."""
        now, then = time.monotonic(), self._last_line
        state = self.snapshot()
        speed = (state["env_steps"] - then[1]) / max(now - then[0], 1e-9)
        self._last_line = (now, state["env_steps"])
        mean = "-" if state["mean_return"] is None else f"{state['mean_return']:.1f}"
        text = (
            f"{state['seconds']:6.1f} s  env steps {state['env_steps']:>10,} ({speed:,.0f}/s)  "
            f"learner steps {state['learner_steps']:,}  episodes {self._episodes:,}  "
            f"return({len(self._recent)}) {mean}"
        )
        if "policy_lag_mean" in state:
            text += f"  lag {state['policy_lag_mean']:.1f} max {state['policy_lag_max']:.0f}"
        if self._evaluation is not None:
            text += f"  evaluation {self._evaluation:.1f}"
        self._printer(text)
        if self._csv is not None and self._file is not None and "loss" in state:
            if not self._header:
                self._header = list(state)
                self._csv.writerow(self._header)
            self._csv.writerow([state.get(name) for name in self._header])
            self._file.flush()

    def close(self) -> None:
        """A last line, then closes the file."""
        self.line()
        if self._file is not None:
            self._file.close()
            self._file = self._csv = None

    def _judge(self) -> None:
        """Calls `on_end` the first time that the goal or a budget is reached."""
        goal, mean = self._goal, self.mean_return
        steps = int(self._learner.get("env_steps", 0))
        if self._ended:
            return
        wanted = goal.mean_return
        if mean is None or len(self._recent) < goal.window:
            mean = -math.inf
        if isinstance(wanted, (int, float)) and mean >= wanted:
            self._end(
                f"the mean return of the last {goal.window} episodes is {mean:.1f} "
                f"(goal {wanted:g}) after {steps:,} environment steps trained on",
                True,
            )
            return
        if goal.max_env_steps is not None and steps >= goal.max_env_steps:
            self._out_of_budget(f"{steps:,} environment steps trained on")
        elif goal.max_seconds is not None and self._seconds_learning() >= goal.max_seconds:
            self._out_of_budget(f"{goal.max_seconds:g} s since the first learner step")

    def _seconds_learning(self) -> float:
        return 0.0 if self._first_update is None else time.monotonic() - self._first_update

    def _out_of_budget(self, what: str) -> None:
        if self._goal.mean_return is None:
            self._end(what, True)
            return
        mean = "no episode ended" if self.mean_return is None else f"{self.mean_return:.1f}"
        self._end(
            f"the goal of a mean return of {self._goal.mean_return:g} was not reached: {mean} "
            f"after {what}",
            False,
        )

    def _end(self, reason: str, reached: bool) -> None:
        self._ended = True
        self._on_end(reason, reached)
