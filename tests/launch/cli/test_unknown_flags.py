"""What is suggested in the place of a flag that does not exist."""

import pytest
from absl import flags

from distrl.launch.cli.unknown_flags import with_suggestions

KNOWN = (
    "agent",
    "max_env_steps",
    "topology",
    "config.seed",
    "config.actors.num_envs",
    "config.agent.components.torso.learning_rate",
    "config.agent.discount",
    "config.agent.learning_rate",
    "config.evaluator.num_envs",
    "config.goal.max_env_steps",
    "config.learner.batch_size",
    "config.replay.max_size",
)


@pytest.mark.parametrize(
    ("typed", "meant"),
    {
        "topologi": "topology",
        "agnet": "agent",
        "config.lerner.batch_size": "config.learner.batch_size",
        "config.learner.batchsize": "config.learner.batch_size",
        "config.replay.size": "config.replay.max_size",
        "learning_rate": "config.agent.learning_rate",
        "config.agent.lr": "config.agent.learning_rate",
        "gamma": "config.agent.discount",
        "total_timesteps": "max_env_steps",
        "num_envs": "config.actors.num_envs, config.evaluator.num_envs",
        "config.num_envs": "config.actors.num_envs, config.evaluator.num_envs",
        "config.agent.n_step": "",
        "config.agent.": "",
        "": "",
    }.items(),
)
def test_suggestions(typed, meant):
    said = str(with_suggestions(flags.UnrecognizedFlagError(typed), KNOWN))
    tip = f". Did you mean: {meant} ?" if meant else ""
    assert said == f"Unknown command line flag '{typed}'{tip}"


def test_without_flags_nothing_is_suggested():
    said = str(with_suggestions(flags.UnrecognizedFlagError("topologi"), ()))
    assert said == "Unknown command line flag 'topologi'"
