"""What the distributed topologies share: replay, monitor, learner, evaluator."""

import functools
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import launchpad as lp

from distrl.checkpointing.checkpointer import ResumePoint
from distrl.experiment import Experiment
from distrl.programs import nodes, replay_clients
from distrl.replay.shared import segment
from distrl.replay.shared.table import SharedTable
from distrl.runtime.heartbeat import current_heartbeat


class CoreHandles(NamedTuple):
    """Handles of the nodes that every topology has, and the replay table's name."""

    replay: Any  # Launchpad's ReverbHandles, one a shard; None: the table is in shared memory
    monitor: lp.CourierHandle
    learner: lp.CourierHandle
    table: str


def add_common_nodes(
    program: lp.Program, experiment: Experiment, run_dir: str, start: ResumePoint | None
) -> CoreHandles:
    """Adds replay, monitor, learner and evaluator to `program`."""
    start = start or ResumePoint()
    if experiment.lockstep:  # whose rounds begin anew, with an empty table
        start = start._replace(with_table=False)
    # Two servers on one port are both accepted: a name of this program's own tells them apart.
    table = f"{experiment.task}-{uuid.uuid4().hex[:8]}"
    replay = None
    with program.group("replay"):
        if experiment.replay.backend == "reverb":
            replay = tuple(
                program.add_node(_reverb_node(experiment, table, run_dir, start, index))
                for index in range(experiment.replay.num_shards)
            )
        else:
            struct, batch_size = experiment.trajectory_struct(), experiment.learner.batch_size
            SharedTable.check_room(struct, experiment.replay, batch_size, table)
            add_courier_node(program, replay_clients.TableNode, experiment, table, run_dir, start)
    with program.group("monitor"):
        monitor = add_courier_node(program, nodes.MonitorNode, experiment, run_dir, start)
    with program.group("learner"):
        learner = add_courier_node(
            program, nodes.LearnerNode, experiment, table, run_dir, replay, monitor, start
        )
    if experiment.evaluator.num_evaluators:
        with program.group("evaluator"):
            add_courier_node(program, nodes.EvaluatorNode, experiment, learner, monitor)
    return CoreHandles(replay, monitor, learner, table)


class _ReverbNode(lp.ReverbNode):
    """A Reverb server that `distrl tables` finds."""

    def __init__(
        self, table: str, about: Callable[[str], dict[str, Any]], *args: Callable[[], Any]
    ):
        """Args:
        table: name of the server's table.
        about: from its address to what is announced.
        *args: of `lp.ReverbNode`.
        """
        self._table = table
        self._about = about
        super().__init__(*args)

    def run(self) -> None:
        """Serves until the program stops."""
        about = self._about(self.reverb_address.resolve())
        with segment.announced(self._table, about):
            super().run()


def _reverb_node(
    experiment: Experiment, table: str, run_dir: str, start: ResumePoint, index: int
) -> lp.ReverbNode:
    """A Reverb server with the experiment's table, or one shard of it."""
    # With TensorFlow, which takes seconds.
    from distrl.replay.reverb.buffer import about_tables, reverb_tables

    config, struct = experiment.replay.of_shard(), experiment.trajectory_struct()
    name = replay_clients.shard_name(experiment, table, index)
    per_item = experiment.only_task.unrolls_per_item
    return _ReverbNode(
        name,
        functools.partial(about_tables, config, struct, unrolls_per_item=per_item),
        functools.partial(
            reverb_tables,
            config,
            struct,
            experiment.only_task.shard_batch,
            name,
            unrolls_per_item=per_item,
        ),
        functools.partial(_reverb_checkpointer, experiment, name, run_dir, start, index),
    )


def _reverb_checkpointer(
    experiment: Experiment, table: str, run_dir: str, start: ResumePoint, index: int
) -> Any:
    """Of a server, in its own process: it begins with what was saved last."""
    from distrl.replay.reverb.checkpoints import checkpointer

    if current_heartbeat().restarted:
        start = ResumePoint.latest(run_dir, start)
    return checkpointer(
        replay_clients.server_folder(experiment, Path(run_dir).absolute(), index),
        replay_clients.saved_shard(experiment, start.table(), index),
        table,
        experiment.trajectory_struct(),
        experiment.replay.of_shard(),
        experiment.only_task.shard_batch,
        experiment.only_task.unrolls_per_item,
    )


def add_actor(
    program: lp.Program, experiment: Experiment, index: int, common: CoreHandles, **source: Any
) -> None:
    """Adds one actor.

    Args:
      program: inside of its group "actor".
      experiment: what to train.
      index: of the actor.
      common: see `add_common_nodes`.
      **source: of its actions: `learner` or `inferencer` of `nodes.ActorNode`.
    """
    table, replay, monitor = common.table, common.replay, common.monitor
    add_courier_node(program, nodes.ActorNode, experiment, index, table, replay, monitor, **source)


def add_courier_node(
    program: lp.Program,
    constructor: type,
    experiment: Experiment,
    *args: object,
    call_timeout: float | None = None,
    endpoints: Sequence[lp.Address] = (),
    **kwargs: object,
) -> lp.CourierHandle:
    """Adds a CourierNode whose clients have a deadline.

    Args:
      program: inside one of its groups.
      constructor: of the node's object, with `experiment`, `args` and `kwargs`.
      experiment: what to train.
      call_timeout: seconds of every call to it; None: `supervision.call_timeout`.
      doors: further addresses that the node's object serves by itself.
    """
    node = lp.CourierNode(constructor, experiment, *args, **kwargs)
    for endpoint in endpoints:
        node.allocate_address(endpoint)
    handle = program.add_node(node)
    handle.set_client_kwargs(call_timeout=call_timeout or experiment.supervision.call_timeout)
    return handle
