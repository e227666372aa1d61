"""Several processes that form one learner, on one host or several: each acts, all learn together.

Each process runs `single_process` with its share of the actors, the batch and the table. Every
update uses the samples of all processes, and all have its parameters. Process 0 reports, saves and
decides when the goal is reached.
"""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from distrl import seeds
from distrl.agents.settings import algorithm, with_settings
from distrl.annealing import annealed_agent
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.goal import Goal
from distrl.learner_group.process_group import ProcessGroup, end_process, join
from distrl.runtime.sockets import parse_address


class ProcessGroupSpec(NamedTuple):
    """A process of a learner, in the words of `jax.distributed.initialize`."""

    coordinator_address: str  # "HOST:PORT", where process 0 listens
    num_processes: int
    process_id: int

    @property
    def is_first(self) -> bool:
        """Whether it reports and saves."""
        return self.process_id == 0

    def check(self) -> None:
        """Raises ConfigError if there can't be such a process."""
        parse_address(self.coordinator_address, "coordinator_address")
        if self.num_processes < 1:
            raise ConfigError(f"num_processes must be 1 or more, got {self.num_processes}")
        if not 0 <= self.process_id < self.num_processes:
            raise ConfigError(
                f"process_id must lie between 0 and num_processes - 1 = {self.num_processes - 1}, "
                f"got {self.process_id}"
            )

    def join(self, about: Mapping[str, str]) -> ProcessGroup:
        """Joins the others. `about`: what must be the same in all processes, by name."""
        return join(
            self.coordinator_address, self.num_processes, self.process_id, about, end_process
        )


def share_of(experiment: Experiment, place: ProcessGroupSpec) -> Experiment:
    """Returns a process's share of an experiment.

    Raises:
      ConfigError: actors or batch do not split evenly.
    """
    count, index = place.num_processes, place.process_id
    if experiment.lockstep:
        raise ConfigError("lockstep: several learner processes use what arrives first; use one")
    learner, replay = experiment.learner, experiment.replay
    starts = {
        name: getattr(learner, name)
        for name in ("every_steps", "every_unrolls")
        if getattr(learner, name) is not None
    }
    for name, value in (
        ("actors.num_actors", experiment.actors.num_actors),
        ("learner.batch_size", learner.batch_size),
        *((f"learner.{name}", value) for name, value in starts.items()),
    ):
        if value % count:
            raise ConfigError(
                f"{name}={value} does not split over {count} learner processes: {value} / {count} "
                f"= {value / count:.1f}; take a multiple of {count}"
            )
    agent = annealed_agent(experiment.only_task)  # by the whole batch, in all processes alike
    if getattr(algorithm(agent), "anneal_over_budget", False):
        agent = with_settings(agent, anneal_over_budget=False)
    share = dataclasses.replace(
        experiment,
        agent=agent,
        actors=dataclasses.replace(
            experiment.actors,
            num_actors=experiment.actors.num_actors // count,
            max_actors=None,
            # One process acts and learns in turns, without rounds.
            min_actors=None,
            round_grace=0.0,
            late_data="keep",
        ),
        inference=dataclasses.replace(  # there are no services in it
            experiment.inference, num_inferencers=1, num_gpus=0, share_gpus=False
        ),
        learner=dataclasses.replace(
            learner,
            batch_size=learner.batch_size // count,
            **{name: value // count for name, value in starts.items()},
        ),
        replay=dataclasses.replace(
            replay,
            num_shards=1,  # in one process
            max_size=max(1, replay.max_size // count),
            min_size_to_sample=max(1, replay.min_size_to_sample // count),
            error_buffer=None if replay.error_buffer is None else replay.error_buffer / count,
        ),
    )
    if place.is_first:
        return share
    return dataclasses.replace(
        share,
        # It gets process 0's parameters; its environments and random draws differ.
        seed=seeds.seed(experiment.seed, "learner process", index),
        evaluator=dataclasses.replace(experiment.evaluator, num_evaluators=0),
        goal=Goal(mean_return=None),
    )


def about(experiment: Experiment) -> dict[str, str]:
    """Returns what must be the same in all processes, from the whole experiment."""
    parts = {name: getattr(experiment, name) for name in ("replay", "learner", "actors", "goal")}
    settings = {
        f"{name}.{field.name}": _text(getattr(part, field.name))
        for name, part in parts.items()
        for field in dataclasses.fields(part)
    }
    whole = {name: _text(getattr(experiment, name)) for name in ("agent", "transforms", "seed")}
    return {"environment": experiment.environment.name, **whole, **settings}


def _text(value: Any) -> str:
    """Returns a setting as text that is the same in all processes: a function has its name."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))
