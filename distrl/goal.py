"""The goal of a run: when it ends."""

import dataclasses
from collections.abc import Mapping
from typing import NamedTuple

from distrl.errors import ConfigError
from distrl.field_checks import check_whole, is_number, plain_numbers
from distrl.runtime.durations import check_duration
from distrl.specs import EnvironmentSpec

MISSED = "the goal was not reached"
"""Part of the reason why a run has ended without reaching its goal."""
_BUDGETS = (
    "max_env_steps", "max_episodes", "max_trained_steps", "max_learner_steps", "max_seconds",
)  # fmt: skip


class Progress(NamedTuple):
    """The figures that a goal is judged by."""

    env_steps: int  # taken by the actors
    episodes: int
    trained_steps: int  # transitions trained on, each counted as often as it was used
    learner_steps: int
    seconds: float  # since the first learner step
    mean_return: float | None  # over the last `window` episodes; None before one has ended
    success_rate: float | None
    full_window: bool  # whether that many episodes have ended
    acting_over: bool  # the actors' budget is spent, and the learner has used what they made
    evaluation_return: float | None = None  # the last evaluation's; None before the first one


class GoalVerdict(NamedTuple):
    """Why a run ends, and whether it has reached what was asked for."""

    reason: str
    reached: bool


class _Target(NamedTuple):
    """One part of a goal, and how far the run has come."""

    name: str
    value: float | None
    wanted: float
    text: str  # both
    over: str  # which episodes it is taken over
    known: bool  # whether these have been played

    @property
    def reached(self) -> bool:
        return self.known and self.value is not None and self.value >= self.wanted


@dataclasses.dataclass(frozen=True)
class Goal:
    """Conditions that end a run; a condition that is None does not apply.

    Attributes:
      mean_return: a mean return of the last `window` episodes to reach. "auto": the environment's
        own threshold if it has one and no other end is set. None: no such goal.
      success_rate: a share of the last `window` episodes that must be successes, in (0, 1]. Needs
        an environment that reports success. With a `mean_return` too, both must be reached.
      evaluation_return: a mean return of an evaluation to reach, as well as `mean_return` and
        `success_rate` if these are set. Needs an evaluator.
      window: episodes that the mean and the rate are taken over.
      max_env_steps: environment steps that the actors take, resets not counted. What they made is
        still learned from, as far as it fills batches.
      max_episodes: episodes that the actors play to their end; what they made is still learned
        from, as for `max_env_steps`.
      max_trained_steps: transitions that the learner trains on, each as often as it is sampled.
      max_learner_steps: updates that the learner makes.
      max_seconds: seconds since the first learner step; the time that a resumed program takes
        to start does not count.
    """

    mean_return: float | str | None = "auto"
    success_rate: float | None = None
    window: int = 100
    max_env_steps: int | None = None
    max_learner_steps: int | None = None
    max_seconds: float | None = None
    max_trained_steps: int | None = None
    max_episodes: int | None = None
    evaluation_return: float | None = None

    def __post_init__(self) -> None:
        plain_numbers(self)
        rate = self.success_rate
        if rate is not None and not (is_number(rate) and 0 < rate <= 1):
            raise ConfigError(
                f"goal.success_rate must be more than 0 and at most 1 (0.9 for 90 %), got {rate}"
            )
        for name, auto in (("mean_return", ", 'auto'"), ("evaluation_return", "")):
            value = getattr(self, name)
            if is_number(value) or value is None or (auto and value == "auto"):
                continue
            if isinstance(value, float):
                raise ConfigError(
                    f"goal.{name} must be finite, or None for no such goal; got {value}"
                )
            raise ConfigError(f"goal.{name} must be a number{auto} or None, got {value!r}")
        check_whole(self, "window", "goal")
        for name in _BUDGETS:
            if name != "max_seconds":
                check_whole(self, name, "goal", none=True)
        check_duration("goal.max_seconds", self.max_seconds, none="or None")

    def resolve(self, return_threshold: float | None) -> "Goal":
        """Returns the goal with "auto" replaced, given the environment's own threshold."""
        if self.mean_return != "auto":
            return self
        ends = ("success_rate", "evaluation_return", *_BUDGETS)
        alone = all(getattr(self, name) is None for name in ends)
        return dataclasses.replace(self, mean_return=return_threshold if alone else None)

    def within(self, other: "Goal") -> "Goal":
        """Returns the goal with another one's budgets where it has none of its own."""
        budgets = {name: getattr(other, name) for name in _BUDGETS if getattr(self, name) is None}
        return dataclasses.replace(self, **budgets)

    def check(self, spec: EnvironmentSpec) -> None:
        """Raises ConfigError for a goal that no run in this environment could reach."""
        if self.success_rate is not None and "success" not in spec.env_info:
            declared = ", ".join(sorted(spec.env_info)) or "nothing"
            raise ConfigError(
                f"goal.success_rate={self.success_rate} needs an environment whose env_info has "
                f"'success'; this one declares {declared}"
            )

    def judge(self, progress: Progress) -> GoalVerdict | None:
        """Returns why the run ends here; None if it does not. "auto" must be resolved."""
        targets = self._targets(progress)
        if targets and all(target.reached for target in targets):
            reached = " and ".join(
                f"the {target.name}{target.over} is {target.text}" for target in targets
            )
            return GoalVerdict(f"{reached} after {progress.env_steps:,} environment steps", True)
        spent = self._spent(progress)
        if spent is None:
            return None
        if progress.learner_steps == 0:
            why = f"the budget ended before the first update: {spent}; it has to be larger"
            return GoalVerdict(why, False)
        if not targets:
            return GoalVerdict(spent, True)
        missed = ", ".join(f"{target.name} {target.text}" for target in targets)
        return GoalVerdict(f"{MISSED}: {missed} after {spent}", False)

    @property
    def acting_budget(self) -> tuple[int | None, int | None]:
        """The budgets of what actors do: environment steps and episodes."""
        return self.max_env_steps, self.max_episodes

    def is_acted(self, env_steps: int, episodes: int) -> bool:
        """Returns whether a budget of what actors do is reached."""
        made = zip((env_steps, episodes), self.acting_budget)
        return any(budget is not None and count >= budget for count, budget in made)

    def _spent(self, progress: Progress) -> str | None:
        """Returns which budget is spent; None if there is some left of each."""
        if progress.acting_over:
            steps, most = f"{progress.env_steps:,} environment steps", self.max_episodes
            if self.max_env_steps is None or (most is not None and progress.episodes >= most):
                return f"{progress.episodes:,} episodes, {steps}"
            return steps
        trained, updates = progress.trained_steps, progress.learner_steps
        if self.max_trained_steps is not None and trained >= self.max_trained_steps:
            return f"{trained:,} transitions trained on"
        if self.max_learner_steps is not None and updates >= self.max_learner_steps:
            return f"{updates:,} updates"
        if self.max_seconds is not None and progress.seconds >= self.max_seconds:
            return f"{self.max_seconds:g} s since the first learner step"
        return None

    def _targets(self, progress: Progress) -> list[_Target]:
        targets = []
        last, full = f" of the last {self.window} episodes", progress.full_window
        if isinstance(self.mean_return, (int, float)):
            mean, wanted = progress.mean_return, self.mean_return
            value = "no episode ended" if mean is None else f"{mean:.1f}"
            text = f"{value} (goal {wanted:g})"
            targets.append(_Target("mean return", mean, wanted, text, last, full))
        if self.success_rate is not None:
            rate, wanted = progress.success_rate, self.success_rate
            value = "no episode ended" if rate is None else f"{100 * rate:.0f} %"
            text = f"{value} (goal {100 * wanted:g} %)"
            targets.append(_Target("success rate", rate, wanted, text, last, full))
        if self.evaluation_return is not None:
            score, wanted = progress.evaluation_return, self.evaluation_return
            value = "not known" if score is None else f"{score:.1f}"
            text = f"{value} (goal {wanted:g})"
            targets.append(_Target("evaluation's mean return", score, wanted, text, "", True))
        return targets


def joined(endings: Mapping[str, tuple[str, bool]]) -> tuple[str, bool]:
    """Returns the end of a program from those of its tasks.

    Args:
      endings: why each task ended, and whether its goal was reached, by task.

    Returns:
      The reasons, each once, with the tasks' names if they differ, and whether all goals were
      reached.
    """
    names: dict[str, list[str]] = {}
    for name, (reason, _) in endings.items():
        names.setdefault(reason, []).append(name)
    texts = [f"{', '.join(named)}: {reason}" for reason, named in names.items()]
    reason = "; ".join(texts) if len(texts) > 1 else next(iter(names))
    return reason, all(reached for _, reached in endings.values())
