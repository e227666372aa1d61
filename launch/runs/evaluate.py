"""`distrl eval RUN`: whole episodes of a run's policy."""

from distrl.launch.runs.arguments import Parser
from distrl.launch.runs.evaluation import environment_of, evaluate
from distrl.launch.runs.run import load_run
from distrl.policy import load_policy


def evaluate_run(arguments: list[str]) -> int:
    """Prints the scores of a run's policy.

    Args:
      arguments: the command, the run folder, and flags; see the help.

    Returns:
      The exit status.

    Raises:
      ConfigError: there is no such run, checkpoint or environment.
    """
    values = (
        Parser("eval")
        .add("run")
        .add("--env")
        .add("--which", choices=("latest", "best"), default="latest")
        .add("--episodes", type=int, default=10)
        .add("--seed", type=int, default=0)
        .add("--trust", action="store_true")
        .parse_args(arguments[1:])
    )
    run = load_run(values.run)
    environment = values.env or environment_of(run)
    policy = load_policy(run.path, values.which, trust=values.trust)
    print(evaluate(policy, environment, episodes=values.episodes, seed=values.seed))
    return 0
