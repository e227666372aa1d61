"""Settings in seconds: those that cannot work are refused, and any other can be waited for."""

import math
import select
import socket
import threading

import numpy as np
import pytest

from distrl.config import (
    ActorsConfig,
    CheckpointConfig,
    EvaluatorConfig,
    InferenceConfig,
    LearnerConfig,
    SupervisionConfig,
)
from distrl.envs.pool_config import PoolConfig
from distrl.errors import ConfigError
from distrl.goal import Goal
from distrl.runtime.durations import LONGEST_WAIT_S, check_duration, longest_wait

HUGE = [1e10, 1e18, 10**18]
ANY = [
    ("inference.timeout", InferenceConfig, "timeout"),
    ("evaluator.interval", EvaluatorConfig, "interval"),
    ("evaluator.max_seconds", EvaluatorConfig, "max_seconds"),
    ("supervision.call_timeout", SupervisionConfig, "call_timeout"),
    ("supervision.insert_timeout", SupervisionConfig, "insert_timeout"),
    ("supervision.idle_limit", SupervisionConfig, "idle_limit"),
    ("supervision.busy_limit", SupervisionConfig, "busy_limit"),
    ("supervision.stopped_limit", SupervisionConfig, "stopped_limit"),
    ("learner.timeout", LearnerConfig, "timeout"),
    ("environment.pool.step_timeout", PoolConfig, "step_timeout"),
    ("goal.max_seconds", Goal, "max_seconds"),
]
FINITE = [
    ("checkpoint.period", CheckpointConfig, "period"),
    ("checkpoint.grace", CheckpointConfig, "grace"),
    ("learner.gradient_timeout", LearnerConfig, "gradient_timeout"),
]


@pytest.mark.parametrize(("name", "settings", "field"), [*ANY, *FINITE])
@pytest.mark.parametrize("value", [math.nan, 0, -1.0, -math.inf, "60", True, 10**400, -(10**400)])
def test_what_is_no_duration_is_refused(name, settings, field, value):
    with pytest.raises(ConfigError) as error:
        settings(**{field: value})
    assert str(error.value).startswith(f"{name} must be more than 0 s, ")
    assert str(error.value).endswith(f"got {value}")


@pytest.mark.parametrize(("name", "settings", "field"), [*ANY, *FINITE])
def test_long_durations_are_taken(name, settings, field):
    for value in [*HUGE, np.float32(60), *([math.inf] if (name, settings, field) in ANY else [])]:
        assert getattr(settings(**{field: value}), field) == value


@pytest.mark.parametrize(("name", "settings", "field"), FINITE)
def test_an_infinite_duration_is_refused_where_it_cannot_work(name, settings, field):
    with pytest.raises(ConfigError, match=f"{name} must be more than 0 s and finite, "):
        settings(**{field: math.inf})


def test_zero_and_none_are_taken_where_they_mean_something():
    assert ActorsConfig(min_actors=1, round_grace=0.0).round_grace == 0.0
    check_duration("--wait", None, none="or None")
    with pytest.raises(ConfigError, match=r"^--wait must be 0 s or more, or None; got -1$"):
        check_duration("--wait", -1, zero=True, none="or None")
    with pytest.raises(ConfigError, match=r"^--wait must be 0 s or more, got None$"):
        check_duration("--wait", None, zero=True)


@pytest.mark.parametrize("seconds", [*HUGE, math.inf])
def test_everything_that_waits_takes_the_longest_wait(seconds):
    assert longest_wait(seconds) == LONGEST_WAIT_S
    assert threading.Lock().acquire(timeout=longest_wait(seconds))
    ended = threading.Thread(target=int)
    ended.start()
    ended.join(longest_wait(seconds))
    near, far = socket.socketpair()
    with near, far:
        near.settimeout(longest_wait(seconds))
        far.send(b"x")
        assert select.select([near], [], [], longest_wait(seconds))[0]
        poll = select.poll()
        poll.register(near, select.POLLIN)
        assert poll.poll(1000 * longest_wait(seconds))


def test_a_shorter_wait_stays_as_it_is():
    assert longest_wait(0.25) == 0.25
