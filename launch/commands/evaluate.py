"""`distrl eval RUN`: whole episodes of a run's policy."""

from distrl.launch.commands.play import summary
from distrl.launch.runs.evaluation import evaluate
from distrl.launch.runs.interrupt import EXIT_INTERRUPTED, interruptible
from distrl.launch.runs.player import Player, player_arguments
from distrl.launch.runs.playing import play
from distrl.launch.runs.snapshot_code import run_with_snapshot
from distrl.launch.supervision.result import EXIT_FINISHED

_EPISODES = 10


def evaluate_run(arguments: list[str]) -> int:
    """Prints the scores of a run's policy.

    Args:
      arguments: the command, the run folder, and flags; see the help.

    Returns:
      The exit status.

    Raises:
      ConfigError: there is no such run, checkpoint or environment.
    """
    values = player_arguments("eval").parse_args(arguments[1:])
    if values.code == "snapshot":
        return run_with_snapshot("eval", values.run, arguments[1:])
    player = Player("eval", values)
    episodes, max_steps = values.episodes or _EPISODES, values.max_steps
    if not player.has_several_agents:
        scores = evaluate(
            player.policy,
            player.environment,
            episodes=episodes,
            max_steps=max_steps,
            seed=values.seed,
        )
        print(scores)
        if len(scores.returns) < episodes:
            print(
                f"distrl: ended after --max_steps={max_steps}: {len(scores.returns)} of {episodes} "
                "episodes"
            )
        return EXIT_FINISHED
    game = player.game(player.environment)
    with interruptible() as stopped:
        try:
            print(summary(list(play(game, episodes, max_steps, stopped, lambda _: None)), episodes))
        finally:
            game.close()
    return EXIT_INTERRUPTED if stopped() else EXIT_FINISHED
