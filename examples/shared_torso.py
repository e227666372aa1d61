"""Two tasks on one torso: a policy, and returns of another discount that are predicted beside it.

distrl train --experiment=examples/shared_torso.py --topology=single_process
distrl train --experiment=examples/shared_torso.py:alone --topology=single_process
"""

from distrl import envs
from distrl.agents.impala import IMPALAConfig
from distrl.agents.prediction import PredictionConfig
from distrl.experiment import Experiment, LearnedPolicy
from distrl.goal import Goal
from distrl.sharing import Shared
from distrl.transforms import RewardScale

MAIN = LearnedPolicy(IMPALAConfig(), transforms=(RewardScale(0.1),))
GOAL = Goal(mean_return=400.0, max_env_steps=500_000)


def experiment(weight: float = 0.1) -> Experiment:
    """Returns a policy that acts, and a prediction that learns from its steps on its torso."""
    prediction = PredictionConfig("return", discount=0.9)
    return Experiment(
        envs.make("CartPole-v1"),
        policies={
            "main": MAIN,
            # It has learned when the policy has: returns are those of the same episodes.
            "soon": LearnedPolicy(prediction, transforms=MAIN.transforms, learns_from="main"),
        },
        shared={"torso": Shared(("main", "soon"), weights=(1.0, weight))},
        goal=GOAL,
    )


def alone() -> Experiment:
    """Returns the policy without the prediction."""
    return Experiment(envs.make("CartPole-v1"), MAIN.agent, transforms=MAIN.transforms, goal=GOAL)
