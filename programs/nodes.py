"""What the nodes of a program run: the parts of `distrl`, with their peers behind Courier.

A node's constructor runs in the node. Its public methods are served by Courier.
"""

import contextlib
import inspect
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import courier
import jax
import launchpad as lp
from launchpad import context

from distrl import seeds
from distrl.actor import Actor
from distrl.checkpointing.checkpointer import (
    Checkpointer,
    ResumePoint,
    note_resumed,
    restore_learner,
    table_counts,
)
from distrl.checkpointing.params_file import save_params
from distrl.errors import PeerError
from distrl.evaluator import Evaluator
from distrl.experiment import Experiment
from distrl.inference.messages import InferenceMessages
from distrl.inference.server import InferenceServer, RemoteInferencer
from distrl.inferencer import Inferencer, InferenceSource
from distrl.learner import Learner
from distrl.learner_group.devices import Devices, check_gpus
from distrl.lockstep import LockstepReader, LockstepVariables, LockstepWriter
from distrl.metrics import Monitor, Report
from distrl.policy import agent_writer
from distrl.programs.pools import actor_pool, evaluator_pool
from distrl.programs.remote import Peer, Reporter, stop_and_tick
from distrl.programs.replay_clients import actor_client, learner_client, server_folder
from distrl.replay.buffer import ReplayReader, ReplayWriter
from distrl.replay.late_rewards import with_final_rewards
from distrl.replay.shared.buffer import SharedReplayBuffer
from distrl.runtime.heartbeat import current_heartbeat
from distrl.runtime.host_resources import keep_to_one_core
from distrl.variables import RemoteVariables, VariableClient, VariableRelay, VariableService

_COUNTERS_S = 5.0  # for the monitor to give its state


def _say(line: str) -> None:
    print(line, flush=True)


def _leave() -> NoReturn:
    """Ends a node's process that was asked to stop, is saved, and does not come to its end."""
    _say("saved, and ends in the middle of what it does")
    sys.stderr.flush()
    os._exit(0)


def _configure_jax() -> None:
    """Settings that must come before the node's first computation."""
    # A dispatch to another thread costs more than a small network's whole step.
    jax.config.update("jax_cpu_enable_async_dispatch", False)


class MonitorNode:
    """Adds up everyone's reports, shows progress, and ends the program at its goal."""

    def __init__(self, experiment: Experiment, run_dir: str, start: ResumePoint):
        self._stop = lp.stop_event()
        stopper = context.get_context().program_stopper

        def on_end(reason: str, reached: bool) -> None:
            print(reason, flush=True)
            if "reason" in inspect.signature(stopper).parameters:
                stopper(reason=reason, finished=reached)
            else:  # Launchpad's own launchers take no reason
                stopper()

        self._monitor = Monitor(
            experiment.only_task.resolved_goal(),
            on_end,
            Path(run_dir),
            printer=_say,
            spec=experiment.environment.spec(),
        )
        manifest = start.manifest()
        if manifest is not None:
            self._monitor.restore(manifest["monitor"])
            note_resumed(run_dir, "monitor", self._monitor.state())

    def state(self) -> str:
        """See `Monitor.state`; as JSON."""
        return json.dumps(self._monitor.state())

    def report(self, node: str, number: int, reports: list[Report]) -> None:
        """See `Monitor.report`."""
        self._monitor.report(node, number, reports)

    def run(self) -> None:
        """Waits for the program's end."""
        self._stop.wait()
        self._monitor.close()


class LearnerNode:
    """The learner, and its parameters as a service."""

    def __init__(
        self,
        experiment: Experiment,
        table: str,
        run_dir: str,
        replay: Any,
        monitor: Any,
        start: ResumePoint,
    ):
        """Args:
        experiment: what to train.
        table: name of the replay's table.
        run_dir: of the run.
        replay: clients of the replay's servers; None: the table is in shared memory.
        monitor: the monitor's client.
        start: from which checkpoint it goes on.
        """
        _configure_jax()
        self._stop = lp.stop_event()
        self._run_dir = Path(run_dir)
        agent = experiment.make_agent()
        num_gpus = experiment.learner.num_gpus
        check_gpus(num_gpus, f"learner.num_gpus={num_gpus}")
        self._experiment = experiment
        self._replay = learner_client(experiment, replay, table, self._stop)
        self._monitor = monitor
        self._reporter = Reporter(monitor, "learner/0")
        self._call_timeout = experiment.supervision.call_timeout
        source: ReplayReader = self._replay
        if experiment.lockstep:
            source = LockstepReader(self._replay, experiment.only_task.lockstep_schedule())
        self._learner = Learner(
            agent,
            source,
            seed=seeds.seed(experiment.seed, "learner", 0),
            timeout=experiment.learner.timeout,
            keep=experiment.only_task.lockstep_schedule().versions_kept
            if experiment.lockstep
            else 1,
            last=experiment.goal.max_learner_steps,
            devices=Devices(experiment.learner.batch_size, experiment.learner.num_devices),
        )
        if current_heartbeat().restarted:  # the table has gone on meanwhile
            start = ResumePoint.latest(run_dir, start)._replace(with_table=False)
            _say(f"goes on from {start.checkpoint or 'the beginning: there is no checkpoint yet'}")
        if start.checkpoint is not None:
            self._resume(start)
        self._variables = VariableService(self._learner, agent)
        in_own_process = threading.current_thread() is threading.main_thread()
        self._checkpointer = Checkpointer(
            self._run_dir,
            experiment.checkpoint,
            self._learner,
            self._replay,
            self._counters,
            start.about(experiment),
            fill=agent_writer(experiment, _say),
            give_up=_leave if in_own_process else lambda: None,
            printer=_say,
        )
        self._checkpointer.start(self._stop)

    def _resume(self, start: ResumePoint) -> None:
        assert start.checkpoint is not None
        checkpoint, table = Path(start.checkpoint), start.table()
        note_resumed(self._run_dir, "learner", restore_learner(self._learner, checkpoint))
        if table is None:
            return
        if isinstance(self._replay, SharedReplayBuffer):
            self._replay.restore_rng(table)
            return
        found = table_counts(self._replay.info())  # actors may have inserted already
        saved = json.loads((checkpoint / "manifest.json").read_text())["table"]
        if found["inserts"] < saved["inserts"]:
            raise RuntimeError(f"the Reverb server has not loaded {table}: {found}, not {saved}")
        note_resumed(self._run_dir, "table", found)
        from distrl.replay.reverb.checkpoints import copy_of

        for index in range(self._experiment.replay.num_shards):
            loaded = copy_of(server_folder(self._experiment, self._run_dir, index))
            shutil.rmtree(loaded, ignore_errors=True)

    def _counters(self) -> dict[str, Any]:
        """The monitor's state."""
        try:
            return json.loads(self._monitor.futures.state().result(_COUNTERS_S))
        except Exception as error:
            raise PeerError(f"monitor/0.state() failed: {error!r}") from error

    def get_variables(self, newer_than: int) -> tuple[int, bytes] | None:
        """See `VariableService.get_variables`."""
        return self._variables.get_variables(newer_than)

    def get_variables_at(self, number: int) -> tuple[int, bytes] | None:
        """See `VariableService.get_variables_at`."""
        return self._variables.get_variables_at(number)

    def run(self) -> None:
        """Learns until the program stops, then saves the parameters, and all."""
        try:
            self._learner.run(stop_and_tick(self._stop), self._report)
        except BaseException:
            self._checkpointer.abandon()
            raise
        if not self._stop.is_set():  # it has made its last update: the goal waits to hear of it
            self._reporter.flush(self._call_timeout)
        current_heartbeat().wait()
        self._stop.wait()
        save_params(self._run_dir / "params.npz", *self._learner.variables)
        self._reporter.flush()
        self._checkpointer.close()
        self._replay.close()

    def _report(self, report: Report) -> None:
        self._checkpointer.check()
        self._reporter(report)


class RelayNode:
    """Hands the learner's parameters on to the actors of its host."""

    def __init__(self, experiment: Experiment, learner: Any):
        """Args: experiment: unused. learner: its client."""
        del experiment
        current_heartbeat().tick()
        self._stop = lp.stop_event()
        self._relay = VariableRelay(Peer(learner, "learner/0"))

    def get_variables(self, newer_than: int) -> tuple[int, bytes] | None:
        """See `VariableRelay.get_variables`."""
        return self._relay.get_variables(newer_than)

    def run(self) -> None:
        """Serves until the program stops."""
        current_heartbeat().wait()
        self._stop.wait()
        _say(f"fetched {self._relay.fetched} versions of {self._relay.size} bytes")


class InferencerNode:
    """Inference for several actors as a service."""

    def __init__(
        self,
        experiment: Experiment,
        index: int,
        learner: Any,
        endpoints: Sequence[lp.Address],
    ):
        """Args:
        experiment: what to train.
        index: of the inferencer.
        learner: its client.
        doors: addresses at which `inference` is served too. A gRPC server starts a thread for a
          call, and ends one after it, whenever two calls overlap, and JAX is several times slower
          in a new thread: actors come by different doors.
        """
        _configure_jax()
        current_heartbeat().tick()
        self._stop = lp.stop_event()
        self._endpoints = [
            courier.Server(port=lp.get_port_from_address(endpoint.resolve()), thread_pool_size=16)
            for endpoint in endpoints
        ]
        agent = experiment.make_agent()
        num_gpus = experiment.inference.num_gpus
        check_gpus(min(num_gpus, 1), f"inference.num_gpus={num_gpus}")
        config = experiment.actors
        count = experiment.inference.num_inferencers
        clients = len(range(index, experiment.actors.most, count))
        rows = experiment.actors.envs_per_step
        sizes = [rows]
        while sizes[-1] < rows * clients:
            sizes.append(min(2 * sizes[-1], rows * clients))
        wire = InferenceMessages(agent)
        life = current_heartbeat().life
        self._inferencer = Inferencer(
            agent,
            VariableClient(
                RemoteVariables(Peer(learner, "learner/0"), agent),
                experiment.only_task.sync_interval,
                background=True,
            ),
            seed=seeds.seed(experiment.seed, "inferencer", index, life),
            max_streams=clients * config.num_envs,
            batch_sizes=sizes,
            wire=wire,
        )
        self._inferencer.warm_up()
        self._service = InferenceServer(
            self._inferencer, wire, sizes[-1], experiment.inference.timeout, current_heartbeat()
        )

    def inference(self, data: bytes) -> bytes:
        """See `InferenceServer.inference`."""
        return self._service.inference(data)

    def run(self) -> None:
        """Opens the doors until the program stops."""
        current_heartbeat().wait()
        for endpoint in self._endpoints:
            endpoint.Bind("inference", self._service.inference)
            endpoint.Start()
        try:
            self._stop.wait()
        finally:
            for endpoint in self._endpoints:
                endpoint.Stop()


class ActorNode:
    """One actor: with an inferencer of its own, or asking a service."""

    def __init__(
        self,
        experiment: Experiment,
        index: int,
        table: str,
        replay: Any,
        monitor: Any,
        learner: Any = None,
        inferencer: Any = None,
        variables_from: str = "learner/0",
    ):
        """Args:
        experiment: what to train.
        index: of the actor.
        table: name of the replay's table.
        replay: clients of its servers; None: the table is in shared memory.
        monitor: the monitor's client.
        learner: its client, for an inferencer of the actor's own; or
        inferencer: the service's client.
        variables_from: name of the node behind `learner`: a relay may be in its place.
        """
        _configure_jax()
        self._heartbeat = current_heartbeat()
        self._heartbeat.tick()
        life = self._heartbeat.life
        self._stop = lp.stop_event()
        with contextlib.ExitStack() as opened:
            # The pool first: it may fork, which must be done before JAX starts its threads.
            pool = actor_pool(experiment, index, _say, life)
            opened.callback(pool.close)
            config = experiment.actors
            in_own_process = threading.current_thread() is threading.main_thread()
            if config.pin and pool.one_thread and in_own_process:
                # Another program's actors begin at another core.
                keep_to_one_core(os.getppid() + index)
            agent = experiment.make_agent()
            self._reporter = Reporter(monitor, f"actor/{index}")
            self._replay = actor_client(experiment, replay, table, self._stop, index)
            writer: ReplayWriter = self._replay
            source: InferenceSource
            if inferencer is not None:
                number = index % experiment.inference.num_inferencers
                source = RemoteInferencer(
                    Peer(inferencer, f"inferencer/{number}"), InferenceMessages(agent)
                )
            else:
                remote = RemoteVariables(Peer(learner, variables_from), agent)
                variables: VariableClient | LockstepVariables
                if experiment.lockstep:
                    lockstep_schedule, length = (
                        experiment.only_task.lockstep_schedule(),
                        experiment.replay.unroll_length,
                    )
                    writer = LockstepWriter(self._replay, lockstep_schedule, length, index)
                    timeout = experiment.learner.timeout
                    variables = LockstepVariables(
                        remote, lockstep_schedule, length, self._stop, timeout
                    )
                else:
                    variables = VariableClient(
                        remote, experiment.only_task.sync_interval, background=True
                    )
                source = Inferencer(
                    agent,
                    variables,
                    seed=seeds.seed(experiment.seed, "inferencer", index, life),
                    max_streams=config.num_envs,
                )
            self._actor = Actor(
                pool,
                source,
                with_final_rewards(writer, experiment.trajectory_struct(), pool.spec),
                first_stream=index * config.num_envs,
                life=life,
            )
            self._opened = opened.pop_all()

    def run(self) -> None:
        """Acts until the program stops."""
        with self._opened:
            stopping = stop_and_tick(self._stop)
            before = self._heartbeat.acted
            self._reporter({"acted_before": before})

            def asked_to_stop() -> bool:
                self._heartbeat.acted = before + self._actor.acted
                return stopping()

            self._actor.run(asked_to_stop, self._reporter)
            self._replay.close()
            self._reporter.flush()


class EvaluatorNode:
    """Scores the newest parameters, again and again, on environments of its own."""

    def __init__(self, experiment: Experiment, learner: Any, monitor: Any):
        _configure_jax()
        current_heartbeat().tick()
        life = current_heartbeat().life
        self._stop = lp.stop_event()
        self._config = experiment.evaluator
        with contextlib.ExitStack() as opened:
            pool = evaluator_pool(experiment, _say, life)  # first, as an actor's
            opened.callback(pool.close)
            self._reporter = Reporter(monitor, "evaluator/0")
            agent = experiment.make_agent()
            variables = VariableClient(RemoteVariables(Peer(learner, "learner/0"), agent), 2**62)
            inferencer = Inferencer(
                agent,
                variables,
                seed=seeds.seed(experiment.seed, "evaluator", 1, life),
                max_streams=pool.num_envs,
                evaluation=True,
            )
            self._evaluator = Evaluator(pool, inferencer, variables)
            self._opened = opened.pop_all()

    def run(self) -> None:
        """Evaluates every `interval` seconds until the program stops."""
        with self._opened:
            while not self._stop.is_set():
                current_heartbeat().tick()
                due = time.monotonic() + self._config.interval
                scores = self._evaluator.evaluate(self._config.episodes, stop_and_tick(self._stop))
                if scores is not None:
                    self._reporter(scores)
                current_heartbeat().wait()
                self._stop.wait(max(0.0, due - time.monotonic()))
            self._reporter.flush()
