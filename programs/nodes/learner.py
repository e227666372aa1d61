"""The node that runs the learner of a task, or of several, and serves their parameters."""

import contextlib
import os
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from distrl.agents.compiling import computing_threads, spread_threads
from distrl.checkpointing.generations import when_all
from distrl.checkpointing.resume_point import check_seen, monitor_states
from distrl.errors import CallbackError, PeerError
from distrl.experiment import Experiment
from distrl.multi_agent.learner_turns import drop_batches, run_in_turn
from distrl.programs.build import Builder, make_sharing, print_line
from distrl.programs.groups import LEARNER
from distrl.programs.nodes.process import configure_jax, has_own_process, leave, stops_in_order
from distrl.programs.nodes.task_learner import LearnerSetup, TaskLearner
from distrl.programs.nodes.update_pace import has_long_updates, publishes_late
from distrl.programs.program import ExperimentProgram, FrameEndpoint, NodeHandle
from distrl.programs.remote import stop_and_tick
from distrl.programs.replay_clients import ReplayHandle
from distrl.programs.running.population import MemberCalls
from distrl.programs.running.turns_core import TurnsCore
from distrl.programs.substrate import node_context
from distrl.runtime import start_up
from distrl.runtime.heartbeat import current_heartbeat
from distrl.runtime.host_resources import usable_cores
from distrl.variables.frames import FrameVariableServer
from distrl.variables.packed import Packed

_PUBLISH_S = 2e-3  # between two versions of the parameters, while short updates follow one another


def add_learners(
    program: ExperimentProgram,
    replay: Mapping[str, ReplayHandle],
    monitor: NodeHandle,
    gradient_workers: Sequence[NodeHandle],
    with_relays: bool = False,
) -> dict[str, NodeHandle]:
    """Adds the learners of all tasks. Returns by task the node that learns it.

    Args:
      program: the program.
      replay: the tables by task.
      monitor: takes reports, and gives counters for checkpoints.
      gradient_workers: all gradient workers of the program.
      with_relays: whether relays ask them for parameters.
    """
    learners = {}
    # Now: a learner that is restarted may find that this checkpoint has been removed.
    states = monitor_states(program.resume_point, program.experiment.tasks).values()
    setup = LearnerSetup(
        program.run_dir,
        monitor,
        program.resume_point,
        max((state["env_steps_acted"] for state in states), default=0),
        tuple(gradient_workers),
        program.unique_name,
    )
    for tasks in program.experiment.learner_nodes:
        served = program.new_frame_endpoint() if with_relays and program.builtin else None
        node = program.add_call_node(
            LEARNER,
            LearnerNode,
            tasks,
            {task: replay[task] for task in tasks},
            setup,
            served,
            endpoints=[served.address] if served else (),
        )
        learners.update(dict.fromkeys(tasks, node._replace(served=served)))
    return learners


def _core(experiment: Experiment) -> TurnsCore | None:
    """Returns a context that keeps the learner's thread on one core with the computing thread.

    None where JAX computes in the thread that calls it or in several, and where there are
    callbacks: what they start would be kept to that core, too.
    """
    others = computing_threads()
    if not others or experiment.callbacks or not (experiment.actors.pin and has_own_process()):
        return None
    return TurnsCore(others) if usable_cores() > 1 else None


class LearnerNode(MemberCalls):
    """Learns, saves checkpoints, and serves the parameters."""

    def __init__(
        self,
        experiment: Experiment,
        tasks: Sequence[str],
        replay: Mapping[str, ReplayHandle],
        setup: LearnerSetup,
        served: FrameEndpoint | None = None,
    ):
        """Args:
        experiment: what to train.
        tasks: names of the tasks.
        replay: the tables by task.
        setup: what all learners have in common.
        served: where relays ask for parameters by frames; None: nowhere.

        Raises:
          ConfigError: see `check_seen`.
        """
        if not current_heartbeat().restarted:
            folders = {task: experiment.task_dir(Path(setup.run_dir), task) for task in tasks}
            check_seen(folders, setup.resume_point)
        configure_jax()
        start_up.begin("launcher", os.getppid() if has_own_process() else None)
        self._stop, self._life = node_context.stop_event(), current_heartbeat().life
        builders = {task: Builder(experiment, task) for task in tasks}
        is_late = publishes_late(experiment, tasks)
        overlaps = is_late and has_long_updates(builders[tasks[0]])
        if overlaps:
            configure_jax(asynchronous=True)
        sharing = make_sharing(builders)
        give_up = when_all(len(tasks), leave if has_own_process() else lambda: None)
        self._tasks = {
            task: TaskLearner(builder, sharing, replay[task], setup, give_up)
            for task, builder in builders.items()
        }
        if is_late and jax.default_backend() == "cpu":
            published = self._tasks[tasks[0]].learner.published
            published.is_late, published.interval = overlaps, 0.0 if overlaps else _PUBLISH_S
            if overlaps and experiment.actors.pin:
                spread_threads()
        self._core = None if overlaps or setup.gradient_workers else _core(experiment)
        self.serve_members(experiment, self._tasks)
        self._frames: FrameVariableServer | None = None
        if served is not None:
            address = served.address.resolve()
            self._frames = FrameVariableServer(self.get_variables, address, served.key)
        start_up.mark("parameters and table")

    def life(self) -> int:
        """Returns the node's life, which is that of all parameters it gives out from now on."""
        return self._life

    def get_variables(
        self, newer_than: int, task: str, reader_domain: str = ""
    ) -> tuple[int, Packed] | None:
        """See `VariableService.get_variables`."""
        return self._tasks[task].variables.get_variables(newer_than, reader_domain)

    def get_variables_at(
        self, number: int, task: str, reader_domain: str = ""
    ) -> tuple[int, Packed] | None:
        """See `VariableService.get_variables_at`."""
        return self._tasks[task].variables.get_variables_at(number, reader_domain)

    def join_round(self, task: str, *args: Any) -> tuple[int, int] | None:
        """See `CollectionRounds.join`."""
        return self._tasks[task].collection.join(*args)

    def offer_unrolls(self, task: str, *args: Any) -> bool:
        """See `CollectionRounds.offer`."""
        return self._tasks[task].collection.offer(*args)

    def deliver_unrolls(self, task: str, *args: Any) -> None:
        """See `CollectionRounds.deliver`."""
        self._tasks[task].collection.deliver(*args)

    def leave_rounds(self, task: str, *args: Any) -> None:
        """See `CollectionRounds.leave`."""
        self._tasks[task].collection.leave(*args)

    def run(self) -> None:
        """Learns until the program stops, then saves the parameters and a checkpoint."""
        tasks = list(self._tasks.values())
        try:
            for task in self._learn():
                self._tasks[task].report_spent()
            if not self._stop.is_set():  # after its last update: the goal depends on hearing of it
                for part in tasks:
                    part.turn.flush()
            current_heartbeat().wait()
            drop_batches([part.turn for part in tasks], self._stop)
            self._stop.wait()
            for part in tasks:
                part.hear_last_evaluations()
        except PeerError as error:
            if not self._stop.is_set():
                self._abandon()
                raise
            print_line(f"distrl: the last reports are lost: {error}")  # saving matters more
        except CallbackError as error:
            current_heartbeat().wait()
            if stops_in_order():  # the actors first: their last reports are saved, too
                reason, text = f"CallbackError: {error}", "".join(traceback.format_exception(error))
                node_context.program_stopper()(reason=reason, finished=False, traceback=text)
                self._stop.wait()
            self._save()
            raise
        except BaseException:
            self._abandon()
            raise
        with contextlib.ExitStack() as closing:  # all are saved, also if one cannot be
            if self._frames is not None:
                closing.callback(self._frames.close)
            for part in reversed(tasks):
                closing.callback(part.close)

    def _learn(self) -> Sequence[str]:
        """Learns until the program stops, or all have learned; returns the tasks used up."""
        parts = list(self._tasks.values())
        if len(parts) > 1:
            longest = max(parts, key=lambda part: part.task.learner.timeout)
            return run_in_turn([part.turn for part in parts], self._stop, longest.patience)
        stop, turn, core = stop_and_tick(self._stop), parts[0].turn, self._core

        def should_stop() -> bool:  # asked before each update
            if core is not None:
                core.count()
            return stop()

        with core or contextlib.nullcontext():
            used_up = turn.learner.run(should_stop, turn.report, acting_over=turn.acting_over)
        return [turn.name] if used_up else []

    def _save(self) -> None:
        """Saves for the last time, before the program fails."""
        for part in self._tasks.values():
            try:
                part.save_with_totals()
            except Exception as error:  # what made the program fail matters more
                print_line(f"distrl: {type(error).__name__}: {error}")

    def _abandon(self) -> None:
        for part in self._tasks.values():
            part.checkpointer.abandon()
