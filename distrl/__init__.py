"""Distributed actor-learner reinforcement learning.

    import distrl
    run = distrl.train("CartPole-v1", agent="ppo", max_env_steps=100_000)
    print(distrl.evaluate(run))

What this needs is imported when it is first used, so that `import distrl` itself is quick.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from distrl.version import __version__

if TYPE_CHECKING:
    from distrl.callbacks import Callback
    from distrl.envs.pool import Environment
    from distrl.experiment import Experiment
    from distrl.launch.runs.evaluation import Evaluation
    from distrl.launch.runs.run import Run
    from distrl.policy import Policy

__all__ = ["__version__", "evaluate", "load_policy", "load_run", "train"]


def train(
    environment: "str | Experiment",
    agent: str | None = None,
    *,
    topology: str = "single_process",
    max_env_steps: int | None = None,
    max_episodes: int | None = None,
    seed: int | None = None,
    run_dir: str | Path | None = None,
    config: Mapping[str, Any] | None = None,
    callbacks: "Sequence[Callback]" = (),
    flags: Sequence[str] = (),
    quiet: bool = False,
) -> "Run":
    """Trains as `distrl train` does, and returns the run.

    Training runs in processes of its own, so it does not matter what this process has imported or
    computed before, and prints to this process's stdout. Ctrl-C, or a notebook's interrupt, is
    passed on: the run saves, and KeyboardInterrupt is raised; to resume, give the run's folder as
    `run_dir`.

    Args:
      environment: an environment's name, as `distrl.envs.make` takes it, or an Experiment, which
        may have classes and functions of a script or a notebook.
      agent: the algorithm's name, "impala" unless given, or "ppo" for continuous
        actions. Not with an Experiment.
      topology: "single_process", "heavy_env", "light_env", "multi_machine" or "auto".
      max_env_steps: environment steps after which the run ends; None: it ends at its goal.
      max_episodes: episodes after which the run ends; None: no such limit.
      seed: root of all seeds of the run.
      run_dir: folder to write the run to, or of a run to resume; None: a new folder in runs/.
      config: settings by the names of their flags, {"learner.batch_size": 64}.
      callbacks: called in the process that learns; see `distrl.callbacks`.
      flags: further flags of `distrl train`.
      quiet: whether to suppress the output.

    Returns:
      The run. It is trusted, since it is the caller's: its policies may contain the caller's code.

    Raises:
      ConfigError: bad input; nothing was trained.
      TrainingError: training has failed.
    """
    _import_jax()
    from distrl.launch.python import training

    return training.train(
        environment,
        agent,
        topology=topology,
        max_env_steps=max_env_steps,
        max_episodes=max_episodes,
        seed=seed,
        run_dir=run_dir,
        config=config,
        callbacks=callbacks,
        flags=flags,
        quiet=quiet,
    )


def evaluate(
    policy: "Policy | Run | str | Path",
    environment: "str | Environment | None" = None,
    *,
    episodes: int = 10,
    max_steps: int | None = None,
    seed: int = 0,
) -> "Evaluation":
    """Plays whole episodes with a policy and returns their scores.

    Args:
      policy: a policy, a run, or the folder of a run or of a checkpoint.
      environment: the environment, or its name; None: the run's own. If that is code of the user's
        own, the run must be trusted: one that `train` returned, or `load_run(path, trust=True)`.
      episodes: number of episodes.
      max_steps: steps of each environment after which the evaluation ends; episodes that have not
        ended by then do not count. None: no limit.
      seed: seed of the environments.

    Raises:
      ConfigError: there is no such run or environment, its observations, actions or rewards are not
        those of the training, or no episode ended.
    """
    _import_jax()
    from distrl.launch.runs import evaluation

    return evaluation.evaluate(
        policy, environment, episodes=episodes, max_steps=max_steps, seed=seed
    )


def load_policy(path: str | Path, which: str = "latest", **options: Any) -> "Policy":
    """Returns the policy that a run has learned: see `distrl.policy.load_policy`."""
    _import_jax()
    from distrl import policy

    return policy.load_policy(path, which, **options)


def load_run(path: str | Path, *, trust: bool = False) -> "Run":
    """Returns the run of a folder: its metrics, checkpoints, policies, settings and result.

    Args:
      path: the folder; its run may be in progress.
      trust: whether to run the user's own code that its files contain; see `load_policy`.

    Raises:
      ConfigError: it is not a run folder.
    """
    _import_jax()
    from distrl.launch.runs import run

    return run.load_run(path, trust=trust)


def _import_jax() -> None:
    from distrl.runtime.jax_import import import_jax

    import_jax()  # takes a second
