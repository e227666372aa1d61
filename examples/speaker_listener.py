"""Two agents that must find a language: one sees the goal and speaks, the other hears it and moves.

distrl train --experiment=examples/speaker_listener.py --topology=single_process
"""

from distrl import envs
from distrl.agents.dqn import DQNConfig
from distrl.agents.exploration import EpsilonSchedule
from distrl.config import ActorsConfig, EvaluatorConfig, LearnerConfig
from distrl.experiment import Experiment, LearnedPolicy
from distrl.goal import Goal
from distrl.replay.config import ReplayConfig

learned = LearnedPolicy(
    DQNConfig(
        discount=0.95,
        n_step=3,
        learning_rate=5e-4,
        huber_delta=10.0,
        target_period=1,
        target_tau=0.01,
        epsilon=EpsilonSchedule(1.0, 0.05, steps=100_000),
    ),
    # Each step is learned from 16 times.
    ReplayConfig(
        table="uniform",
        unroll_length=8,
        max_size=12_000,
        min_size_to_sample=256,
        samples_per_insert=16.0,
        error_buffer=1024.0,
    ),
    LearnerConfig(batch_size=64),
)

experiment = Experiment(
    envs.make("mpe2:simple_speaker_listener_v4"),
    policies={"speaker": learned, "listener": learned},
    policy_of={"speaker_0": "speaker", "listener_0": "listener"},
    actors=ActorsConfig(num_actors=1, num_envs=16),
    evaluator=EvaluatorConfig(num_evaluators=1, num_envs=20, episodes=100, interval=120.0),
    goal=Goal(evaluation_return=-9.18, max_env_steps=2_000_000),
)
