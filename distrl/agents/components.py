"""The components of an agent's parameters, each with an optimiser of its own if the user wants."""

import dataclasses
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from distrl.agents.agent import Agent, Logs
from distrl.agents.optimizers import OPTIMIZERS, annealed
from distrl.agents.structs import params_struct
from distrl.errors import ConfigError
from distrl.field_checks import check_choice, check_count, check_flag, check_number, choose_from
from distrl.types import Nest, Params

# Components that agents of each kind may have, for flags: a core with memory; streams and, for
# action values, a value head with dueling; heads of the user's own; torso and core, for continuous
# control, with pixels or memory.
_NAMES = {
    "actor_critic": ("torso", "core", "policy_head", "value_head", "heads"),
    "q_network": (
        "torso", "core", "q_head", "value_head", "advantage_stream", "value_stream", "heads"
    ),
    "deterministic": ("torso", "core", "policy", "critics"),
    "soft": ("torso", "core", "policy", "critics", "temperature"),
}  # fmt: skip

# Modules that convolutional torsos have beside each other, not in a module named "torso".
_LAYERS = re.compile(r"(conv\w*|linear|flatten)(_\d+)?")
_PREFIX = "agent.components"


@dataclasses.dataclass(frozen=True)
class ComponentConfig:
    """The optimiser of one component of an agent. A setting that is None is the whole agent's.

    Attributes:
      learning_rate: learning rate of this component.
      anneal_updates: updates over which its learning rate falls linearly to 0; 0: constant.
      optimizer: "adam", "rmsprop" or "sgd" (the gradient times the learning rate).
      frozen: keep its parameters exactly as they are; its gradients then do not count for
        `max_gradient_norm`.
    """

    learning_rate: float | None = None
    anneal_updates: int | None = None
    optimizer: str | None = None
    frozen: bool = False

    def check(self, name: str) -> None:
        """Raises ConfigError for settings that cannot work. Args: name: the component's name."""
        prefix = f"{_PREFIX}.{name}"
        if self.learning_rate is not None:
            check_number(self, "learning_rate", lambda x: x > 0, "above 0, or None", prefix)
        if self.anneal_updates is not None:
            check_count(self, "anneal_updates", prefix, least=0)
        if self.optimizer is not None:
            check_choice(self, "optimizer", OPTIMIZERS, prefix)
        check_flag(self, "frozen", prefix)


def components_field(kind: str, *added: str) -> Any:
    """Returns the field `components` of an algorithm's settings: a `ComponentConfig` by name.

    Args:
      kind: "actor_critic", "q_network", or "deterministic" or "soft" for continuous control.
      added: names of components that a derived agent adds, which get flags like the others.
    """
    metadata = {"names": (*_NAMES[kind], *added), "kind": ComponentConfig}
    return dataclasses.field(default=None, hash=False, metadata=metadata)


ByName = Mapping[str, ComponentConfig] | None
"""Settings by component; None: no component has any of its own."""


def _check(given: Any) -> None:
    """Raises ConfigError unless `given` is a mapping from names to valid settings."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"{_PREFIX}: expected a mapping by component, got {given!r}")
    for name, component in given.items():
        if not isinstance(component, ComponentConfig):
            raise ConfigError(f"{_PREFIX}.{name}: expected a ComponentConfig, got {component!r}")
        component.check(name)


class Components(NamedTuple):
    """The components of a part of an agent's parameters, for `make_optimizer`.

    Attributes:
      labels: function from the parameters to the same nest with each leaf's component.
      learning_rate, anneal_updates: the agent's.
      configs: settings by component; a component without any has the whole agent's.
      delay: the learner's updates for each update that the optimiser makes.
    """

    labels: Callable[[Params], Nest]
    learning_rate: float
    anneal_updates: float | None = None
    configs: Mapping[str, ComponentConfig] = MappingProxyType({})
    delay: int = 1

    def _config(self, name: str) -> ComponentConfig:
        return self.configs.get(name, ComponentConfig())

    def is_frozen(self, name: str) -> bool:
        """Whether a component keeps its parameters."""
        return self._config(name).frozen

    def optimizer(self, name: str, default: str) -> str:
        """Returns the name of a component's optimiser."""
        return self._config(name).optimizer or default

    def rate(self, name: str) -> optax.Schedule:
        """Returns a component's learning rate over updates."""
        config = self._config(name)
        rate = self.learning_rate if config.learning_rate is None else config.learning_rate
        updates = self.anneal_updates if config.anneal_updates is None else config.anneal_updates
        return annealed(rate, updates, self.delay)

    def trained(self, grads: Params) -> Params:
        """Returns the gradients, with 0 for what is frozen."""
        if not any(config.frozen for config in self.configs.values()):
            return grads
        return jax.tree.map(
            lambda g, name: jnp.zeros_like(g) if self.is_frozen(name) else g,
            grads,
            self.labels(grads),
        )

    def logs(self, updates: jax.Array) -> Logs:
        """Returns the learning rates of the components that have settings, after some updates."""
        logs = {}
        for name in self.configs:
            rate = 0.0 if self.is_frozen(name) else self.rate(name)(updates)
            logs[f"learning_rate_{name}"] = jnp.asarray(rate, jnp.float32)
        return logs


def network_labels(params: Params) -> Nest:
    """Returns each leaf's component for Haiku's parameters, by module: `{module: {name: leaf}}`.

    It is the first part of the module's name. Layers without a module around them are the torso's,
    and what is beside a policy's head is part of it.
    """

    def component(path: Any, leaf: Any) -> str:
        del leaf
        module: str = path[0].key
        first = module.split("/", 1)[0]
        if first == "policy":
            return "policy_head"
        is_torso = first.startswith("torso_") or _LAYERS.fullmatch(first)
        return "torso" if is_torso else first

    return jax.tree_util.tree_map_with_path(component, params)


def part_labels(params: Params) -> Nest:
    """Returns each leaf's component for parameters by part, `{"policy": ..., "critics": ...}`.

    The parts are the components, but for those of an "encoder", a network.
    """

    def labels(part: str) -> Nest:
        if part == "encoder":
            return network_labels(params[part])
        return jax.tree.map(lambda _: part.removeprefix("log_"), params[part])

    return {part: labels(part) for part in params}


def component_names(labels: Nest) -> tuple[str, ...]:
    """Returns the components in a nest of labels, in their order there."""
    return tuple(dict.fromkeys(jax.tree.leaves(labels)))


def components_of(agent: Agent) -> tuple[str, ...]:
    """Returns the names of an agent's components; () if it has none. Initialises no backend."""
    return component_names(agent.components(params_struct(agent)))


def components_for(
    agent: Any,
    learning_rate: float,
    anneal_updates: float | None = None,
    labels: Callable[[Params], Nest] = network_labels,
    delay: int = 1,
) -> Components:
    """Returns the components of an agent, or of a part of its parameters.

    Args:
      agent: has its settings, with `components`, as `config`.
      learning_rate, anneal_updates, labels, delay: see `Components`.

    Raises:
      ConfigError: a component that the agent does not have; settings that
        cannot work; or a derived agent's parameters need what its constructor sets only later.
    """
    given = agent.config.components
    if given is None:
        return Components(labels, learning_rate, anneal_updates, delay=delay)
    _check(given)
    try:
        names = components_of(agent) if given else ()
    except AttributeError as error:
        if error.obj is not agent:
            raise
        raise ConfigError(
            f"{_PREFIX}: the parameters of {type(agent).__name__} need self.{error.name}, which "
            "its constructor has not set yet: set it before super().__init__()"
        ) from error
    for name in given:
        if name not in names:
            raise ConfigError(
                f"{_PREFIX}: this agent has no {name!r}{choose_from(name, sorted(names))}"
            )
    return Components(labels, learning_rate, anneal_updates, given, delay)
