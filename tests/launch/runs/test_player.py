"""The policies that play a run of several: those that it learned, and those of its experiment."""

import json
import types

import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError
from distrl.launch.run_dir.config_diff import describe
from distrl.launch.runs import player
from distrl.launch.runs.environment import experiment_of
from distrl.launch.runs.playing import play
from distrl.launch.runs.run import Run
from distrl.testing import CountingEnvironment
from distrl.types import Inference

FILE = """
from distrl.envs import MultiAgentEnvironment
from distrl.experiment import Experiment
from distrl.rules import Rule
from distrl.testing import CheckingConfig, CountingAgents

class Recording(CountingAgents):
    taken = set()

    def step(self, actions):
        self.taken.update((agent, int(action)) for agent, action in actions.items())
        return super().step(actions)

experiment = Experiment(
    MultiAgentEnvironment(Recording),
    policies={"fixed": Rule(lambda observation: 3), "learned": CheckingConfig()},
    policy_of={"a": "fixed", "b": "learned", "c": "fixed"},
)
"""

OPPONENT = """
import dataclasses

@dataclasses.dataclass(frozen=True)
class Opponent:
    path: str
    trust: bool = False
    made = []

    def make_source(self, env_spec, max_streams, seed):
        self.made.append((self.path, self.trust))
        return Rule(lambda observation: 3).make_source(env_spec, max_streams, seed)
"""


class Seven:
    """Acts as a policy that was learned."""

    def inference(self, streams, timestep, life=0, with_state=False):
        return Inference(np.full(len(streams), 7, np.int32), (), 0, ())


@pytest.fixture
def parsed(tmp_path, monkeypatch):
    """A function that makes a run of FILE's experiment and returns it and its player's values."""
    monkeypatch.setattr(player, "set_environment", lambda variables: None)
    monkeypatch.setattr(player.Player, "_saved", lambda *_: lambda streams, seed: Seven())

    def make(*changes, code=FILE, flags=()):
        file = tmp_path / "mine.py"
        file.write_text(code)
        experiment = experiment_of(Run(tmp_path), file=str(file))
        config = {"command": [], "topology": "single_process", **describe(experiment)}
        for change in changes:
            change(config)
        (tmp_path / "config.json").write_text(json.dumps(config))
        words = [str(tmp_path), f"--experiment={file}", *flags]
        return experiment, player.player_arguments("eval").parse_args(words)

    return make


def test_rules_act_beside_the_only_policy_that_learned(parsed):
    experiment, values = parsed()
    made = player.Player("eval", values)
    game = made.game(made.environment)
    assert len(list(play(game, 2, None, lambda: False, lambda _: None))) == 2
    game.close()
    assert experiment.environment.builder.taken == {("a", 3), ("b", 7), ("c", 3)}


def test_a_policy_that_the_run_has_not_is_refused(parsed):
    def learned_another(config):
        parts = config["experiment"]["policies"], config["classes"]
        for part, prefix in zip(parts, ("", "policies.")):
            part[f"{prefix}other"] = part.pop(f"{prefix}learned")

    _, values = parsed(learned_another)
    made = player.Player("eval", values)
    message = r"^eval: .* has no policy 'learned', which learns in the experiment; it has other$"
    with pytest.raises(ConfigError, match=message):
        made.game(made.environment)


def test_one_policy_is_not_chosen_where_several_act(parsed, tmp_path):
    (tmp_path / "tasks" / "learned").mkdir(parents=True)
    _, values = parsed(flags=["--task=learned"])
    message = r"^eval: --task=learned: in .* all policies of .* act, .*: leave --task out$"
    with pytest.raises(ConfigError, match=message):
        player.Player("eval", values)


@pytest.mark.parametrize(
    ("here", "other", "flags", "acts"),
    [
        (True, True, [], ("{}/other", False)),
        (True, True, ["--trust"], ("{}/other", True)),
        (True, False, [], ("{}/other", False)),
        (False, True, [], ("{}/one", False)),  # the run was made elsewhere
    ],
)
def test_a_fixed_policy_has_the_settings_of_the_run(
    parsed, tmp_path, capsys, here, other, flags, acts
):
    def played_against_another(config):
        settings = config["experiment"]["policies"]["fixed"]
        settings.update(path=f"{tmp_path}/other", trust=other)

    opponent = f"Opponent({f'{tmp_path}/one'!r})"
    code = FILE.replace("Rule(lambda observation: 3)", opponent)
    code = code.replace("\nclass Recording", f"{OPPONENT}\nclass Recording")
    (tmp_path / "one").mkdir()
    if here:
        (tmp_path / "other").mkdir()
    experiment, values = parsed(played_against_another, code=code, flags=flags)
    made = player.Player("eval", values)
    made.game(made.environment).close()
    assert experiment.fixed["fixed"].made == [(acts[0].format(tmp_path), acts[1])]
    moved = f"there is no {tmp_path}/other, as in the run; taking {tmp_path}/one"
    said = f"distrl: policies.fixed.path: {moved}\n"
    assert capsys.readouterr().out == ("" if here else said)


def test_a_policy_of_other_actions_does_not_play(monkeypatch):
    made = object.__new__(player.Player)
    made.environment = PythonEnvironment(CountingEnvironment, "counting")
    made._command = "play"
    spec = made.environment.spec()
    monkeypatch.setattr(player.Player, "policy", lambda self: types.SimpleNamespace(env_spec=spec))
    assert made._fitting_policy().env_spec is spec
    spec = spec._replace(action=dm_specs.DiscreteArray(3))
    with pytest.raises(ConfigError, match=r"^play: counting: the policy was trained with another"):
        made._fitting_policy()


CORRECTED = """
import dataclasses
from distrl import presets
from distrl.envs import PythonEnvironment
from distrl.replay.buffer import ReplayConfig
from distrl.testing import CountingEnvironment

made = presets.experiment(PythonEnvironment(CountingEnvironment, "counting"), "dqn")
replay = dataclasses.replace(made.replay, max_size=10**15)
experiment = dataclasses.replace(made, replay=replay)
"""


def test_what_flags_had_corrected_hinders_no_evaluation(tmp_path):
    """Such as a table for the memory of another machine."""
    (tmp_path / "mine.py").write_text(CORRECTED)
    made = experiment_of(Run(tmp_path), file=str(tmp_path / "mine.py"))
    assert made.replay.max_size == 10**15
