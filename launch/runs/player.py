"""What plays a run: its environment and its policies, as `eval`, `play` and `video` choose them."""

import argparse
import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, cast

from distrl import envs
from distrl.checkpointing.saved import Saved
from distrl.checkpointing.store import PARAMS
from distrl.envs.multi_agent.assignment import Assignment
from distrl.envs.multi_agent.copies import Copies
from distrl.envs.multi_agent.environment import SeveralAgents
from distrl.envs.pool import Environment
from distrl.envs.whole_games import whole_games
from distrl.errors import ConfigError, UntrustedError
from distrl.inferencer import InferenceSource
from distrl.launch.cli.import_file import append_folder_for
from distrl.launch.runs.arguments import Parser
from distrl.launch.runs.environment import environment_of, experiment_of, with_settings
from distrl.launch.runs.playing import Game, OneAgent, SeveralAgentsGame, Sources
from distrl.launch.runs.run import Run, load_run
from distrl.multi_agent.learned_policy import LearnedPolicy
from distrl.policy import Policy, find_saved, load_policy
from distrl.programs.resources import process_environment
from distrl.rules import FixedPolicy
from distrl.runtime.jax_import import set_environment
from distrl.runtime.working_folder import absolute
from distrl.saved_policy import SavedPolicy, check_spec
from distrl.specs import EnvironmentSpec

_LEARNED = LearnedPolicy.__qualname__


def player_arguments(command: str) -> Parser:
    """Returns a parser of the arguments that say what plays. Args: command: the command's name."""
    return (
        Parser(command)
        .add("run")
        .add("--env")
        .add("--experiment")
        .add("--task")
        .add("--which", choices=("latest", "best"), default="latest")
        .add("--episodes", type=positive)
        .add("--max_steps", type=positive)
        .add("--seed", type=not_negative, default=0)
        .add("--sample", action="store_true")
        .add("--trust", action="store_true")
        .add("--code", choices=("current", "snapshot"), default="current")
    )


def positive(text: str) -> int:
    """Returns a whole number from 1 on; raises ArgumentTypeError."""
    return _whole(text, 1)


def not_negative(text: str) -> int:
    """Returns a whole number from 0 on; raises ArgumentTypeError."""
    return _whole(text, 0)


def _whole(text: str, least: int) -> int:
    if not text.isdecimal() or int(text) < least:
        raise argparse.ArgumentTypeError(f"expected a whole number from {least} on, got {text!r}")
    return int(text)


@contextlib.contextmanager
def _flag_of_trust() -> Iterator[None]:
    """Makes errors name the flag, instead of Python's argument, that runs a policy's code."""
    try:
        yield
    except UntrustedError as error:
        raise UntrustedError(error.args[0], "add --trust") from None


class Player:
    """A run's environment and policies.

    Attributes:
      environment: the environment to play in.
    """

    def __init__(self, command: str, values: argparse.Namespace):
        """Args: command: for messages. values: what `player_arguments` parsed.

        Raises:
          ConfigError: there is no such run, task or environment, or it is code that must not run.
        """
        self._command, self._values = command, values
        set_environment(process_environment(None))
        run = load_run(absolute(values.run), trust=values.trust, command=command)
        tasks = run.tasks
        if values.task is not None:
            if values.task not in tasks:
                raise ConfigError(
                    f"{command}: {run.path} has no policy {values.task!r}; it has "
                    f"{', '.join(tasks) or 'only one: leave --task out'}"
                )
            run = tasks[values.task]
        self.run = run
        if values.env is not None:
            append_folder_for(values.env)
            self.environment: Environment = envs.make(values.env)
        else:
            self.environment = whole_games(
                environment_of(run, file=values.experiment, trust=values.trust, command=command)
            )
        if isinstance(self.environment, Copies):
            if run.task is None and tasks:
                raise ConfigError(
                    f"{command}: each policy of {run.path} has its own environment; name one: "
                    f"--task={next(iter(tasks))}"
                )
            self.environment = self.environment.environment
        self.has_several_agents = isinstance(self.environment, SeveralAgents)
        if self.has_several_agents and values.task is not None:
            raise ConfigError(
                f"{command}: --task={values.task}: in {self.environment.name} all policies of "
                f"{run.run_dir} act, each for its agents: leave --task out"
            )

    def policy(self) -> Policy:
        """Returns the policy of an environment with one agent. Raises: see `load_policy`."""
        values, path = self._values, self._checkpoint(self.run)
        with _flag_of_trust():
            return load_policy(
                path,
                greedy=not values.sample,
                seed=values.seed,
                trust=values.trust,
            )

    def game(self, drawn: Environment) -> Game:
        """Returns the environment with what acts in it.

        Args:
          drawn: `environment`, perhaps with pictures.

        Raises:
          ConfigError: there is no such policy, or it is code that must not run.
        """
        if isinstance(self.environment, SeveralAgents):
            sources = self._sources(self.environment)
            with _flag_of_trust():
                return SeveralAgentsGame(self.environment, drawn, sources, self._values.seed)
        return OneAgent(drawn, self._fitting_policy, self._values.seed)

    def _fitting_policy(self) -> Policy:
        policy, what = self.policy(), f"{self._command}: {self.environment.name}: the policy"
        check_spec(policy.env_spec, self.environment.spec(), what)
        return policy

    def _sources(self, environment: SeveralAgents) -> Sources:
        agents = environment.agents()
        config = self.run.config
        policies = (config.get("experiment") or {}).get("policies") or {}
        if len(policies) < 2:
            name = "task"
            assignment = Assignment(agents, [name], dict.fromkeys(agents.agents, name))
            spec = next(iter(agents.agents.values()))
            return Sources(assignment, {name: self._saved(self.run, spec)})
        values = self._values
        experiment = experiment_of(self.run, file=values.experiment, trust=values.trust)
        if experiment is None or experiment.assignment is None:
            raise ConfigError(
                f"{self._command}: {self.run.path} has several policies, and which of them acts "
                "for which agent is in the file that defines its experiment: add --trust to run "
                "it, or name it: --experiment=FILE.py"
            )
        classes = config.get("classes") or {}
        learned = [name for name in policies if classes.get(f"policies.{name}") == _LEARNED]
        parts = self.run.tasks or dict.fromkeys(learned, self.run)  # one alone has no folder
        make = dict[str, Callable[[int, int], InferenceSource]]()
        for name in experiment.assignment.policies:
            spec = agents.agents[experiment.assignment.agents_of(name)[0]]
            if name in experiment.fixed:
                fixed = self._fixed(name, experiment.fixed[name], policies.get(name), classes)
                make[name] = functools.partial(fixed.make_source, spec)
            elif name in parts:
                make[name] = self._saved(parts[name], spec)
            else:
                raise ConfigError(
                    f"{self._command}: {self.run.path} has no policy {name!r}, which learns in the "
                    f"experiment; it has {', '.join(parts)}"
                )
        return Sources(experiment.assignment, make)

    def _fixed(self, name: str, policy: FixedPolicy, settings: Any, classes: Any) -> FixedPolicy:
        """Returns a fixed policy of the experiment with the settings that the run had.

        Args: name, policy: the experiment's. settings, classes: see `with_settings`.
        """
        if not isinstance(settings, dict):
            return policy
        given: Any = with_settings(f"policies.{name}", policy, settings, classes)
        # The run's folder may be somebody else's, who may have named other code to be trusted.
        if getattr(given, "trust", False) and not self._values.trust and given != policy:
            given = dataclasses.replace(given, trust=False)
        return cast(FixedPolicy, given)

    def _saved(self, run: Run, spec: EnvironmentSpec) -> Callable[[int, int], InferenceSource]:
        """Returns what makes the actions of a saved policy for agents of a spec."""
        values, path = self._values, self._checkpoint(run)
        policy = SavedPolicy(str(path), greedy=not values.sample, trust=values.trust)
        return functools.partial(policy.make_source, spec)

    def _checkpoint(self, run: Run) -> Path:
        """Returns the folder of the checkpoint to play, and prints which it is."""
        which = self._values.which
        checkpoint = find_saved(run.path, which, self._command)
        version = checkpoint.manifest["version"]
        of_policy = "" if run.task is None else f" of {run.task}"
        print(
            f"distrl: the policy{of_policy} is checkpoint {checkpoint.path.name}: "
            f"{version:,} learner steps",
            flush=True,
        )
        params = Saved.read(run.path).params or 0
        if which == "latest" and params > version:
            print(
                f"distrl: {run.path / PARAMS} is newer: {params:,} learner steps, for which there "
                "is no checkpoint; distrl.checkpointing.params_file.load_params reads it",
                flush=True,
            )
        return checkpoint.path
