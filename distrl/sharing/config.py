"""Settings of parameters that tasks share, and their checks against the tasks' agents."""

import dataclasses
import fnmatch
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import jax

from distrl.agents.agent import Agent
from distrl.agents.structs import params_struct
from distrl.agents.tunable import TunableAgent
from distrl.errors import ConfigError
from distrl.field_checks import check_choice, is_number
from distrl.transforms.agent import TransformedAgent
from distrl.types import Params

UPDATES = ("sum", "turns")


@dataclasses.dataclass(frozen=True)
class Shared:
    """Parameters that several tasks share, trained in one learner process by the losses of all.

    Attributes:
      tasks: names of the tasks.
      weights: weight of each task's gradient in the sum; None: 1 each. For `update="sum"`.
      update: "sum": the first task's optimiser moves the parameters, whenever that task makes an
        update, by the sum of all tasks' gradients: its own and, for each other task, the mean over
        the batches that it had since. "turns": each task's optimiser moves them with each of that
        task's updates; for any algorithm, also those that make several updates from a batch.
    """

    tasks: tuple[str, ...]
    weights: tuple[float, ...] | None = None
    update: str = "sum"

    def __post_init__(self) -> None:
        for name in ("tasks", "weights"):
            if isinstance(getattr(self, name), list):
                object.__setattr__(self, name, tuple(getattr(self, name)))
        if not isinstance(self.tasks, tuple) or len(set(self.tasks)) < max(2, len(self.tasks)):
            raise ConfigError(f"shared: expected the names of two tasks or more, got {self.tasks}")
        check_choice(self, "update", UPDATES, "shared")
        if self.weights is None:
            return
        if self.update == "turns":
            raise ConfigError("shared: weights are for update='sum'; in turns nothing is summed")
        good = isinstance(self.weights, tuple) and all(
            is_number(w) and w >= 0 for w in self.weights
        )
        if not good or len(self.weights) != len(self.tasks):
            raise ConfigError(
                f"shared: expected a weight of 0 or more for each of {self.tasks}, got "
                f"{self.weights}"
            )

    def weight(self, task: str) -> float:
        """Returns the weight of a task's gradient."""
        return 1.0 if self.weights is None else self.weights[self.tasks.index(task)]

    def owner(self) -> str:
        """Returns the task whose optimiser moves the parameters, for `update="sum"`."""
        return self.tasks[0]


def paths(params: Params) -> list[tuple[str, Any]]:
    """Returns the leaves with their paths: "network/torso/linear_0/w" for example."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(params)
    return [("/".join(_components(path)), leaf) for path, leaf in leaves]


def _components(path: Sequence[Any]) -> Iterator[str]:
    for entry in path:
        key = getattr(entry, "key", getattr(entry, "name", getattr(entry, "idx", "")))
        yield from (part for part in str(key).split("/") if part != "~")


def key_in(name: str, path: str) -> str | None:
    """Returns the path of a leaf from the shared name on; None if it lacks the name.

    Args:
      name: one part of a path or several, e.g. "torso", "policy/torso" or "conv2_d*".
      path: see `paths`.
    """
    names, parts = name.split("/"), path.split("/")
    for start in range(len(parts) - len(names) + 1):
        window = parts[start : start + len(names)]
        if all(fnmatch.fnmatchcase(part, want) for part, want in zip(window, names, strict=True)):
            return "/".join([*names[:-1], *parts[start + len(names) - 1 :]])
    return None


def shared_leaves(name: str, task: str, params: Params) -> dict[str, str]:
    """Returns the paths of a task's shared leaves, by what they are called in all tasks.

    Raises:
      ConfigError: there are none, or two would have the same name.
    """
    leaves: dict[str, str] = {}
    for path, _ in paths(params):
        key = key_in(name, path)
        if key is None:
            continue
        if key in leaves:
            raise ConfigError(
                f"shared[{name!r}]: {task!r} has two of them, {leaves[key]} and {path}; name the "
                "one, with the parts of its path before it"
            )
        leaves[key] = path
    if not leaves:
        raise ConfigError(
            f"shared[{name!r}]: {task!r} has no parameters of this name; it has "
            f"{', '.join(path for path, _ in paths(params))}"
        )
    return leaves


def check_shared(shared: Mapping[str, Shared], agents: Mapping[str, Agent]) -> None:
    """Raises ConfigError if tasks cannot share what the settings say.

    Args:
      shared: the settings by name of the parameters.
      agents: the agents of all learned tasks, behind their transforms.
    """
    structs: dict[str, Any] = {}
    taken: dict[tuple[str, str], str] = {}
    for name, group in shared.items():
        unknown = [task for task in group.tasks if task not in agents]
        if unknown:
            raise ConfigError(
                f"shared[{name!r}]: {unknown} are no policies that learn; these are {list(agents)}"
            )
        first: dict[str, Any] = {}
        for task in group.tasks:
            if group.update == "sum" and not has_one_gradient(agents[task]):
                raise ConfigError(
                    f"shared[{name!r}]: {task!r} makes several updates from a batch, so that there "
                    "is no one gradient of it to sum; take Shared(..., update='turns')"
                )
            if task not in structs:
                structs[task] = params_struct(agents[task])
            leaves = dict(paths(structs[task]))
            path_of = shared_leaves(name, task, structs[task])
            if group.update == "sum":
                _check_delay(name, task, agents[task], path_of.values())
            for path in path_of.values():
                if "statistics" in path.split("/"):
                    raise ConfigError(
                        f"shared[{name!r}]: {path} of {task!r} are statistics of a transform, "
                        "which is no parameter with a gradient; leave them out"
                    )
                other = taken.setdefault((task, path), name)
                if other != name:
                    raise ConfigError(
                        f"shared[{name!r}]: {path} of {task!r} is in shared[{other!r}] already"
                    )
            shapes = {
                key: (leaves[path].shape, leaves[path].dtype) for key, path in path_of.items()
            }
            first = first or shapes
            if shapes != first:
                raise ConfigError(
                    f"shared[{name!r}]: {group.tasks[0]!r} has {_describe(first)}, and {task!r} "
                    f"has {_describe(shapes)}; give both the same network and inputs of one size"
                )


def _describe(shapes: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {list(shape)}" for key, (shape, _) in shapes.items())


def has_one_gradient(agent: Agent) -> bool:
    """Returns whether the agent's update is one step along one gradient of its batch."""
    return type(_algorithm(agent)).learner_step is Agent.learner_step


def _algorithm(agent: Agent) -> Agent:
    while isinstance(agent, (TransformedAgent, TunableAgent)):
        agent = agent.agent
    return agent


def _check_delay(name: str, task: str, agent: Agent, leaves: Iterable[str]) -> None:
    """Refuses to sum gradients for a policy that some updates do not change, such as TD3's.

    Gradients of other tasks would be lost in the updates that leave it as it is.
    """
    delay = getattr(getattr(_algorithm(agent), "config", None), "policy_delay", 1)
    delayed = [path for path in leaves if "policy" in path.split("/")]
    if delay > 1 and delayed:
        raise ConfigError(
            f"shared[{name!r}]: {delayed[0]} of {task!r} changes once in agent.policy_delay="
            f"{delay} updates, and gradients are summed in each; take Shared(..., "
            "update='turns'), or agent.policy_delay=1"
        )


def groups_of(shared: Mapping[str, Shared], tasks: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Returns groups of tasks that share parameters, directly or through others."""
    groups = [{task} for task in tasks]
    for part in shared.values():
        joined = [group for group in groups if group & set(part.tasks)]
        groups = [group for group in groups if group not in joined] + [set().union(*joined)]
    ordered = [tuple(task for task in tasks if task in group) for group in groups]
    return tuple(sorted(ordered, key=lambda group: tasks.index(group[0])))


def update_order(shared: Mapping[str, Shared], tasks: Sequence[str]) -> list[str]:
    """Returns the tasks, with those last whose updates use the gradients of the others."""
    owners = {group.owner() for group in shared.values() if group.update == "sum"}
    return sorted(tasks, key=lambda task: task in owners)
