"""When a run ends: goals, budgets and their checks."""

import dataclasses
import math

import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.errors import ConfigError
from distrl.goal import Goal, Progress, joined
from distrl.multi_agent.learned_policy import LearnedPolicy
from distrl.specs import EnvironmentSpec
from distrl.testing import CheckingConfig, CountingEnvironment

ENV = CountingEnvironment(0)
SPEC = EnvironmentSpec(ENV.observation_spec(), ENV.action_spec())


def progress(mean_return=None, success_rate=None, full_window=True, **counts):
    counts = {
        "env_steps": 0, "episodes": 0, "trained_steps": 0, "learner_steps": 9, "seconds": 0.0,
        "acting_over": False, **counts,
    }  # fmt: skip
    return Progress(
        mean_return=mean_return, success_rate=success_rate, full_window=full_window, **counts
    )


def test_auto_is_the_environments_threshold_if_no_other_end_is_set():
    assert Goal().resolve(475.0).mean_return == 475.0
    assert Goal().resolve(None).mean_return is None
    assert Goal(success_rate=0.9).resolve(475.0).mean_return is None
    assert Goal(mean_return=3.0).resolve(475.0).mean_return == 3.0


BUDGETS = (
    "max_env_steps", "max_episodes", "max_trained_steps", "max_learner_steps", "max_seconds",
)  # fmt: skip


@pytest.mark.parametrize("budget", BUDGETS)
def test_any_budget_replaces_the_environments_threshold(budget):
    assert Goal(**{budget: 10}).resolve(475.0).mean_return is None
    assert Goal(9.0, **{budget: 10}).resolve(475.0).mean_return == 9.0


def test_budgets_of_an_experiment_count_where_a_policys_goal_has_none():
    experiment = Goal(400.0, window=9, **dict.fromkeys(BUDGETS, 10))
    policy = Goal(300.0, max_learner_steps=5)
    rest = [budget for budget in BUDGETS if budget != "max_learner_steps"]
    wanted = dataclasses.replace(policy, **dict.fromkeys(rest, 10))
    assert LearnedPolicy(CheckingConfig(), goal=policy).goal_within(experiment) == wanted
    assert policy.within(Goal()) == policy


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"mean_return": "best"}, r"goal.mean_return must be a number, 'auto' or None, got 'best'"),
        ({"success_rate": 90}, r"goal.success_rate must be more than 0 and at most 1"),
        ({"success_rate": 0.0}, r"goal.success_rate must be more than 0 and at most 1"),
        ({"window": 0}, r"goal.window must be a whole number, 1 or more; got 0"),
        ({"max_env_steps": 0}, r"goal.max_env_steps must be a whole number, 1 or more"),
        ({"max_learner_steps": -1}, r"goal.max_learner_steps must be a whole number, 1 or more"),
        ({"max_seconds": 0.0}, r"goal.max_seconds must be more than 0"),
        ({"mean_return": math.nan}, r"goal.mean_return must be finite, or None .*; got nan"),
        ({"evaluation_return": math.nan}, r"goal.evaluation_return must be finite, or None"),
        ({"mean_return": math.inf}, r"goal.mean_return must be finite"),
        (
            {"max_env_steps": math.nan},
            r"goal.max_env_steps must be a whole number, 1 or more, or None; got nan",
        ),
    ],
)
def test_invalid_goals_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        Goal(**settings)


def test_a_success_rate_needs_an_environment_that_reports_success():
    goal = Goal(success_rate=0.9)
    with pytest.raises(ConfigError, match=r"needs an environment whose env_info has 'success'"):
        goal.check(SPEC)
    goal.check(SPEC._replace(env_info={"success": dm_specs.Array((), np.int8)}))


def test_a_mean_return_is_reached_over_a_full_window():
    goal = Goal(mean_return=10.0, window=4)
    assert goal.judge(progress(20.0, full_window=False)) is None
    assert goal.judge(progress(9.9)) is None
    assert goal.judge(progress(10.0, env_steps=1234)) == (
        "the mean return of the last 4 episodes is 10.0 (goal 10) after 1,234 environment steps",
        True,
    )


def test_both_targets_must_be_reached():
    goal = Goal(mean_return=4.0, success_rate=0.5, window=4)
    assert goal.judge(progress(4.5, 0.25)) is None
    assert goal.judge(progress(3.5, 0.75)) is None
    verdict = goal.judge(progress(4.5, 0.5))
    assert verdict.reached
    assert "is 4.5 (goal 4) and the success rate of the last 4 episodes is 50 %" in verdict.reason


@pytest.mark.parametrize(
    ("budget", "spent", "reason"),
    [
        (
            {"max_env_steps": 5000},
            {"env_steps": 5001, "acting_over": True},
            "5,001 environment steps",
        ),
        (
            {"max_episodes": 30},
            {"episodes": 31, "env_steps": 200, "acting_over": True},
            "31 episodes, 200 environment steps",
        ),
        ({"max_trained_steps": 5000}, {"trained_steps": 5000}, "5,000 transitions trained on"),
        ({"max_learner_steps": 17}, {"learner_steps": 17}, "17 updates"),
        ({"max_seconds": 1.5}, {"seconds": 2.0}, "1.5 s since the first learner step"),
    ],
)
def test_a_spent_budget_ends_the_run(budget, spent, reason):
    alone = Goal(mean_return=None, **budget)
    assert alone.judge(progress()) is None
    assert alone.judge(progress(**spent)) == (reason, True)
    missed = Goal(mean_return=5.0, success_rate=0.9, **budget).judge(progress(4.0, **spent))
    assert missed == (
        "the goal was not reached: mean return 4.0 (goal 5), success rate no episode ended "
        f"(goal 90 %) after {reason}",
        False,
    )


def test_a_budget_without_an_update_is_a_failure():
    spent = progress(env_steps=10, learner_steps=0, acting_over=True)
    verdict = Goal(mean_return=None, max_env_steps=10).judge(spent)
    why = "the budget ended before the first update: 10 environment steps; it has to be larger"
    assert verdict == (why, False)


@pytest.mark.parametrize("spent", [{"env_steps": 10**6}, {"episodes": 10**6}])
def test_what_was_acted_ends_no_run_before_it_is_learned_from(spent):
    goal = Goal(mean_return=None, max_env_steps=10, max_episodes=10)
    assert goal.judge(progress(**spent)) is None


def test_the_end_of_several_names_those_with_reasons_of_their_own():
    same = ("9 updates", True)
    assert joined({"a": same, "b": same}) == same
    endings = {"a": same, "b": ("5 updates", False), "c": same}
    assert joined(endings) == ("a, c: 9 updates; b: 5 updates", False)
    assert joined({"task": ("5 updates", False)}) == ("5 updates", False)
