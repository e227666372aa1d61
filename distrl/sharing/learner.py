"""Learners of tasks that share parameters, in one process."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from distrl.agents.agent import Agent, LearnerState, Logs
from distrl.agents.structs import params_struct
from distrl.learner import Learner
from distrl.learning.training_state import TrainingState, make_learner_state, make_params
from distrl.sharing.config import Shared, paths, shared_leaves
from distrl.types import Array, Params, Sample, Trajectory

_GRADIENTS = "shared_gradients"  # in an update's logs, until `SharingLearner` takes them out

Slot = tuple[str, str]  # the shared name, and the leaf's name from there on


class _Leaf(NamedTuple):
    """A shared leaf, as one task has it."""

    slot: Slot
    moves: bool  # whether this task's updates change it
    sums: bool  # whether gradients of other tasks are added
    weight: float  # weight of this task's gradient


class Sharing:
    """The shared parameters of a process, and the gradients that wait for their owners' updates.

    Not thread safe, except for `newest`: one thread updates all learners. Waiting gradients are not
    saved: a program that resumes begins without them.
    """

    def __init__(self, shared: Mapping[str, Shared], agents: Mapping[str, tuple[Agent, int]]):
        """Args:
        shared: the settings by name of the parameters.
        agents: agent and seed of the initial parameters of all tasks that share, by task.
        """
        self._values: dict[Slot, Any] = {}
        self._leaves: dict[str, dict[str, _Leaf]] = {task: {} for task in agents}
        # By slot and task: the sum of the gradients since the owner's update, and their number.
        self._waiting: dict[Slot, dict[str, tuple[Any, int]]] = {}
        for task, (agent, seed) in agents.items():
            struct, initial = params_struct(agent), None
            for name, group in shared.items():
                if task not in group.tasks:
                    continue
                turns, owns = group.update == "turns", task == group.owner()
                for key, path in shared_leaves(name, task, struct).items():
                    leaf = _Leaf((name, key), turns or owns, not turns, group.weight(task))
                    self._leaves[task][path] = leaf
                if owns:
                    if initial is None:
                        initial = dict(paths(make_params(agent, seed)))
                    for key, path in shared_leaves(name, task, struct).items():
                        self._values[name, key] = initial[path]

    def shares(self, task: str) -> bool:
        """Returns whether a task shares anything."""
        return bool(self._leaves.get(task))

    def newest(self, task: str, params: Params) -> Params:
        """Returns a task's parameters with the newest values of those that it shares."""
        values, leaves = self._values, self._leaves[task]
        return _map(params, lambda path, x: values[leaves[path].slot] if path in leaves else x)

    def publish(self, task: str, params: Params) -> None:
        """Takes the new values of the shared parameters that a task's update may change."""
        leaves = self._leaves[task]
        changed = {
            leaves[path].slot: leaf
            for path, leaf in paths(params)
            if path in leaves and leaves[path].moves
        }
        self._values = {**self._values, **changed}

    def step(self, task: str, agent: Agent) -> Callable[..., Any]:
        """Returns the task's update, to be compiled.

        Instead of the parameters it takes `(parameters, others)`: the weighted gradients of the
        other tasks by leaf. Gradients for leaves that other tasks own are among its logs.
        """
        leaves = self._leaves[task]
        summed = {path: leaf for path, leaf in leaves.items() if leaf.sums}

        def step(inputs: Any, state: Any, batch: Trajectory) -> tuple[Params, Any, Logs]:
            params, others = inputs
            if not summed:
                return agent.learner_step(params, state, batch)
            grads, logs = agent.compute_gradients(params, state, batch)
            given: dict[Slot, Any] = {}

            def combined(path: str, grad: Any) -> Any:
                leaf = summed.get(path)
                if leaf is None:
                    return grad
                grad = grad if leaf.weight == 1 else leaf.weight * grad
                if leaf.moves:
                    return grad + others[leaf.slot]
                given[leaf.slot] = grad
                return jnp.zeros_like(grad)  # so that it takes no part in clipping or in the step

            grads = _map(grads, combined)
            before = dict(paths(params))
            params, opt_state, more = agent.apply_gradients(params, state, grads)
            kept = {path for path, leaf in summed.items() if not leaf.moves}
            params = _map(params, lambda path, x: before[path] if path in kept else x)
            state = agent.update_learner_state(params, opt_state, state)
            more[_GRADIENTS] = given  # type: ignore[assignment]  # taken out before others see it
            return params, state, {**logs, **more}

        return step

    def take(self, task: str) -> dict[Slot, Any]:
        """Returns the gradients that wait for a task's update: sums of the other tasks' means."""
        taken = {}
        for leaf in self._leaves[task].values():
            if leaf.sums and leaf.moves:
                total = jnp.zeros_like(self._values[leaf.slot])
                for gradient, count in self._waiting.pop(leaf.slot, {}).values():
                    total = total + gradient / count
                taken[leaf.slot] = total
        return taken

    def give(self, task: str, gradients: Mapping[Slot, Any]) -> None:
        """Keeps a task's gradients for the next updates of the leaves' owners."""
        for slot, gradient in gradients.items():
            of_slot = self._waiting.setdefault(slot, {})
            total, count = of_slot.get(task, (0.0, 0))
            of_slot[task] = total + gradient, count + 1


class SharingLearner(Learner):
    """A learner that shares some of its parameters with other tasks.

    A version of its parameters is what its update made, with the shared ones of that time; each of
    its updates begins with the newest shared ones.
    """

    def __init__(self, agent: Agent, *args: Any, task: str, sharing: Sharing, **kwargs: Any):
        """Args: task: its task's name. sharing: what it shares. Others: see `Learner`."""
        self._task, self._sharing = task, sharing
        super().__init__(agent, *args, **kwargs)
        compiled = self._devices.jit(self._check.checked(sharing.step(task, agent)))

        def update(params: Params, *others: Any) -> tuple[Params, LearnerState, Array, Logs]:
            made = compiled((params, sharing.take(task)), *others)
            sharing.give(task, made[-1].pop(_GRADIENTS, {}))
            return made

        self._update = update
        params = sharing.newest(task, self._state.params)
        state = make_learner_state(agent, params)
        self.restore(self._state._replace(params=params, agent=state))

    def restore(self, state: TrainingState) -> None:
        """See `Learner`."""
        super().restore(state)
        self._sharing.publish(self._task, self._state.params)

    def state(self) -> TrainingState:
        """See `Learner`; with the newest shared parameters."""
        state = super().state()
        return state._replace(params=self._sharing.newest(self._task, state.params))

    def unshared_state(self) -> TrainingState:
        """See `Learner`."""
        return super().state()

    def update(self, sample: Sample) -> None:
        """See `Learner`."""
        self._state = self.state()
        super().update(sample)
        self._sharing.publish(self._task, self._state.params)


def _map(tree: Any, function: Callable[[str, Any], Any]) -> Any:
    """Returns a tree with each leaf replaced by `function(path, leaf)`; see `paths`."""
    leaves = [function(path, leaf) for path, leaf in paths(tree)]
    return jax.tree.structure(tree).unflatten(leaves)
