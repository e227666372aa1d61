"""`distrl.evaluate`: whole episodes of a policy in an environment."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from distrl import envs
from distrl.checkpointing.store import MANIFEST
from distrl.envs.multi_agent.environment import SeveralAgents
from distrl.envs.pool import Environment
from distrl.envs.whole_games import whole_games
from distrl.episodes import EpisodeOutcome, EpisodeStatistics, shares
from distrl.errors import ConfigError
from distrl.experiment_checks import check_environment
from distrl.launch.runs.environment import environment_of
from distrl.launch.runs.run import Run, load_run
from distrl.policy import Policy, load_policy
from distrl.runtime.working_folder import absolute
from distrl.saved_policy import check_spec
from distrl.seeds import environment_seeds
from distrl.types import StepType

_MOST_ENVS = 16
PolicySource = Policy | Run | str | Path | Callable[[], Policy]


class Evaluation(NamedTuple):
    """The episodes of an evaluation.

    Attributes:
      returns: float64 `[episodes]`, sums of rewards without discount.
      lengths: int64 `[episodes]`, in steps; each repeat by `wrappers.action_repeat` counts.
      success_rate: from 0 to 1; None: the environment does not report success.
    """

    returns: np.ndarray[Any, np.dtype[np.float64]]
    lengths: np.ndarray[Any, np.dtype[np.int64]]
    success_rate: float | None

    @property
    def mean(self) -> float:
        """The mean return."""
        return float(self.returns.mean())

    @property
    def std(self) -> float:
        """The standard deviation of the returns."""
        return float(self.returns.std())

    def __str__(self) -> str:
        text = f"return {self.mean:.2f} ± {self.std:.2f} over {len(self.returns)} episodes"
        if self.success_rate is not None:
            text += f", success {100 * self.success_rate:.0f} %"
        return text


def evaluate(
    policy: PolicySource,
    environment: str | Environment | None = None,
    *,
    episodes: int = 10,
    max_steps: int | None = None,
    seed: int = 0,
) -> Evaluation:
    """See `distrl.evaluate`. A function is called for the policy once the pool is made."""
    if episodes < 1:
        raise ConfigError(f"evaluate: episodes must be 1 or more, got {episodes}")
    if seed < 0:
        raise ConfigError(f"evaluate: seed must be 0 or more, got {seed}")
    if isinstance(policy, (str, Path)):
        policy = absolute(policy)
        if environment is None and not _is_checkpoint(policy):
            policy = load_run(policy, command="evaluate")
    if isinstance(policy, Run):
        policy = Run(absolute(policy.run_dir), trust=policy.trust, task=policy.task)
        environment = environment or whole_games(environment_of(policy, trust=policy.trust))
    if environment is None:
        raise ConfigError("evaluate: name the environment, as in evaluate(policy, 'CartPole-v1')")
    if isinstance(environment, str):
        environment = envs.make(environment)
    check_environment("evaluate: environment", environment)
    if isinstance(environment, SeveralAgents):
        raise ConfigError(
            f"evaluate: {environment.name} has several agents; set evaluator.num_evaluators to "
            "evaluate their policies together while they learn"
        )
    return _play(policy, environment, episodes, max_steps, seed)


def _is_checkpoint(folder: Path) -> bool:
    return (folder / MANIFEST).exists()


def _loaded(source: PolicySource) -> Policy:
    if isinstance(source, Policy):
        return source
    if isinstance(source, Run):
        return source.policy
    return load_policy(source) if isinstance(source, (str, Path)) else source()


def _play(
    source: PolicySource,
    environment: Environment,
    episodes: int,
    max_steps: int | None,
    seed: int,
) -> Evaluation:
    fixed_size = source.batch_size if isinstance(source, Policy) else None
    num_envs = fixed_size or min(episodes, _MOST_ENVS)
    share = shares(episodes, num_envs).tolist()
    seeds = environment_seeds(seed, "evaluator", 0, num_envs)
    # Before the policy: a pool of processes forks, and to load parameters starts JAX.
    pool = environment.make_pool(num_envs, num_envs, seeds)
    try:
        policy, spec = _loaded(source), environment.spec()
        check_spec(policy.env_spec, spec, f"evaluate in {environment.name}: the policy")
        statistics = EpisodeStatistics(num_envs, pool.spec)
        records: list[list[Any]] = [[] for _ in range(num_envs)]
        policy.reset()
        timestep = pool.reset()
        steps = 0
        while any(len(each) < most for each, most in zip(records, share)):
            ended = statistics.add(timestep)
            for index, record in zip(*ended) if ended is not None else ():
                if len(records[index]) < share[index]:
                    records[index].append(record)
            if max_steps is not None and steps >= max_steps:
                break
            if steps:  # in another number of environments than before, all episodes begin anyway
                policy.reset(timestep.step_type == StepType.FIRST)
            timestep = pool.step(policy.in_pool(timestep.observation, timestep.reward))
            steps += 1
    finally:
        pool.close()
    played = [record for k in range(max(share)) for each in records for record in each[k : k + 1]]
    if not played:
        raise ConfigError(
            f"evaluate: no episode of {environment.name} ended within max_steps={max_steps}"
        )
    success_rate = None
    if "success" in pool.spec.env_info:
        success_rate = sum(record[2] == EpisodeOutcome.SUCCESS for record in played) / len(played)
    return Evaluation(
        np.array([record[0] for record in played], np.float64),
        np.array([record[1] for record in played], np.int64),
        success_rate,
    )
