"""Agents whose hyperparameters may change while they learn, without another compilation."""

import copy
import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp

from distrl.agents.action_distribution import ActionDistribution
from distrl.agents.agent import Agent, LearnerState, Logs
from distrl.agents.defaults import Defaults, defaults_of
from distrl.config import ActorsConfig, LearnerConfig
from distrl.errors import ConfigError
from distrl.field_checks import check_flag, is_number
from distrl.random_keys import derive
from distrl.replay.config import ReplayConfig
from distrl.specs import EnvironmentSpec
from distrl.types import AgentOutput, Params, State, TimeStep, Trajectory

HYPERPARAMETERS = "hyperparameters"
"""Name in a tunable agent's parameters of a dict of float32 scalars."""


@dataclasses.dataclass(frozen=True)
class Tunable:
    """An algorithm's settings, some of which are parameters of the agent: see TunableAgent.

    Attributes:
      agent: the algorithm's settings. Numbers in them that would have no effect are named by their
        property `untunable`, if there is one, with the reason.
      ranges: by name of a setting that is a number, such as "learning_rate", its least and largest
        value, both above 0.
      draw: begin with random values, uniform in their logarithm, that follow from the run's seed;
        False: with those of `agent`.
    """

    agent: Any
    ranges: Mapping[str, tuple[float, float]]
    draw: bool = True

    def __post_init__(self) -> None:
        if not dataclasses.is_dataclass(self.agent) or not hasattr(self.agent, "make"):
            raise ConfigError(f"Tunable: agent must be an algorithm's settings, got {self.agent!r}")
        check_flag(self, "draw", "Tunable")
        if not isinstance(self.ranges, Mapping) or not self.ranges:
            raise ConfigError("Tunable: ranges must name at least one setting and its range")
        numbers = [
            field.name
            for field in dataclasses.fields(self.agent)
            if type(getattr(self.agent, field.name)) is float
        ]
        for name, ends in self.ranges.items():
            if name not in numbers:
                raise ConfigError(
                    f"Tunable: {type(self.agent).__name__}.{name} is not a number that can change "
                    f"while it learns; those are {', '.join(numbers)}"
                )
            fixed = getattr(self.agent, "untunable", {})
            if name in fixed:
                raise ConfigError(
                    f"Tunable: {type(self.agent).__name__}.{name} cannot change while it learns: "
                    f"{fixed[name]}"
                )
            pair = isinstance(ends, (tuple, list)) and len(ends) == 2 and all(map(is_number, ends))
            if not (pair and 0 < ends[0] < ends[1]):
                raise ConfigError(
                    f"Tunable: ranges[{name!r}] must be its least and largest value, both above 0; "
                    f"got {ends!r}"
                )
            for value in ends:  # the algorithm's own checks
                agent: Any = self.agent
                dataclasses.replace(agent, **{name: float(value)})

    @property
    def on_policy(self) -> bool:
        """See the algorithm."""
        return bool(getattr(self.agent, "on_policy", False))

    @property
    def acts(self) -> bool:
        """See the algorithm."""
        return bool(getattr(self.agent, "acts", True))

    @property
    def whole_episodes(self) -> bool:
        """See the algorithm."""
        return bool(getattr(self.agent, "whole_episodes", False))

    def check_replay(self, replay: ReplayConfig, batch_size: int) -> None:
        """Raises ConfigError for a table that the algorithm cannot learn from."""
        check = getattr(self.agent, "check_replay", None)
        if check is not None:
            check(replay, batch_size)

    def defaults(
        self,
        env_spec: EnvironmentSpec,
        actors: ActorsConfig | None = None,
        learner: LearnerConfig | None = None,
    ) -> Defaults:
        """Returns the parts that suit the algorithm; see `Defaults`."""
        return defaults_of(self.agent, env_spec, actors, learner)

    def values(self, rng: jax.Array) -> dict[str, jax.Array]:
        """Returns the values to begin with, float32 scalars. Args: rng: raw key."""
        values = {}
        for name, ends in self.ranges.items():
            value = jnp.asarray(getattr(self.agent, name), jnp.float32)
            if self.draw:
                least, most = map(math.log, ends)
                share = jax.random.uniform(derive(rng, f"tunable {name}"))
                value = jnp.exp(least + (most - least) * share)
            values[name] = value
        return values

    def make(self, env_spec: EnvironmentSpec) -> "TunableAgent":
        """Returns the agent for an environment. Raises ConfigError if the two do not fit."""
        return TunableAgent(self, env_spec)


class TunableAgent(Agent):
    """An agent with the values of its tunable settings in its parameters.

    Its parameters are `{"agent": the agent's, "hyperparameters": {name: float32 scalar}}`. No
    update changes the hyperparameters. They can be changed without another compilation, since they
    are traced.

    Attributes:
      agent: the agent, with the values that its settings have.
    """

    def __init__(self, config: Tunable, env_spec: EnvironmentSpec):
        """Args: config: the settings. env_spec: spec of the environment."""
        self.env_spec = env_spec
        self._config = config
        self.agent = config.agent.make(env_spec)

    def _with_values(self, params: Params) -> Agent:
        """Returns the agent with the values in the parameters."""
        config = copy.copy(self._config.agent)
        for name, value in params[HYPERPARAMETERS].items():
            object.__setattr__(config, name, value)  # it was checked, and a tracer cannot be
        try:
            return config.make(self.env_spec)
        except jax.errors.JAXTypeError as error:
            raise ConfigError(
                f"{type(config).__name__}: one of {', '.join(self._config.ranges)} cannot change "
                f"while it learns: {error}"
            ) from error

    def initial_params(self, rng: jax.Array) -> Params:
        """See `Agent`."""
        return {
            "agent": self.agent.initial_params(rng),
            HYPERPARAMETERS: self._config.values(rng),
        }

    def initial_state(self, batch_size: int) -> State:
        """See `Agent`."""
        return self.agent.initial_state(batch_size)

    def actor_step(
        self,
        rng: jax.Array,
        params: Params,
        timestep: TimeStep,
        state: State,
        evaluation: bool = False,
    ) -> tuple[AgentOutput, State]:
        """See `Agent`."""
        agent = self._with_values(params)
        return agent.actor_step(rng, params["agent"], timestep, state, evaluation)

    def action_distribution(
        self,
        rng: jax.Array,
        params: Params,
        timestep: TimeStep,
        state: State,
        evaluation: bool = False,
    ) -> ActionDistribution | None:
        """See `Agent`."""
        agent = self._with_values(params)
        return agent.action_distribution(rng, params["agent"], timestep, state, evaluation)

    def with_env_steps(self, params: Params, env_steps: int) -> Params:
        """See `Agent`."""
        return {**params, "agent": self.agent.with_env_steps(params["agent"], env_steps)}

    def initial_learner_state(self, params: Params) -> LearnerState:
        """See `Agent`."""
        return self.agent.initial_learner_state(params["agent"])

    def compute_gradients(
        self, params: Params, learner_state: LearnerState, batch: Trajectory
    ) -> tuple[Params, Logs]:
        """See `Agent`."""
        agent = self._with_values(params)
        grads, logs = agent.compute_gradients(params["agent"], learner_state, batch)
        zeros = jax.tree.map(jnp.zeros_like, params[HYPERPARAMETERS])
        return {"agent": grads, HYPERPARAMETERS: zeros}, logs

    def apply_gradients(
        self, params: Params, learner_state: LearnerState, grads: Params
    ) -> tuple[Params, Any, Logs]:
        """See `Agent`."""
        agent = self._with_values(params)
        inner, opt_state, logs = agent.apply_gradients(
            params["agent"], learner_state, grads["agent"]
        )
        return {**params, "agent": inner}, opt_state, {**logs, **self._logs(params)}

    def update_learner_state(
        self, params: Params, opt_state: Any, learner_state: LearnerState
    ) -> LearnerState:
        """See `Agent`."""
        agent = self._with_values(params)
        return agent.update_learner_state(params["agent"], opt_state, learner_state)

    def learner_step(
        self, params: Params, learner_state: LearnerState, batch: Trajectory
    ) -> tuple[Params, LearnerState, Logs]:
        """See `Agent`. Calls the agent's own, which it may override."""
        agent = self._with_values(params)
        inner, learner_state, logs = agent.learner_step(params["agent"], learner_state, batch)
        return {**params, "agent": inner}, learner_state, {**logs, **self._logs(params)}

    def check_shares(self) -> None:
        """See `Agent`."""
        self.agent.check_shares()

    def counted(self, params: Params, learner_state: LearnerState, batch: Trajectory) -> Trajectory:
        """See `Agent`."""
        return self.agent.counted(params["agent"], learner_state, batch)

    def num_real(self, batch: Trajectory) -> int:
        """See `Agent`."""
        return self.agent.num_real(batch)

    @staticmethod
    def _logs(params: Params) -> Logs:
        return {f"tuned_{name}": value for name, value in params[HYPERPARAMETERS].items()}


def hyperparameters(params: Params) -> dict[str, float]:
    """Returns the values in the parameters of a tunable agent, which may be behind transforms."""
    if HYPERPARAMETERS in params:
        return {name: float(value) for name, value in params[HYPERPARAMETERS].items()}
    return hyperparameters(params["agent"])


def with_hyperparameters(params: Params, values: Mapping[str, float]) -> Params:
    """Returns the parameters of a tunable agent with other values; see `hyperparameters`."""
    if HYPERPARAMETERS not in params:
        return {**params, "agent": with_hyperparameters(params["agent"], values)}
    new = {name: jnp.asarray(values[name], jnp.float32) for name in params[HYPERPARAMETERS]}
    return {**params, HYPERPARAMETERS: new}
