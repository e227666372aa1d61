"""Checks of an experiment's policies; all raise ConfigError, which says what would be right."""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax

from distrl.agents.structs import extras_struct
from distrl.config import ActorsConfig
from distrl.envs.multi_agent.assignment import Assignment
from distrl.envs.multi_agent.copies import Copies
from distrl.envs.multi_agent.environment import SeveralAgents
from distrl.envs.pool import Environment
from distrl.errors import ConfigError
from distrl.multi_agent.learned_policy import LearnedPolicy
from distrl.seeds import MAX_ENVS
from distrl.sharing.config import Shared, check_shared
from distrl.task import Task
from distrl.transforms.agent import recurrent_parts
from distrl.transforms.base import check_transform_kinds


def check_agents(environment: Environment, num_evaluators: int, lockstep: bool) -> None:
    """Refuses what environments with several agents cannot have. Args: see `Experiment`."""
    if not isinstance(environment, SeveralAgents):
        return
    if num_evaluators and not environment.joint:
        raise ConfigError(
            "experiment: evaluator.num_evaluators is for environments with joint episodes, and "
            "copies have none; leave it out"
        )
    if lockstep:
        raise ConfigError(
            f"experiment: lockstep is for environments with one agent, and {environment.name} has "
            "several; leave it out"
        )


def check_copies(
    environment: Environment, assignment: Assignment | None, actors: ActorsConfig
) -> None:
    """Refuses what `Copies` cannot have. Args: see `Experiment`."""
    if not isinstance(environment, Copies) or assignment is None:
        return
    if assignment.fixed is None:
        raise ConfigError(
            "experiment: policy_of is a function, and copies of an environment have one policy "
            f"each; give a mapping from {list(environment.agents().agents)} to policies"
        )
    count, num_envs = environment.count, actors.num_envs
    if count * num_envs > MAX_ENVS:
        raise ConfigError(
            f"experiment: actors.num_envs={num_envs} of each of {count} copies are "
            f"{count * num_envs} environments of an actor, which has distinct seeds for {MAX_ENVS};"
            f" take {MAX_ENVS // count} or fewer, with more actors"
        )


def check_policies(
    environment: Environment,
    policies: Mapping[str, Any],
    learned: Mapping[str, Any],
    acting: Sequence[str],
    policy_of: Any,
    given: Sequence[str],
) -> None:
    """Checks the policies' settings, before the algorithms' defaults are filled in.

    Args:
      environment, policies, policy_of: see `Experiment`.
      learned: the policies that learn.
      acting: names of the policies that act.
      given: names of the experiment's settings that each policy has itself.
    """
    if given:
        raise ConfigError(
            f"experiment: {', '.join(given)} beside policies: each policy has its own; write "
            "LearnedPolicy(agent, replay=..., learner=..., transforms=...)"
        )
    _check_acting(environment, policies, acting, policy_of)
    for name in policies:
        if not re.fullmatch(r"[A-Za-z0-9_]+", name):
            raise ConfigError(
                f"experiment: a policy's name must consist of letters, digits and _; got {name!r}"
            )
    for name, policy in learned.items():
        if not isinstance(policy, LearnedPolicy):
            raise ConfigError(
                f"experiment: policy {name!r} must be a LearnedPolicy, an algorithm's settings "
                f"or a fixed policy such as Rule(function); got {policy!r}"
            )
        check_transform_kinds(policy.transforms)
        if policy.goal is not None and policy.goal.acting_budget != (None, None):
            raise ConfigError(
                f"experiment: the goal of policy {name!r} has max_env_steps or max_episodes; "
                "all policies act in the same environments: give these to the experiment's goal"
            )
        _check_teacher(name, policy, policies, acting)
    if not learned:
        raise ConfigError("experiment: all policies are fixed, and there is nothing to learn")


def _check_acting(
    environment: Environment, policies: Mapping[str, Any], acting: Sequence[str], policy_of: Any
) -> None:
    """Checks which policies act, and for whom."""
    if isinstance(environment, SeveralAgents):
        if policy_of is None:
            raise ConfigError(
                f"experiment: policy_of must say which of the policies {list(acting)} acts "
                f"for each of the agents {list(environment.agents().agents)}"
            )
        return
    if policy_of is not None:
        raise ConfigError(
            f"experiment: policy_of is for environments with several agents, and "
            f"{environment.name} has one; leave it out"
        )
    names = [name for name in acting if name in policies]
    if len(names) != 1:
        raise ConfigError(
            f"experiment: {environment.name} has one agent, for which one of the policies acts; "
            f"{names or 'none'} would. The others learn from it: LearnedPolicy(..., "
            "learns_from=NAME)"
        )


def _check_teacher(
    name: str, policy: LearnedPolicy, policies: Mapping[str, Any], acting: Sequence[str]
) -> None:
    """Checks which policy's steps a policy learns from."""
    if policy.learns_from is None:
        if not getattr(policy.agent, "acts", True):
            raise ConfigError(
                f"experiment: policy {name!r} has {type(policy.agent).__name__}, which chooses no "
                "actions; say whose steps it learns from: learns_from=NAME"
            )
        return
    if policy.learner is not None and policy.learner.max_policy_lag is not None:
        raise ConfigError(
            f"experiment: policy {name!r} has learner.max_policy_lag="
            f"{policy.learner.max_policy_lag}, and learns from {policy.learns_from!r}: its steps "
            "were not chosen by its own parameters; leave it out"
        )
    if policy.learns_from not in policies or policy.learns_from not in acting:
        raise ConfigError(
            f"experiment: policy {name!r} has learns_from={policy.learns_from!r}; the policies "
            f"that act are {list(acting)}"
        )
    if getattr(policy.agent, "on_policy", False):
        raise ConfigError(
            f"experiment: policy {name!r} would learn from {policy.learns_from!r}, and "
            f"{type(policy.agent).__name__} learns from its own policy's actions only; take an "
            "algorithm that learns from any, such as DQN, SAC or Prediction"
        )


def check_only_policy(agent: Any, policy_of: Any, shared: Mapping[str, Any]) -> None:
    """Raises ConfigError if an experiment without `policies` has no agent, or needs policies.

    Args:
      agent, policy_of, shared: as in `Experiment`.
    """
    if agent is None:
        raise ConfigError(
            "experiment: it needs an agent, as in Experiment(environment, PPOConfig()), or policies"
        )
    if not getattr(agent, "acts", True):
        raise ConfigError(
            f"experiment: agent is {type(agent).__name__}, which chooses no actions; name "
            "policies, one of which acts"
        )
    if policy_of is not None or shared:
        name = "policy_of" if policy_of is not None else "shared"
        raise ConfigError(f"experiment: {name} without policies: name them too")


def check_each(tasks: Mapping[str, Task], check: Callable[[Task], object]) -> None:
    """Checks each task by itself; if there are several, the error's message names the policy.

    Args:
      tasks: all tasks.
      check: raises ConfigError if something is wrong with a task.
    """
    for name, task in tasks.items():
        try:
            check(task)
        except ConfigError as error:
            if len(tasks) == 1:
                raise
            raise ConfigError(f"policy {name!r}: {error}") from error


def check_several(tasks: Mapping[str, Task], shared: Mapping[str, Shared], lockstep: bool) -> None:
    """Checks how the tasks depend on each other. Makes the agents of those that do.

    Args:
      tasks: all tasks.
      shared: see `Experiment`.
      lockstep: see `Experiment`.
    """
    lengths = {name: task.replay.unroll_length for name, task in tasks.items()}
    if lockstep and len(set(lengths.values())) > 1:
        raise ConfigError(
            f"lockstep: all tasks make an unroll in each round, and replay.unroll_length is "
            f"{lengths}; take one for all"
        )
    _check_evaluation(tasks)
    for task in tasks.values():
        if task.learns_from is not None:
            stores_extras(task, tasks.get(task.learns_from))
    for name, group in shared.items():
        for task in (tasks[each] for each in group.tasks if each in tasks):
            if task.learner.num_gradient_workers:
                raise ConfigError(
                    f"shared[{name!r}]: {task.name!r} has learner.num_gradient_workers="
                    f"{task.learner.num_gradient_workers}, and shared parameters also change "
                    "between this task's updates, unknown to its workers; take 0"
                )
            if not task.learner.learning:
                raise ConfigError(
                    f"shared[{name!r}]: {task.name!r} has learner.learning=False, and the others "
                    "would train what it shares; take True, or share nothing"
                )
            if task.learner.on_nonfinite == "skip":
                raise ConfigError(
                    f"shared[{name!r}]: {task.name!r} has learner.on_nonfinite=skip, and an update "
                    "that is skipped for one task has changed what the others share; take fail"
                )
    if shared:
        check_shared(shared, {name: task.make_agent() for name, task in tasks.items()})


def _check_evaluation(tasks: Mapping[str, Task]) -> None:
    """Checks that an evaluator has policies to play, and a goal of an evaluation an evaluator."""
    evaluated = [name for name, task in tasks.items() if task.is_evaluated]
    with_evaluator = any(task.evaluator.num_evaluators for task in tasks.values())
    if with_evaluator and not evaluated:
        raise ConfigError(
            f"experiment: evaluator.num_evaluators=1, and it could play with none of the policies "
            f"that learn, {list(tasks)}: they act for no agent; leave it out"
        )
    for name, task in tasks.items():
        wanted = task.goal.evaluation_return
        if wanted is None:
            continue
        if not with_evaluator:
            raise ConfigError(
                f"goal.evaluation_return={wanted:g} needs an evaluator: set "
                "evaluator.num_evaluators=1"
            )
        if name not in evaluated:
            raise ConfigError(
                f"experiment: policy {name!r} has goal.evaluation_return={wanted:g}, and is never "
                f"evaluated: it acts for no agent; give such a goal to {evaluated} only, and to "
                f"{name!r} one of its own, as in LearnedPolicy(..., goal=Goal(mean_return=None, "
                "max_learner_steps=1000))"
            )


def stores_extras(task: Task, teacher: Task | None) -> bool:
    """Returns whether a task that learns from another policy's steps stores that one's extras.

    Args:
      task: the task.
      teacher: the policy that acts; None: it is fixed.

    Raises:
      ConfigError: it needs extras that the acting policy does not store.
    """
    agent = task.make_agent()
    if memory := recurrent_parts(agent):
        raise ConfigError(
            f"experiment: policy {task.name!r} learns from {task.learns_from!r} and has memory; "
            "recurrent state is kept for the policy that acts, on its clock, and cannot be shared; "
            f"leave out {' and '.join(memory)}"
        )
    wanted = extras_struct(agent)
    if not jax.tree.leaves(wanted):
        return False
    has = () if teacher is None else extras_struct(teacher.make_agent())
    if has != wanted:
        raise ConfigError(
            f"experiment: policy {task.name!r} learns from {task.learns_from!r} and stores "
            f"{wanted} with each step, of which the acting policy has {has}: its table cannot be "
            "filled from there"
        )
    return True
