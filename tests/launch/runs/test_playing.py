"""Episodes of policies, step by step: exact returns, limits, and what is drawn when."""

import functools
import sys
import types

import numpy as np
import pytest

from distrl import envs
from distrl.envs import MultiAgentEnvironment, PythonEnvironment, WrapperConfig
from distrl.envs.multi_agent.assignment import Assignment
from distrl.envs.rendering.pictures import choose_renderer
from distrl.envs.rendering.rendered import rendered
from distrl.envs.suites import DmControlBuilder
from distrl.errors import ConfigError
from distrl.launch.commands import play as play_command
from distrl.launch.commands.play import summary
from distrl.launch.runs.playing import OneAgent, PlayedEpisode, SeveralAgentsGame, Sources, play
from distrl.launch.runs.terminal import TerminalPictures, as_text
from distrl.rules import RandomPolicy
from distrl.seeds import environment_seeds
from distrl.testing import CountingAgents, CountingEnvironment
from distrl.types import Inference, StepType


class Constant:
    """Takes action 7, and notes where episodes begin."""

    def __init__(self):
        self.resets = 0

    def reset(self):
        self.resets += 1

    def in_pool(self, observation, reward):
        assert observation.shape == (1, 4)
        return np.full(1, 7, np.int32)

    def inference(self, streams, timestep, life=0, with_state=False):
        return Inference(np.full(len(streams), 7, np.int32), (), 0, ())


def lengths_from(seed):
    first = seed % 5
    return [3 + (first + k) % 5 for k in range(10)]


def episode_of(length):
    ending = "time limit" if length % 2 else "over"
    return PlayedEpisode({"": length * (length + 1) / 2}, length, ending)


def test_episodes_of_one_agent():
    policy, seen = Constant(), []
    game = OneAgent(PythonEnvironment(CountingEnvironment), lambda: policy, seed=0)
    (seed,) = environment_seeds(0, "evaluator", 0, 1)
    episodes = list(play(game, 4, None, lambda: False, seen.append))
    assert episodes == [episode_of(length) for length in lengths_from(seed)[:4]]
    assert len(seen) == sum(episode.length + 1 for episode in episodes)
    assert seen[0].step_type[0] == StepType.FIRST and seen[-1].step_type[0] == StepType.LAST
    assert (seen[1].observation[0, 3], policy.resets) == (7, 5)  # one before, one for each
    assert summary(episodes, 5).endswith(" over 4 episodes of 5")
    game.close()


def test_a_policy_is_loaded_once_there_is_a_pool(monkeypatch):
    """Which may fork, and is closed if the policy cannot be loaded."""
    events = []
    environment = PythonEnvironment(CountingEnvironment)
    make_pool = PythonEnvironment.make_pool

    def note(self, *arguments):
        pool = make_pool(self, *arguments)
        monkeypatch.setattr(pool, "close", lambda: events.append("closed"))
        events.append("made")
        return pool

    def load():
        events.append("loaded")
        raise ConfigError("of another environment")

    monkeypatch.setattr(PythonEnvironment, "make_pool", note)
    with pytest.raises(ConfigError, match="of another environment"):
        OneAgent(environment, load, seed=0)
    assert events == ["made", "loaded", "closed"]


def test_a_length_counts_the_repeats_of_actions():
    environment = PythonEnvironment(CountingEnvironment, wrappers=WrapperConfig(action_repeat=2))
    game = OneAgent(environment, Constant, seed=0)
    (seed,) = environment_seeds(0, "evaluator", 0, 1)
    episodes = list(play(game, 5, None, lambda: False, lambda _: None))
    assert episodes == [episode_of(length) for length in lengths_from(seed)[:5]]
    game.close()


@pytest.mark.parametrize(("limit", "stop_after"), [(11, 100), (None, 12)])
def test_playing_ends_at_a_limit_and_when_it_is_stopped(limit, stop_after):
    seen = []
    game = OneAgent(PythonEnvironment(CountingEnvironment), Constant, seed=0)
    episodes = list(play(game, 100, limit, lambda: len(seen) >= stop_after, seen.append))
    first = [step for step in seen if step.step_type[0] == StepType.FIRST]
    if limit is not None:
        assert len(seen) - len(first) == limit  # resets are no steps
    else:
        assert len(seen) == stop_after
    assert len(episodes) == sum(step.step_type[0] == StepType.LAST for step in seen)
    game.close()


def test_episodes_of_several_agents():
    environment = MultiAgentEnvironment(CountingAgents)
    agents = environment.agents()
    assignment = Assignment(agents, ["x", "y"], {"a": "x", "b": "y", "c": "x"})
    make = dict.fromkeys(("x", "y"), lambda streams, seed: Constant())
    drawn = rendered(environment)
    game = SeveralAgentsGame(environment, drawn.environment, Sources(assignment, make), seed=0)
    steps = []
    episodes = list(play(game, 3, None, lambda: False, steps.append))
    (seed,) = environment_seeds(0, "evaluator", 0, 1)
    for k, episode in enumerate(episodes):
        lengths = {a: lengths_from(3 * (seed % 1024) + i)[k] for i, a in enumerate("abc")}
        assert episode.returns == {a: n * (n + 1) / 2 for a, n in lengths.items()}
        assert episode.length == max(lengths.values())
    assert str(episodes[0]).startswith("return a ")
    assert len(steps) == sum(episode.length + 1 for episode in episodes)
    game.close()
    # Within the fourth episode, four resets are no steps.
    limit = sum(episode.length for episode in episodes) + 1
    game = SeveralAgentsGame(environment, environment, Sources(assignment, make), seed=0)
    steps.clear()
    assert list(play(game, 100, limit, lambda: False, steps.append)) == episodes
    assert len(steps) == limit + 4
    game.close()


def test_the_summary_has_agents_that_do_not_act_in_the_first_episode():
    returns = [{"a": 1.0}, {"a": 2.0, "b": 5.0}, {"b": 6.0}]
    episodes = [PlayedEpisode(each, 3, "over") for each in returns]
    assert summary(episodes, 3) == "mean return a 1.50, b 5.50 over 3 episodes"


class WithWindow(CountingEnvironment):
    """Has a window, and refuses other modes than it declares, as gymnasium's environments do."""

    metadata = types.MappingProxyType({"render_modes": ["human", "rgb_array"]})

    def __init__(self, seed, render_mode=None):
        assert render_mode is None or render_mode in self.metadata["render_modes"]
        super().__init__(seed)


class PicturesOnly(WithWindow):
    metadata = types.MappingProxyType({"render_modes": ["rgb_array"]})

    def close(self):
        raise RuntimeError("closed before its first reset")


@pytest.mark.parametrize(
    ("builder", "window"),
    [
        (WithWindow, True),
        (PicturesOnly, False),
        (CountingEnvironment, False),  # it takes no mode
        (DmControlBuilder("cartpole", "swingup"), False),
    ],
)
def test_an_environment_without_a_window_is_watched_in_the_terminal(monkeypatch, builder, window):
    monkeypatch.setattr(play_command, "choose_renderer", lambda: None)
    monkeypatch.setattr(play_command, "has_display", lambda: True)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    environment, on_step, _ = play_command._shown(PythonEnvironment(builder, "watched"), True)
    assert (on_step is play_command._nothing) == window
    assert (getattr(on_step, "__func__", None) is TerminalPictures.show) != window
    if builder in (WithWindow, PicturesOnly):
        mode = environment.builder._builder.keywords["render_mode"]
        assert mode == ("human" if window else "rgb_array")


def test_a_picture_as_text():
    picture = np.zeros((4, 2, 3), np.uint8)
    picture[2:, 1] = (250, 1, 2)
    upper, lower = as_text(picture, columns=2, lines=2).splitlines()
    assert upper.count("▀") == lower.count("▀") == 2
    assert "250;1;2" not in upper and lower.count("250;1;2") == 2
    assert len(as_text(picture, columns=1, lines=9).splitlines()) == 1


@pytest.mark.full  # PettingZoo's and MuJoCo's imports
@pytest.mark.parametrize(
    ("name", "package"),
    [("mpe2:simple_speaker_listener_v4", "mpe2"), ("pettingzoo:classic/connect_four_v3", "pygame")],
)
def test_pictures_of_an_environment_of_pettingzoo_change_as_its_agents_act(name, package):
    for needed in ("pettingzoo", package):
        pytest.importorskip(needed)
    choose_renderer()
    environment = envs.make(name)
    drawn, agents = rendered(environment), environment.agents()
    policy_of = {agent: agent for agent in agents.agents}
    make = {
        agent: functools.partial(RandomPolicy().make_source, spec)
        for agent, spec in agents.agents.items()
    }
    sources = Sources(Assignment(agents, list(policy_of), policy_of), make)
    game = SeveralAgentsGame(environment, drawn.environment, sources, 0)
    pictures = []
    for _ in range(8):
        game.step()
        pictures.append(drawn.picture(None).copy())
    assert len({picture.shape for picture in pictures}) == 1
    assert all(len(np.unique(picture.reshape(-1, 3), axis=0)) > 2 for picture in pictures)
    assert (pictures[0] != pictures[-1]).any()
    game.close()


@pytest.mark.full
def test_pictures_of_an_environment_of_dm_control():
    pytest.importorskip("dm_control")
    choose_renderer()
    drawn = rendered(envs.make("dm_control:cartpole-swingup"))
    pool = drawn.environment.make_pool(1, 1, [0])
    first = drawn.picture(pool.reset()).copy()
    for _ in range(10):
        timestep = pool.step(np.ones((1, 1), np.float32))
    assert first.shape == (360, 480, 3) and (first != drawn.picture(timestep)).any()
    assert drawn.fps() == pytest.approx(100)
    pool.close()
