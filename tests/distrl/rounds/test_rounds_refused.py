"""What rounds cannot have is refused when the experiment is made."""

import dataclasses

import pytest

from distrl.errors import ConfigError
from distrl.experiment import ActorsConfig, InferenceConfig, LearnerConfig
from distrl.programs.light_env import light_env
from distrl.replay.buffer import ReplayConfig
from distrl.testing import CheckingConfig
from distrl.transforms import FrameStack
from tests.support.experiments import checking


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"actors": {"min_actors": 4}}, "between 1 and actors.num_actors=3"),
        ({"actors": {"wait_num": 2}}, "actors.wait_num=2 these end at different times"),
        ({"actors": {"late_data": "burn"}}, "late_data: expected one of keep, drop"),
        ({"actors": {"min_actors": None, "round_grace": 1.0}}, "set actors.min_actors"),
        ({"actors": {"round_grace": -1.0}}, "0 s or more"),
        ({"inference": InferenceConfig(sync_interval=3)}, "parameters change with rounds"),
        ({"replay": ReplayConfig("uniform", 9, 64)}, "set replay.samples_per_insert"),
        (
            {"replay": ReplayConfig("uniform", 9, 64, 1, 1.0, 40.0, period=4)},
            "replay.period=4, whose unrolls end within a round",
        ),
        ({"replay": ReplayConfig(unroll_length=9, max_size=17)}, "the 4 streams that may be late"),
        ({"lockstep": True}, "ends rounds by the clock"),
        (
            {"learner": LearnerConfig(4, max_policy_lag=1), "lockstep": True},
            "ends rounds by the clock",
        ),
    ],
)
def test_it_is_refused(parts, message):
    made = checking.rounds()
    changes = dict(parts)
    if "actors" in changes:
        with pytest.raises(ConfigError, match=message):
            ActorsConfig(**{**dataclasses.asdict(made.actors), **changes["actors"]})
        return
    with pytest.raises(ConfigError, match=message):
        dataclasses.replace(made, **changes)


def test_light_env_names_what_has_memory():
    made = dataclasses.replace(
        checking.rounds(), agent=CheckingConfig(False), transforms=(FrameStack(2),)
    )
    with pytest.raises(ConfigError, match=r"min_actors: the transform frame_stack has recurrent"):
        light_env(made, "unused")
    with pytest.raises(ConfigError, match=r"min_actors: the network's core has recurrent"):
        light_env(dataclasses.replace(checking.rounds(), agent=CheckingConfig(True)), "unused")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_policy_lag": -1}, "0 or more, or None; got -1"),
        ({"max_policy_lag": 1.5}, "a whole number of learner steps"),
    ],
)
def test_a_bound_on_age_is_checked(settings, message):
    with pytest.raises(ConfigError, match=message):
        LearnerConfig(**settings)


def test_a_bound_on_age_is_not_for_lockstep():
    made = checking.synchronous()
    with pytest.raises(ConfigError, match="the schedule counts on each"):
        dataclasses.replace(made, lockstep=True, learner=LearnerConfig(16, max_policy_lag=1))
