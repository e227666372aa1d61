"""`distrl video RUN --out=clip.mp4`: episodes of a run's policy as a film."""

import argparse
import contextlib
from pathlib import Path

from distrl.envs.rendering.pictures import choose_renderer
from distrl.envs.rendering.rendered import rendered
from distrl.launch.commands.play import summary
from distrl.launch.runs.interrupt import EXIT_INTERRUPTED, interruptible
from distrl.launch.runs.player import Player, player_arguments
from distrl.launch.runs.playing import PlayedEpisode, play
from distrl.launch.runs.run import load_run
from distrl.launch.runs.snapshot_code import run_with_snapshot
from distrl.launch.runs.video_files import open_film
from distrl.launch.supervision.result import EXIT_FINISHED
from distrl.types import TimeStep

_MOST_STEPS = 10_000


def video(arguments: list[str]) -> int:
    """Writes a film of whole episodes.

    Args:
      arguments: the command, the run folder, and flags; see the help.

    Returns:
      The exit status.

    Raises:
      ConfigError: there is no such run, checkpoint or environment, it cannot be drawn, or what
        writes such a file is missing.
    """
    parser = player_arguments("video").add("--out").add("--fps", type=_fps)
    values = parser.parse_args(arguments[1:])
    if values.code == "snapshot":
        return run_with_snapshot("video", values.run, arguments[1:])
    out = (
        Path(values.out) if values.out else load_run(values.run, command="video").path / "video.mp4"
    )
    film = open_film(out)
    choose_renderer()
    player = Player("video", values)
    drawn = rendered(player.environment)
    if drawn.note:
        print(f"distrl: {drawn.note}", flush=True)
    wanted, limit = values.episodes or 1, values.max_steps or _MOST_STEPS
    episodes: list[PlayedEpisode] = []
    pictures = 0

    def on_step(timestep: TimeStep | None) -> None:
        nonlocal pictures
        picture = drawn.picture(timestep)
        if not pictures:
            film.begin(picture.shape[0], picture.shape[1], values.fps or drawn.fps())
        film.add(picture)
        pictures += 1

    with contextlib.ExitStack() as stack:
        stopped = stack.enter_context(interruptible())
        stack.callback(film.close)
        game = player.game(drawn.environment)
        stack.callback(game.close)
        episodes += play(game, wanted, limit, stopped, on_step)
    print(f"{out}: {pictures:,} pictures, {summary(episodes, wanted)}")
    if len(episodes) < wanted and not stopped():
        print(f"distrl: ended after --max_steps={limit}")
    return EXIT_INTERRUPTED if stopped() else EXIT_FINISHED


def _fps(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1000:
        raise argparse.ArgumentTypeError(f"expected pictures a second, got {text!r}")
    return value
