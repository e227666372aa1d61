"""Parts of another kind are named when an experiment is made."""

import dataclasses

import pytest

from distrl.agents.dqn import DQNConfig
from distrl.agents.networks import NetworkConfig
from distrl.agents.ppo import PPOConfig
from distrl.agents.r2d2 import R2D2Config
from distrl.agents.sac import SACConfig
from distrl.callbacks import Callback
from distrl.config import ActorsConfig, EvaluatorConfig
from distrl.envs import NativeEnvironment, PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import Experiment, LearnedPolicy
from distrl.replay.config import ReplayConfig
from distrl.testing import CheckingConfig, CountingEnvironment, LateCountingEnvironment
from distrl.transforms import RewardClip

ENVIRONMENT = PythonEnvironment(CountingEnvironment)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"actors": ActorsConfig(num_envs=4097)}, "actors.num_envs must be at most 4096, got 4097"),
        ({"actors": ActorsConfig(num_actors=1025, num_envs=1)}, "actors.num_actors .* 1024, got"),
        ({"actors": ActorsConfig(num_envs=1, max_actors=1025)}, "actors.max_actors .* 1024, got"),
        ({"evaluator": EvaluatorConfig(num_envs=5000)}, "evaluator.num_envs .* 4096, got 5000"),
    ],
)
def test_there_are_seeds_for_all_environments(parts, message):
    with pytest.raises(ConfigError, match=message):
        Experiment(ENVIRONMENT, DQNConfig(), **parts)


@pytest.mark.parametrize(
    ("task", "got"),
    [("t" * 151, "got 151: 'ttt"), ("ä" * 26, "got 156: 'ääää"), ("", "got 0: ''$")],
)
def test_a_task_has_a_name_for_files_in_shared_memory(task, got):
    with pytest.raises(
        ConfigError, match=f"^task: a name, .*, must have 1 to 150 characters .*{got}"
    ):
        Experiment(ENVIRONMENT, DQNConfig(), task=task)
    assert Experiment(ENVIRONMENT, DQNConfig(), task="t" * 150).only_task.name == "t" * 150


@pytest.mark.parametrize("counts", [(1, 4096, None), (1024, 1, 1024)])
def test_as_many_environments_as_there_are_seeds_for(counts):
    num_actors, num_envs, most = counts
    actors = ActorsConfig(num_actors, num_envs, max_actors=most)
    evaluator = EvaluatorConfig(num_envs=4096)
    assert Experiment(ENVIRONMENT, DQNConfig(), actors=actors, evaluator=evaluator).actors == actors


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"environment": "CartPole-v1"}, r"write distrl\.envs\.make\('CartPole-v1'\)"),
        ({"environment": CountingEnvironment(0)}, r"goes into PythonEnvironment\(builder\)"),
        ({"environment": NativeEnvironment}, "environment must be an environment of distrl.envs"),
        ({"agent": PPOConfig}, r"agent: PPOConfig is a class; write PPOConfig\(\)"),
        ({"agent": "ppo"}, r"agent must be an algorithm's settings, such as PPOConfig\(\)"),
        ({"replay": "uniform"}, "replay must be a ReplayConfig, got 'uniform'"),
        ({"goal": 475}, "goal must be a Goal, got 475"),
        ({"inference": None}, "inference must be a InferenceConfig, got None"),
        ({"transforms": PPOConfig()}, r"transforms must be a tuple, as in transforms=\(x,\)"),
        ({"callbacks": print}, r"callbacks must be a tuple, as in callbacks=\(x,\)"),
    ],
)
def test_a_part_of_another_kind_is_named(parts, message):
    with pytest.raises(ConfigError, match=message):
        Experiment(**{"environment": ENVIRONMENT, "agent": PPOConfig(), **parts})


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"agent": PPOConfig}, r"agent: PPOConfig is a class; write PPOConfig\(\)"),
        ({"agent": None}, r"agent must be an algorithm's settings, such as PPOConfig\(\)"),
        ({"replay": {"max_size": 9}}, "replay must be a ReplayConfig, got {'max_size': 9}"),
        ({"learner": ReplayConfig()}, "learner must be a LearnerConfig, got ReplayConfig"),
        ({"goal": {"mean_return": 9}}, "goal must be a Goal, got {'mean_return': 9}"),
        ({"transforms": RewardClip(2.0)}, r"transforms must be a tuple, as in transforms=\(x,\)"),
        ({"transforms": None}, r"transforms must be a tuple, as in transforms=\(x,\)"),
    ],
)
def test_a_policys_part_of_another_kind_is_named(parts, message):
    with pytest.raises(ConfigError, match=f"^LearnedPolicy: {message}"):
        LearnedPolicy(**{"agent": PPOConfig(), **parts})


def test_lists_become_tuples():
    transforms, callbacks = [RewardClip(2.0)], [Callback()]
    parts = {"transforms": transforms, "callbacks": callbacks}
    experiment = Experiment(ENVIRONMENT, CheckingConfig(), ReplayConfig(), **parts)
    assert experiment.transforms == (RewardClip(2.0),)
    assert isinstance(experiment.callbacks, tuple)
    assert LearnedPolicy(PPOConfig(), transforms=transforms).transforms == (RewardClip(2.0),)
    assert SACConfig(hidden_sizes=[64, 32]).hidden_sizes == (64, 32)
    assert NetworkConfig(hidden_sizes=[64]).hidden_sizes == (64,)


def test_an_evaluator_does_not_end_episodes_whose_rewards_are_late():
    class Late(CountingEnvironment):
        reward_delay = 3

    evaluator = EvaluatorConfig(num_evaluators=1, max_episode_steps=10)
    late = PythonEnvironment(Late)
    late.spec()
    with pytest.raises(ConfigError, match=r"evaluator\.max_episode_steps=10: .* 3 steps late"):
        Experiment(ENVIRONMENT, DQNConfig(), evaluation_environment=late, evaluator=evaluator)


@pytest.mark.parametrize("algorithm", [DQNConfig, R2D2Config])
def test_memory_gets_no_previous_reward_where_rewards_are_late(algorithm):
    late = PythonEnvironment(LateCountingEnvironment)
    lstm = NetworkConfig(core="lstm")
    with pytest.raises(ConfigError, match=r"core_inputs_prev_action_reward=True: .* 2 steps late"):
        Experiment(late, algorithm(network=lstm))
    Experiment(ENVIRONMENT, algorithm(network=lstm))
    Experiment(late, DQNConfig(network=NetworkConfig(core="none")))
    without = dataclasses.replace(lstm, core_inputs_prev_action_reward=False)
    Experiment(late, algorithm(network=without))
