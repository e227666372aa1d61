"""What the parts count, and the one place that adds it up."""

import collections
import csv
import dataclasses
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from distrl.episodes import Outcome, Record
from distrl.errors import ConfigError
from distrl.specs import EnvironmentSpec

Report = dict[str, Any]  # {"env_steps": int, "episodes": [Record, ...], ...}


@dataclasses.dataclass(frozen=True)
class Goal:
    """When a run ends by itself; None: never for that reason.

    Attributes:
      mean_return: the mean return of the last `window` episodes reaches this. "auto": the
        environment's own threshold where it names one and no other end is set; None: no goal.
      success_rate: so much of the last `window` episodes were a success, in (0, 1]. Needs an
        environment that says so. With a `mean_return` beside it, both must be reached.
      window: episodes that the mean and the rate are taken over.
      max_env_steps: environment steps that the learner has trained on.
      max_learner_steps: updates; no more are made than these.
      max_seconds: since the first learner step.
    """

    mean_return: float | str | None = "auto"
    success_rate: float | None = None
    window: int = 100
    max_env_steps: int | None = None
    max_learner_steps: int | None = None
    max_seconds: float | None = None

    def __post_init__(self) -> None:
        if isinstance(self.mean_return, str) and self.mean_return != "auto":
            raise ConfigError(
                f"goal.mean_return must be a number, 'auto' or None, got {self.mean_return!r}"
            )
        if self.success_rate is not None and not 0 < self.success_rate <= 1:
            raise ConfigError(
                "goal.success_rate must be more than 0 and at most 1 (0.9 for 90 %), got "
                f"{self.success_rate}"
            )
        for name in ("window", "max_env_steps", "max_learner_steps", "max_seconds"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ConfigError(f"goal.{name} must be more than 0, got {value}")

    def resolve(self, return_threshold: float | None) -> "Goal":
        """The goal with "auto" replaced, given the environment's own threshold."""
        if self.mean_return != "auto":
            return self
        others = (self.success_rate, self.max_env_steps, self.max_seconds)
        alone = all(other is None for other in others)
        return dataclasses.replace(self, mean_return=return_threshold if alone else None)

    def check(self, spec: EnvironmentSpec) -> None:
        """Raises ConfigError for a goal that no run in this environment could reach."""
        if self.success_rate is not None and "success" not in spec.env_info:
            declared = ", ".join(sorted(spec.env_info)) or "nothing"
            raise ConfigError(
                f"goal.success_rate={self.success_rate} needs an environment whose env_info has "
                f"'success'; this one declares {declared}"
            )


def first_number(life: int) -> int:
    """Of the reports of a node in this life: above all those of its lives before."""
    return life << 32


class Monitor:
    """Adds up the reports of all nodes, prints progress, writes `metrics.csv`, judges the goal."""

    def __init__(
        self,
        goal: Goal,
        on_end: Callable[[str, bool], None],
        run_dir: Path | None = None,
        interval: float = 2.0,
        printer: Callable[[str], None] = print,
        spec: EnvironmentSpec | None = None,
    ):
        """Args:
        goal: with "auto" already resolved.
        on_end: called once, with the reason and whether the run reached what it was asked for.
        run_dir: where `metrics.csv` is written; None: nowhere.
        interval: seconds between two lines.
        printer: takes a line of progress.
        spec: of the environment, for what it says of its episodes; None: nothing, and its reward
          is a scalar.
        """
        self._goal = goal
        self._has_success = spec is not None and "success" in spec.env_info
        shape = () if spec is None else spec.reward.shape
        self._components = math.prod(shape) if shape else 0  # of a vector of rewards
        self._on_end = on_end
        self._interval = interval
        self._printer = printer
        self._lock = threading.Lock()
        self._seen: dict[str, int] = {}
        self._acted = 0
        self._acted_by: collections.Counter[str] = collections.Counter()
        self._unreported = 0  # acted by lives that ended before they told; their episodes are lost
        self._episodes = 0
        self._recent: collections.deque[Record] = collections.deque(maxlen=goal.window)
        self._restarts = 0
        self._learner: dict[str, float] = {}
        self._evaluation: dict[str, Any] = {}
        self._began = time.monotonic()
        self._first_update: float | None = None
        self._last_line = (self._began, 0)
        self._ended = False
        self._file: TextIO | None = None
        self._header: list[str] = []
        if run_dir is not None:
            self._file, self._header = _open(run_dir / "metrics.csv")
        self._csv = csv.writer(self._file) if self._file else None

    def report(self, node: str, number: int, reports: Sequence[Mapping[str, Any]]) -> None:
        """Takes one node's reports.

        Args:
          node: its name.
          number: of this call, rising, from `first_number` of the node's life on; a repeated one is
            dropped, because a remote call may come twice.
          reports: as `Actor.take_report`, `Learner.take_report` or the evaluator give them.
        """
        with self._lock:
            if self._seen.get(node, -1) >= number:
                return
            self._seen[node] = number
            for report in reports:
                self._add(node, report)
            if time.monotonic() - self._last_line[0] >= self._interval:
                self.line()
            self._judge()

    def state(self) -> dict[str, Any]:
        """All that it knows, as plain data for JSON; safe in any thread."""
        with self._lock:
            now = time.monotonic()
            learning = None if self._first_update is None else now - self._first_update
            return {
                "env_steps_acted": self._acted,
                "episodes": self._episodes,
                "recent": list(self._recent),
                "env_restarts": self._restarts,
                "learner": dict(self._learner),
                "evaluation": dict(self._evaluation),
                "seconds": now - self._began,
                "seconds_learning": learning,
                "seen": dict(self._seen),
                "mean_return": self.mean_return,
                "full_window": len(self._recent) == self._goal.window,
            }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Goes on from what `state` gave, as if no time had passed since."""
        with self._lock:
            now = time.monotonic()
            self._acted, self._episodes = state["env_steps_acted"], state["episodes"]
            self._recent.extend(state["recent"])
            self._restarts = state["env_restarts"]
            self._learner, self._evaluation = dict(state["learner"]), dict(state["evaluation"])
            self._began = now - state["seconds"]
            if state["seconds_learning"] is not None:
                self._first_update = now - state["seconds_learning"]
            self._seen = dict(state["seen"])
            self._last_line = (now, int(self._learner.get("env_steps", 0)))

    def judge(self) -> None:
        """Ends the run where what is known already says so: after `restore`."""
        with self._lock:
            self._judge()

    def _add(self, node: str, report: Mapping[str, Any]) -> None:
        if "acted_before" in report:  # a life begins; what the one before has not told is known
            unreported = int(report["acted_before"]) - self._acted_by[node]
            self._unreported += unreported
            self._count(node, unreported)
            return
        self._restarts += int(report.get("env_restarts", 0))
        if "learner_steps" in report:
            self._learner = dict(report)
            if self._first_update is None and report["learner_steps"] > 0:
                self._first_update = time.monotonic()
                self._printer(f"first learner step {self._first_update - self._began:.1f} s in")
        elif "evaluation_return" in report:
            self._evaluation = dict(report)
        else:
            self._count(node, int(report["env_steps"]))
            self._episodes += len(report["episodes"])
            self._recent.extend(report["episodes"])

    def _count(self, node: str, steps: int) -> None:
        self._acted += steps
        self._acted_by[node] += steps

    @property
    def mean_return(self) -> float | None:
        """Of the last `window` episodes; None before the first one ended."""
        return self._mean(0)

    @property
    def success_rate(self) -> float | None:
        """Of the last `window` episodes; None where the environment does not say."""
        return self._rate(Outcome.SUCCESS) if self._has_success else None

    def _mean(self, column: int) -> float | None:
        """Of a column of the recent episodes' records."""
        if not self._recent:
            return None
        return float(np.mean([record[column] for record in self._recent]))

    def _rate(self, outcome: int) -> float | None:
        """How many of the recent episodes ended so, from 0 to 1."""
        if not self._recent:
            return None
        return float(np.mean([record[2] == outcome for record in self._recent]))

    def snapshot(self) -> dict[str, Any]:
        """Everything that is known now; None for what is not, or not said."""
        numbers = range(self._components)
        parts = self._evaluation.get("evaluation_returns", [None] * self._components)
        return {
            "seconds": round(time.monotonic() - self._began, 2),
            "env_steps": int(self._learner.get("env_steps", 0)),
            "env_steps_acted": self._acted,
            "env_steps_unreported": self._unreported,
            "learner_steps": int(self._learner.get("learner_steps", 0)),
            "episodes": self._episodes,
            "mean_return": self.mean_return,
            **{f"mean_return_{i}": self._mean(3 + i) for i in numbers},
            "mean_length": self._mean(1),
            "success_rate": self.success_rate,
            "failure_rate": self._rate(Outcome.FAILURE) if self._has_success else None,
            "time_out_rate": self._rate(Outcome.TIME_OUT),
            "env_restarts": self._restarts,
            "evaluation_return": self._evaluation.get("evaluation_return"),
            **{f"evaluation_return_{i}": parts[i] for i in numbers},
            "evaluation_success_rate": self._evaluation.get("evaluation_success_rate"),
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
        if state["success_rate"] is not None:
            text += f"  success {100 * state['success_rate']:.0f} %"
        if "policy_lag_mean" in state:
            text += f"  lag {state['policy_lag_mean']:.1f} max {state['policy_lag_max']:.0f}"
        if state["evaluation_return"] is not None:
            text += f"  evaluation {state['evaluation_return']:.1f}"
        if state["evaluation_success_rate"] is not None:
            text += f" (success {100 * state['evaluation_success_rate']:.0f} %)"
        if self._restarts:
            text += f"  environments restarted {self._restarts}"
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
        goal = self._goal
        steps = int(self._learner.get("env_steps", 0))
        updates = int(self._learner.get("learner_steps", 0))
        if self._ended:
            return
        targets = self._targets()
        full = len(self._recent) == goal.window
        if (
            targets
            and full
            and all(came is not None and came >= want for _, came, want, _ in targets)
        ):
            reached = " and ".join(
                f"the {name} of the last {goal.window} episodes is {words}"
                for name, _, _, words in targets
            )
            self._end(f"{reached} after {steps:,} environment steps trained on", True)
        elif goal.max_env_steps is not None and steps >= goal.max_env_steps:
            self._out_of_budget(f"{steps:,} environment steps trained on")
        elif goal.max_learner_steps is not None and updates >= goal.max_learner_steps:
            self._out_of_budget(f"{updates:,} updates")
        elif goal.max_seconds is not None and self._seconds_learning() >= goal.max_seconds:
            self._out_of_budget(f"{goal.max_seconds:g} s since the first learner step")

    def _targets(self) -> list[tuple[str, float | None, float, str]]:
        """Of each: what it is, what came, what is wanted, and both in words."""
        goal, targets = self._goal, []
        if isinstance(goal.mean_return, (int, float)):
            mean, want = self.mean_return, goal.mean_return
            came = "no episode ended" if mean is None else f"{mean:.1f}"
            targets.append(("mean return", mean, want, f"{came} (goal {want:g})"))
        if goal.success_rate is not None:
            rate, want = self.success_rate, goal.success_rate
            came = "no episode ended" if rate is None else f"{100 * rate:.0f} %"
            targets.append(("success rate", rate, want, f"{came} (goal {100 * want:g} %)"))
        return targets

    def _seconds_learning(self) -> float:
        return 0.0 if self._first_update is None else time.monotonic() - self._first_update

    def _out_of_budget(self, what: str) -> None:
        missed = [f"{name} {words}" for name, _, _, words in self._targets()]
        if missed:
            self._end(f"the goal was not reached: {', '.join(missed)} after {what}", False)
        else:
            self._end(what, True)

    def _end(self, reason: str, reached: bool) -> None:
        self._ended = True
        self._on_end(reason, reached)


def _open(path: Path) -> tuple[TextIO, list[str]]:
    """The file, to append rows to, and the names in its first row; none: it has none."""
    with open(path, "a+b") as binary:
        binary.seek(0)
        whole = binary.read()
        if not whole.endswith(b"\n"):  # whoever wrote it died in the middle of a row
            whole = whole[: whole.rfind(b"\n") + 1]
            binary.truncate(len(whole))
    header = next(csv.reader(whole[: whole.find(b"\n")].decode().splitlines()), [])
    return open(path, "a", newline=""), header
