"""Scores of policies: how many episodes, in which environments, and what is refused."""

import dataclasses

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import distrl
from distrl.agents.a2c import A2CConfig
from distrl.agents.networks import NetworkConfig
from distrl.checkpointing.params_file import save_params
from distrl.checkpointing.store import MANIFEST, PARAMS, Checkpoints
from distrl.config import ActorsConfig, LearnerConfig
from distrl.envs import PythonEnvironment, WrapperConfig
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.launch.commands import evaluate
from distrl.launch.runs import player
from distrl.policy import Policy
from distrl.replay.config import ReplayConfig
from distrl.saved.saved_agent import agent_writer
from distrl.task import make_agent
from distrl.testing import CheckingAgent, CountingEnvironment
from distrl.transforms import RewardScale
from distrl.types import AgentOutput


class TwoActions(CountingEnvironment):
    """Has two actions."""

    num_actions = 2

    def action_spec(self):
        return dm_env.specs.DiscreteArray(self.num_actions, np.int32, "action")


class ThreeActions(TwoActions):
    """Has three actions."""

    num_actions = 3


ENVIRONMENT = PythonEnvironment(TwoActions)
CONFIG = A2CConfig(NetworkConfig(hidden_sizes=(8,)))


def make_policy(**options):
    agent = make_agent(CONFIG, (), ENVIRONMENT.spec())
    return Policy(agent, 1, agent.initial_params(jax.random.PRNGKey(0)), **options)


class Rewarding(CountingEnvironment):
    """Rewards with the action, which has bounds."""

    def action_spec(self):
        return dm_env.specs.BoundedArray((), np.float32, -1, 1, "action")

    def step(self, action):
        return super().step(0)._replace(reward=float(action))


class Beyond(CheckingAgent):
    """Acts beyond the bounds."""

    def actor_step(self, rng, params, timestep, state, evaluation=False):
        return AgentOutput(jnp.full(timestep.step_type.shape, 1.5, jnp.float32), ()), state


@pytest.mark.parametrize("clipped, reward", [(True, 1.0), (False, 1.5)])
def test_the_environment_decides_whether_actions_are_clipped(clipped, reward):
    environment = PythonEnvironment(Rewarding, wrappers=WrapperConfig(clip_actions=clipped))
    policy = Policy(Beyond(environment.spec(), False), 0, {"version": np.int32(0)})
    scores = distrl.evaluate(policy, environment, episodes=2)
    np.testing.assert_array_equal(scores.returns, reward * scores.lengths)
    observation = np.zeros_like(environment.make_stepper(0).reset().observation)
    assert policy(observation) == 1.0


def test_a_policy_of_a_fixed_size_is_evaluated_in_as_many_environments():
    policy = make_policy(batch_size=4)
    many = distrl.evaluate(policy, ENVIRONMENT, episodes=20)
    assert len(many.returns) == 20
    few = distrl.evaluate(policy, ENVIRONMENT, episodes=3)
    np.testing.assert_array_equal(few.lengths, many.lengths[:3])


def test_lengths_count_the_repeats_of_actions():
    plain = distrl.evaluate(make_policy(), ENVIRONMENT, episodes=5)
    repeating = dataclasses.replace(ENVIRONMENT, wrappers=WrapperConfig(action_repeat=2))
    repeated = distrl.evaluate(make_policy(), repeating, episodes=5)
    np.testing.assert_array_equal(repeated.lengths, plain.lengths)


def test_a_negative_seed_is_refused():
    with pytest.raises(ConfigError, match=r"^evaluate: seed must be 0 or more, got -1$"):
        distrl.evaluate(make_policy(), ENVIRONMENT, seed=-1)


def test_the_folder_of_a_checkpoint_needs_an_environment(tmp_path):
    (tmp_path / MANIFEST).write_text("{}")
    with pytest.raises(ConfigError, match=r"^evaluate: name the environment, as in evaluate\("):
        distrl.evaluate(tmp_path)


def test_an_environment_with_other_actions_is_refused():
    other = PythonEnvironment(ThreeActions)
    with pytest.raises(
        ConfigError,
        match=r"^evaluate in .*: the policy was trained with another action: .*; here it is ",
    ):
        distrl.evaluate(make_policy(), other)


def test_what_is_no_environment_of_distrls_is_refused_in_one_line():
    message = r"^evaluate: environment must be an environment of distrl\.envs, got <.*; a function "
    for environment in (TwoActions(0), TwoActions):
        with pytest.raises(ConfigError, match=message):
            distrl.evaluate(make_policy(), environment)


def test_eval_says_when_max_steps_ended_it(tmp_path, monkeypatch, capsys):
    class Plays:
        has_several_agents, environment, policy = False, ENVIRONMENT, staticmethod(make_policy)

        def __init__(self, command, values):
            pass

    monkeypatch.setattr(evaluate, "Player", Plays)
    assert evaluate.evaluate_run(["eval", str(tmp_path), "--episodes=64", "--max_steps=9"]) == 0
    scores, said = capsys.readouterr().out.splitlines()
    count = int(scores.split(" over ")[1].split()[0])
    assert 0 < count < 64
    assert said == f"distrl: ended after --max_steps=9: {count} of 64 episodes"
    assert evaluate.evaluate_run(["eval", str(tmp_path), "--episodes=64"]) == 0
    (scores,) = capsys.readouterr().out.splitlines()
    assert " over 64 episodes" in scores


@dataclasses.dataclass(frozen=True)
class Own(RewardScale):
    """A transform of the user's own."""


def test_code_of_a_policy_is_run_by_a_flag_of_the_command_line(tmp_path):
    parts = (ActorsConfig(1, 2), LearnerConfig(2))
    made = Experiment(
        ENVIRONMENT, CONFIG, ReplayConfig(unroll_length=5, max_size=100), parts[0],
        learner=parts[1], transforms=(Own(0.5),),
    )  # fmt: skip

    def fill(folder):
        save_params(folder / PARAMS, 1, {})
        agent_writer(made.only_task)(folder)
        return {}

    Checkpoints(tmp_path).write(1, fill)
    (tmp_path / "config.json").write_text("{}")
    values = player.player_arguments("eval").parse_args([str(tmp_path), "--env=CartPole-v1"])
    with pytest.raises(ConfigError, match=r"code of its own .* written this file, add --trust$"):
        player.Player("eval", values).policy()
    with pytest.raises(ConfigError, match=r"as in load_policy\(\.\.\., trust=True\)$"):
        distrl.load_policy(tmp_path)


def test_the_checkpoint_is_named_and_newer_parameters_are_told(tmp_path, capsys):
    made = Experiment(ENVIRONMENT, CONFIG, ReplayConfig(unroll_length=5, max_size=100))
    params = made.make_agent().initial_params(jax.random.PRNGKey(0))

    def fill(folder, score):
        save_params(folder / PARAMS, 0, params)
        agent_writer(made.only_task)(folder)
        return {"mean_return": score}

    store = Checkpoints(tmp_path)
    store.write(1000, lambda folder: fill(folder, 2.0))
    store.write(2000, lambda folder: fill(folder, 1.0))
    save_params(tmp_path / PARAMS, 2000, params)
    (tmp_path / "config.json").write_text("{}")

    def said(*flags):
        arguments = [str(tmp_path), "--env=CartPole-v1", *flags]
        player.Player("eval", player.player_arguments("eval").parse_args(arguments)).policy()
        return capsys.readouterr().out.splitlines()

    latest = "distrl: the policy is checkpoint 002000: 2,000 learner steps"
    best = "distrl: the policy is checkpoint 001000: 1,000 learner steps"
    assert (said(), said("--which=best")) == ([latest], [best])
    save_params(tmp_path / PARAMS, 2500, params)  # the checkpoint with them was not written
    assert (said("--which=best"), said()[0]) == ([best], latest)
    newer = f"distrl: {tmp_path / PARAMS} is newer: 2,500 learner steps, for which there is no che"
    assert said()[1].startswith(newer)
