"""The actor, which runs inference itself or calls an inference service."""

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from distrl.experiment import Experiment
from distrl.inferencer import InferenceSource
from distrl.lockstep import LockstepWriter
from distrl.programs.build import Builder
from distrl.programs.groups import ACTOR, LEARNER
from distrl.programs.inference_clients import InferenceHandle, inference_client
from distrl.programs.nodes.process import configure_jax, has_own_process
from distrl.programs.nodes.update_pace import keeps_actors_to_cores
from distrl.programs.program import ExperimentProgram, NodeHandle
from distrl.programs.remote import Peer, Reporter, TaskRounds, TaskVariables, stop_and_tick
from distrl.programs.replay_clients import ReplayHandle, actor_client
from distrl.programs.running.acting import make_actor
from distrl.programs.running.acting_budget import ActorLease, has_budget
from distrl.programs.running.progress import patience
from distrl.programs.substrate import node_context
from distrl.replay.buffer import ReplayWriter
from distrl.replay.client import UnrollingReplayBuffer
from distrl.rounds.clients import RoundWriter
from distrl.runtime.heartbeat import Heartbeat, current_heartbeat
from distrl.runtime.host_resources import keep_to_one_core
from distrl.runtime.time_account import IDLE, current_account, in_state
from distrl.variables.service import RemoteVariables

_REPORT_S = 0.1  # between two reports of an actor, at least
_REPORTS_PER_S = 50  # by all actors together: a report costs sender and monitor about 1 ms
_LONGEST_REPORT_S = 1.0  # between two reports of an actor, at most


def add_actor(
    program: ExperimentProgram,
    index: int,
    replay: Mapping[str, ReplayHandle],
    monitor: NodeHandle,
    *,
    learner: Mapping[str, NodeHandle],
    variables: Mapping[str, NodeHandle] | None = None,
    inferencer: Mapping[str, InferenceHandle] | None = None,
) -> None:
    """Adds an actor.

    Args:
      program: the program.
      index: index of the actor.
      replay: by task, the table that it writes to.
      monitor: takes its reports.
      learner: by task, what learns it, and says when a round begins.
      variables: by task, where the parameters of its own inferencers come from; or
      inferencer: by task, the service that it asks.
    """
    program.add_call_node(
        ACTOR,
        ActorNode,
        index,
        dict(replay),
        monitor,
        rounds={} if program.experiment.actors.min_actors is None else dict(learner),
        variables=dict(variables or {}),
        inferencer=dict(inferencer or {}),
    )


class ActorNode:
    """Runs an `Actor`."""

    def __init__(
        self,
        experiment: Experiment,
        index: int,
        replay: Mapping[str, ReplayHandle],
        monitor: NodeHandle,
        rounds: Mapping[str, NodeHandle],
        variables: Mapping[str, NodeHandle],
        inferencer: Mapping[str, InferenceHandle],
    ):
        """Args: see `add_actor`; of `variables` and `inferencer`, one is empty."""
        configure_jax()
        heartbeat = self._heartbeat = current_heartbeat()
        heartbeat.tick()
        stop = self._stop = node_context.stop_event()
        builders = {task: Builder(experiment, task) for task in experiment.tasks}
        first, config = next(iter(builders.values())), experiment.actors
        with contextlib.ExitStack() as opened:
            pool = first.make_actor_pool(index, heartbeat.life)  # before JAX: it may fork
            opened.callback(pool.close)
            if pool.one_thread and keeps_actors_to_cores(experiment, first):
                # Offset, so that another program's actors begin at another core.
                keep_to_one_core(os.getppid() + index)
            self._reporters = {task: Reporter(monitor, task, f"actor/{index}") for task in builders}
            self._replays = {
                task: actor_client(builder, replay[task], stop, index)
                for task, builder in builders.items()
            }
            self._writers = {
                task: _writer(
                    builder, self._replays[task], rounds.get(task), stop, index, heartbeat.life
                )
                for task, builder in builders.items()
            }
            sources: dict[str, InferenceSource] = {}
            for task, builder in builders.items():
                if builder.task.learns_from is not None:  # another policy acts
                    continue
                sources[task] = (
                    inference_client(builder, inferencer[task], stop, has_own_process())
                    if inferencer
                    else _own_inferencer(builder, variables[task], stop, index, heartbeat.life)
                )
            self._actor = make_actor(
                builders,
                pool,
                sources,
                self._writers,
                index=index,
                first_environment=index * config.num_envs,
                life=heartbeat.life,
            )
            self._before = _acted_before(heartbeat, monitor, index)
            self._lease: ActorLease | None = None
            if has_budget(experiment.goal):
                self._lease = ActorLease(
                    monitor,
                    first.task.name,
                    f"actor/{index}",
                    heartbeat.life,
                    pool.wait_num,
                    self._before,
                    stop,
                )
            self._single = experiment.assignment is None
            self._actor_of = {task: experiment.actor_of(task) for task in builders}
            self._call_timeout = experiment.supervision.call_timeout
            interval = config.largest_num_actors / _REPORTS_PER_S
            self._report_interval = min(max(_REPORT_S, interval), _LONGEST_REPORT_S)
            self._opened = opened.pop_all()

    def run(self) -> None:
        """Acts until the program stops, or a budget is spent."""
        with self._opened:
            stopping = stop_and_tick(self._stop)
            actor, lease = self._actor, self._lease

            def should_stop() -> bool:
                self._heartbeat.acted = self._before + actor.acted
                return stopping() or not (lease is None or lease.allows(actor))

            kinds = RoundWriter, LockstepWriter
            in_rounds = any(isinstance(writer, kinds) for writer in self._writers.values())

            def is_finished() -> bool:  # rounds are always completed
                return not in_rounds and lease is not None and lease.over

            actor.run(should_stop, self._report, self._report_interval, is_finished)
            if lease is not None and lease.over:
                self._finish(lease)
            for replay in self._replays.values():
                replay.close()
            for reporter in self._reporters.values():
                reporter.close()

    def _report(self, report: Any) -> None:
        times = current_account().totals()
        for task, reporter in self._reporters.items():
            task_report = report if self._single else report[self._actor_of[task]]
            reporter({**task_report, "time": times})

    def _finish(self, lease: ActorLease) -> None:
        """Reports all that it did, since the budget is spent, and waits for the program's stop."""
        for reporter in self._reporters.values():
            reporter.flush(self._call_timeout)
        for writer in self._writers.values():
            if isinstance(writer, RoundWriter):
                writer.leave()
        (rounds,) = {
            writer.rounds if isinstance(writer, LockstepWriter) else 0
            for writer in self._writers.values()
        }
        lease.finish(rounds)
        current_heartbeat().wait()
        with in_state(IDLE):
            self._stop.wait()


def _writer(
    builder: Builder,
    replay: UnrollingReplayBuffer,
    learner: NodeHandle | None,
    stop: Any,
    index: int,
    life: int,
) -> ReplayWriter:
    """Returns a writer of an actor's steps to a task's table: in rounds, by schedule or freely.

    Args:
      builder: the task's builder.
      replay: a client of the table.
      learner: the node that has the rounds; None: there are none.
      stop: event that is set when the program stops.
      index, life: the actor's index and life.
    """
    if learner is None:
        return builder.scheduled_writer(replay, index)
    task, timeout = builder.task, builder.experiment.supervision.insert_timeout
    return RoundWriter(
        replay,
        TaskRounds(learner, task.name),
        unroll_length=task.replay.unroll_length,
        actor=index,
        life=life,
        stop=stop,
        timeout=patience(timeout, ACTOR.name, LEARNER.name),
    )


def _acted_before(heartbeat: Heartbeat, monitor: NodeHandle, index: int) -> int:
    """Returns the environment steps of an actor's earlier lives, for its heartbeat, too."""
    if heartbeat.life:  # the heartbeat has all of them, unless their host was lost
        node = f"actor/{index}"
        heartbeat.acted = Peer(monitor).begin_life(node, heartbeat.life, heartbeat.acted)
    return heartbeat.acted


def _own_inferencer(
    builder: Builder, learner: NodeHandle, stop: Any, index: int, life: int
) -> InferenceSource:
    """Returns an inferencer in the actor's process, for its own streams."""
    task = builder.task
    inferencer = builder.make_inferencer(
        None,
        task.actors.num_envs,
        # Inferencers of several tasks draw different numbers.
        index=index + task.index * builder.experiment.actors.largest_num_actors,
        life=life,
        batch_sizes=task.batch_sizes(builder.experiment.actors.num_envs),
    )
    inferencer.compile_ahead(builder.agent, task.actors.envs_per_step)  # the learner starts too
    inferencer.set_variables(
        builder.make_variables(
            RemoteVariables(TaskVariables(learner, task.name), builder.agent),
            stop,
            patience(task.learner.timeout, ACTOR.name, LEARNER.name),
        )
    )
    return inferencer
