"""`distrl play RUN`: episodes of a run's policy, one after the other."""

import contextlib
import sys
from collections.abc import Callable

from distrl.envs.pool import Environment
from distrl.envs.rendering.pictures import choose_renderer, has_display
from distrl.envs.rendering.rendered import WINDOW, Rendered, rendered
from distrl.errors import ConfigError
from distrl.launch.runs.interrupt import EXIT_INTERRUPTED, interruptible
from distrl.launch.runs.player import Player, player_arguments
from distrl.launch.runs.playing import PlayedEpisode, play
from distrl.launch.runs.snapshot_code import run_with_snapshot
from distrl.launch.runs.terminal import TerminalPictures
from distrl.launch.supervision.result import EXIT_FINISHED
from distrl.types import TimeStep

_EPISODES = 10


def play_run(arguments: list[str]) -> int:
    """Prints a line for each episode; with `--watch` it draws them too.

    Args:
      arguments: the command, the run folder, and flags; see the help.

    Returns:
      The exit status.

    Raises:
      ConfigError: there is no such run, checkpoint or environment, or nothing to draw on.
    """
    values = player_arguments("play").add("--watch", action="store_true").parse_args(arguments[1:])
    if values.code == "snapshot":
        return run_with_snapshot("play", values.run, arguments[1:])
    player = Player("play", values)
    environment, on_step, close = _shown(player.environment, values.watch)
    episodes: list[PlayedEpisode] = []
    with contextlib.ExitStack() as stack:
        stopped = stack.enter_context(interruptible())
        stack.callback(close)
        game = player.game(environment)
        stack.callback(game.close)
        for episode in play(game, values.episodes or _EPISODES, values.max_steps, stopped, on_step):
            episodes.append(episode)
            print(f"episode {len(episodes)}: {episode}", flush=True)
    print(summary(episodes, values.episodes or _EPISODES))
    return EXIT_INTERRUPTED if stopped() else EXIT_FINISHED


def summary(episodes: list[PlayedEpisode], wanted: int) -> str:
    """Returns a line about all episodes. Args: wanted: how many were to be played."""
    if not episodes:
        return "no episode ended"
    means = []
    for agent in dict.fromkeys(agent for episode in episodes for agent in episode.returns):
        returns = [episode.returns[agent] for episode in episodes if agent in episode.returns]
        means.append(f"{agent} {sum(returns) / len(returns):.2f}".lstrip())
    count = f"{len(episodes)} episode{'s' * (len(episodes) > 1)}"
    if len(episodes) < wanted:
        count += f" of {wanted}"
    return f"mean return {', '.join(means)} over {count}"


def _nothing(*_: object) -> None:
    """Does nothing: nobody watches."""


def _shown(
    environment: Environment, watch: bool
) -> tuple[Environment, Callable[[TimeStep | None], None], Callable[[], None]]:
    """Returns the environment with what draws each step, and what ends the drawing."""
    if not watch:
        return environment, _nothing, _nothing
    choose_renderer()
    if has_display():
        with contextlib.suppress(ConfigError):  # it has no window: the terminal shows it
            window = rendered(environment, WINDOW)
            window.environment.spec()
            return _noted(window), _nothing, _nothing
    if not sys.stdout.isatty():
        raise ConfigError(
            "play: --watch draws in a window or in a terminal, and there is neither here; "
            "`distrl video` writes a file"
        )
    drawn = rendered(environment)
    screen = TerminalPictures(drawn)
    return _noted(drawn), screen.show, screen.close


def _noted(drawn: Rendered) -> Environment:
    if drawn.note:
        print(f"distrl: {drawn.note}", flush=True)
    return drawn.environment
