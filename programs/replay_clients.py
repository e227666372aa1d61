"""Clients of a task's replay table, wherever the table is."""

from pathlib import Path
from typing import Any, NamedTuple

from distrl.programs.build import Builder
from distrl.programs.groups import ACTOR, LEARNER, REPLAY, learner_name
from distrl.programs.remote import RESTART_TIMEOUT_S
from distrl.programs.running.progress import patience
from distrl.programs.running.shared_files import check_not_lost
from distrl.replay.buffer import ReplayBuffer
from distrl.replay.client import UnrollingReplayBuffer
from distrl.replay.remote.sharded import ShardedReplayBuffer
from distrl.replay.served.client import ServedReplayBuffer
from distrl.replay.served.prefetch import PrefetchingReplayBuffer
from distrl.replay.served.shard import ServedShard
from distrl.replay.shared.buffer import SharedReplayBuffer
from distrl.shared_memory import segment
from distrl.task import Task

LOAD_TIMEOUT_S = 600.0  # for a table to open: it may have many gigabytes to load


class ReplayHandle(NamedTuple):
    """The means by which nodes use a task's table.

    Attributes:
      table: its name.
      servers: one a shard: `FrameEndpoint`s, or Launchpad's handles of Reverb servers; in a
        node that got these as arguments, the clients. None: the table is in the memory that the
        nodes share.
      node: name of the node that makes it there.
    """

    table: str
    servers: tuple[Any, ...] | None
    node: str = ""

    @property
    def group(self) -> str:
        """The label of the nodes that have the table."""
        return REPLAY.name


def shard_name(task: Task, table: str, index: int) -> str:
    """Returns the name of a shard's table: unique, so that no other shard's is taken for it."""
    return f"{table}-{index}" if task.replay.num_shards > 1 else table


def server_folder(task: Task, run_dir: Path, index: int) -> Path:
    """Returns the folder to which a Reverb server writes its checkpoints."""
    return run_dir / (f"replay-{index}" if task.replay.num_shards > 1 else "replay")


def saved_shard(task: Task, saved: Path | None, index: int) -> Path | None:
    """Returns the folder of a saved shard, in that of the saved table; None: nothing was saved."""
    return saved / str(index) if saved is not None and task.replay.num_shards > 1 else saved


def actor_client(
    builder: Builder, replay: ReplayHandle, stop: Any, actor: int
) -> UnrollingReplayBuffer:
    """Returns an actor's client of the table, or of the one shard that it writes to.

    Args:
      builder: the builder of the table's task.
      replay: the table.
      stop: event that is set when the program stops.
      actor: index of the actor.
    """
    name = f"{ACTOR.name}/{actor}"
    if replay.servers is None:
        check_not_lost(replay.table, segment.TABLE, replay.node)
        return _shared_client(builder, replay.table, stop, name)
    index = actor % len(replay.servers)
    if builder.task.replay.backend == "served":
        if len(replay.servers) == 1:
            return _near_or_served_client(builder, replay, stop, name)
        return _served_client(builder, replay, index, stop, name)
    return _reverb_client(builder, replay, index, stop)


def learner_client(
    builder: Builder, replay: ReplayHandle, stop: Any
) -> ReplayBuffer | ShardedReplayBuffer | PrefetchingReplayBuffer:
    """Returns the learner's client of the table, of all its shards.

    Args:
      builder: the builder of the table's task.
      replay: the table.
      stop: event that is set when the program stops.
    """
    task, name = builder.task, learner_name(builder.experiment, builder.task.name)
    if replay.servers is None:
        check_not_lost(replay.table, segment.TABLE, replay.node)
        return _shared_client(builder, replay.table, stop, name)
    indices = range(len(replay.servers))
    shards: list[Any]
    if task.replay.backend == "served":
        if len(indices) == 1:
            client = _near_or_served_client(builder, replay, stop, name)
            if isinstance(client, ServedReplayBuffer):
                return PrefetchingReplayBuffer(client, task.learner.batch_size, stop)
            return client
        clients = [_served_client(builder, replay, index, stop, name) for index in indices]
        per_item = task.unrolls_per_item
        shards = [ServedShard(client, i, per_item, stop) for i, client in enumerate(clients)]
    else:
        shards = [_reverb_client(builder, replay, index, stop) for index in indices]
        if len(shards) == 1:
            return shards[0]
    return ShardedReplayBuffer(
        shards,
        task.replay,
        task.learner.batch_size,
        seed=builder.seed("shards", task.index),
        stop=stop,
        unrolls_per_item=task.unrolls_per_item,
    )


def _shared_client(builder: Builder, table: str, stop: Any, name: str) -> SharedReplayBuffer:
    return SharedReplayBuffer(
        table,
        builder.struct,
        builder.task.replay,
        builder.task.learner.batch_size,
        stop,
        _insert_timeout(builder),
        open_timeout=LOAD_TIMEOUT_S,
        name=name,
    )


def _insert_timeout(builder: Builder) -> float:
    """Returns the limit of waits for room: the learner makes it, and in lockstep others' turns."""
    groups = [ACTOR.name, LEARNER.name] if builder.experiment.lockstep else [LEARNER.name]
    return patience(builder.experiment.supervision.insert_timeout, *groups)


def _near_or_served_client(
    builder: Builder, replay: ReplayHandle, stop: Any, name: str
) -> SharedReplayBuffer | ServedReplayBuffer:
    """Returns a client of the one table: without its server, where this machine has the table."""
    client = _served_client(builder, replay, 0, stop, name)
    if not segment.exists(replay.table):
        return client
    client.close()
    return _shared_client(builder, replay.table, stop, name)


def _served_client(
    builder: Builder, replay: ReplayHandle, index: int, stop: Any, name: str
) -> ServedReplayBuffer:
    """Returns a client of one shard. Args: name: its node's name."""
    assert replay.servers is not None
    task, server = builder.task, replay.servers[index]
    buffer = ServedReplayBuffer(
        server.address.resolve(),
        server.key,
        builder.struct,
        task.replay.of_shard(),
        task.shard_batch,
        stop,
        _insert_timeout(builder),
        RESTART_TIMEOUT_S,
        name,
        pipelined=True,
    )
    buffer.wait_for_server(LOAD_TIMEOUT_S)
    return buffer


def _reverb_client(builder: Builder, replay: ReplayHandle, index: int, stop: Any) -> Any:
    """Returns a `ReverbReplayBuffer` of one shard."""
    from distrl.replay.reverb.buffer import ReverbReplayBuffer  # brings TensorFlow

    assert replay.servers is not None
    task, supervision = builder.task, builder.experiment.supervision
    buffer = ReverbReplayBuffer(
        replay.servers[index],
        builder.struct,
        task.replay.of_shard(),
        task.shard_batch,
        shard_name(task, replay.table, index),
        unrolls_per_item=task.unrolls_per_item,
        stop=stop,
        insert_timeout=_insert_timeout(builder),
        reconnect_timeout=RESTART_TIMEOUT_S if supervision.restarts else 0.0,
    )
    buffer.wait_for_server(LOAD_TIMEOUT_S)
    return buffer
