"""A user's file that pages name: a policy against its own earlier versions."""

from distrl import envs
from distrl.agents.ppo import PPOConfig
from distrl.experiment import Experiment
from distrl.saved_policy import PastPolicies


def policy_of(agent, episode):
    return "now" if (agent == "player_1") != episode.number % 2 else "before"


experiment = Experiment(
    envs.make("pettingzoo:classic/tictactoe_v3"),
    policies={"now": PPOConfig(), "before": PastPolicies("runs/mine")},
    policy_of=policy_of,
)
