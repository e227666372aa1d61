"""Streams that count their own steps, and the four kinds of replay behind one interface."""

import os
import socket
import tempfile
import threading
from pathlib import Path

import jax
import numpy as np
from dm_env import specs as dm_specs

from distrl import specs
from distrl.replay.buffer import ReplayBuffer, ReplayConfig
from distrl.replay.columns import Columns
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.replay.served.client import ServedReplayBuffer
from distrl.replay.served.server import KEPT_S, TableServer
from distrl.replay.shared.buffer import SharedReplayBuffer
from distrl.replay.shared.table import SharedTable
from distrl.replay.table.files import Stored
from distrl.types import Inference, StepType, TimeStep, Trajectory

# Tests run in several processes; the processes that a test starts inherit its environment.
_RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or os.environ.setdefault(
    "DISTRL_TEST_RUN", str(os.getpid())
)
NAME = f"task-{_RUN}-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
KEY = "the key of a test"
EPISODE = 7  # steps, FIRST and LAST included
ENV_SPEC = specs.EnvironmentSpec(
    {"stream": dm_specs.Array((), np.int32), "step": dm_specs.Array((2,), np.float32)},
    dm_specs.DiscreteArray(1000, np.int32),
)


class Streams:
    """Streams whose every value identifies its step; a call may step any of them."""

    table = NAME
    struct: Trajectory = specs.trajectory_struct(
        ENV_SPEC,
        extras={
            "value": jax.ShapeDtypeStruct((), np.float32),
            "logits": jax.ShapeDtypeStruct((3,), np.float32),
        },
        state=(jax.ShapeDtypeStruct((2,), np.float32), {"h": jax.ShapeDtypeStruct((), np.int32)}),
    )

    def __init__(self) -> None:
        self._next: dict[tuple[int, int], int] = {}
        self._calls = 0

    def step(
        self, stream_ids: np.ndarray, life: int = 0, with_state: bool = True
    ) -> tuple[TimeStep, Inference]:
        """Returns the next step of each stream in this life."""
        steps = np.array([self._next.get((life, int(i)), 0) for i in stream_ids], np.int32)
        for i in stream_ids:
            key = (life, int(i))
            self._next[key] = self._next.get(key, 0) + 1
        self._calls += 1
        place = steps % EPISODE
        step_type = np.where(place == 0, StepType.FIRST, StepType.MID)
        step_type = np.where(place == EPISODE - 1, StepType.LAST, step_type).astype(np.int8)
        observation = {
            "stream": stream_ids.astype(np.int32),
            "step": np.stack([steps, -steps], 1).astype(np.float32),
        }
        timestep = TimeStep(
            step_type,
            (steps * 2).astype(np.float32),
            (place != EPISODE - 1).astype(np.float32),
            observation,
            ((steps + 999) % 1000).astype(np.int32),
            env_id=stream_ids,
        )
        extras = {
            "value": (steps + 0.5).astype(np.float32),
            "logits": np.stack([steps, stream_ids, steps * 0 + life], 1).astype(np.float32),
        }
        state = (
            np.stack([steps, stream_ids], 1).astype(np.float32),
            {"h": (steps * 3).astype(np.int32)},
        )
        return timestep, Inference(
            (steps % 1000).astype(np.int32), extras, self._calls, state if with_state else None
        )

    def add_to(
        self, buffer: ReplayBuffer, stream_ids: np.ndarray, times: int = 1, life: int = 0
    ) -> None:
        """Adds steps as an actor does: with the state only where it is needed."""
        for _ in range(times):
            wanted = buffer.needs_state(stream_ids, life)
            buffer.add(stream_ids, *self.step(stream_ids, life, wanted), life)

    @staticmethod
    def check(trajectory: Trajectory, period: int | None = None) -> list[tuple[int, int, int]]:
        """Asserts each value of each unroll; returns their (stream, life, first step)."""
        timestep = trajectory.timestep
        rows, count = timestep.reward.shape
        stream, life = (
            np.broadcast_to(x, (rows, count)) for x in (trajectory.stream_id, trajectory.life)
        )
        start = timestep.observation["step"][0, :, 0].astype(int)
        steps = start + np.arange(rows)[:, None]
        position = steps % EPISODE
        expected = {
            "stream": (timestep.observation["stream"], stream),
            "step": (timestep.observation["step"], np.stack([steps, -steps], -1)),
            "reward": (timestep.reward, 2 * steps),
            "discount": (timestep.discount, position != EPISODE - 1),
            "first": (timestep.step_type == StepType.FIRST, position == 0),
            "last": (timestep.step_type == StepType.LAST, position == EPISODE - 1),
            "prev_action": (timestep.prev_action, (steps + 999) % 1000),
            "action": (trajectory.action, steps % 1000),
            "value": (trajectory.extras["value"], steps + 0.5),
            "logits": (trajectory.extras["logits"], np.stack([steps, stream, life], -1)),
            "state": (trajectory.state[0], np.stack([start, stream[0]], -1)),
            "state h": (trajectory.state[1]["h"], 3 * start),
        }
        for name, (actual, value) in expected.items():
            np.testing.assert_array_equal(actual, value, err_msg=name)
        assert (np.diff(trajectory.version, axis=0) > 0).all()
        assert (start % (period or rows - 1) == 0).all()
        return list(zip(stream[0].tolist(), life[0].tolist(), start.tolist(), strict=True))


def _free_address() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


class Replay:
    """A table, and clients of it."""

    def __init__(
        self,
        kind: str,
        config: ReplayConfig,
        batch_size: int,
        per_item: int,
        saved: Path | None = None,
        struct: Trajectory | None = None,
    ) -> None:
        struct = Streams.struct if struct is None else struct
        self.kind, self._struct = kind, struct
        self._config, self._batch_size, self._per_item = config, batch_size, per_item
        self._clients: list[ReplayBuffer] = []
        self._server: object = None
        self._folder: tempfile.TemporaryDirectory | None = None
        self._table: LocalTable | None = None
        self._shared: SharedTable | None = None
        self._served: TableServer | None = None
        if kind == "local":
            self._table = LocalTable(struct, config, batch_size, NAME, seed=0)
            if saved is not None:
                self._table.restore(Stored(saved, Columns(struct, config.unroll_length), config))
            return
        if kind in ("shared", "served", "served-tcp"):
            self._shared = SharedTable.create(struct, config, batch_size, NAME, seed=0, saved=saved)
            if kind != "shared":
                self._folder = tempfile.TemporaryDirectory()
                unix = kind == "served"
                self.address = f"unix:{self._folder.name}/table" if unix else _free_address()
                self.serve()
            return
        import reverb

        from distrl.replay.reverb import checkpoints
        from distrl.replay.reverb.server import reverb_tables

        self.address = _free_address()
        tables = reverb_tables(config, struct, batch_size, NAME, per_item)
        self._folder = tempfile.TemporaryDirectory()
        checkpointer = checkpoints.checkpointer(
            Path(self._folder.name, "replay"), saved, NAME, struct, config, batch_size, per_item
        )
        port = int(self.address.rpartition(":")[2])
        self._server = reverb.Server(tables, port, checkpointer)

    def serve(self, kept: float = KEPT_S) -> None:
        """Serves the table, again after `stop_serving`. Args: kept: see `TableServer`."""
        assert self._shared is not None
        below = Path(tempfile.gettempdir())
        self._served = TableServer(
            self._shared, self._struct, self._config, self.address, KEY, below, kept
        )

    def stop_serving(self) -> None:
        """Ends a served table's server; the table stays."""
        assert self._served is not None
        self._served.close()

    def client(
        self,
        stop: threading.Event | None = None,
        insert_timeout: float = 30.0,
        name: str = "",
        pipelined: bool = False,
    ) -> ReplayBuffer:
        """Opens another client.

        Args:
          stop, insert_timeout: as for the kind's buffer.
          name: its name, of a table in shared memory.
          pipelined: of a served table, see there.
        """
        client: ReplayBuffer
        common = (self._struct, self._config, self._batch_size, stop, insert_timeout)
        if self._table is not None:
            client = LocalReplayBuffer(self._table, *common)
        elif self._served is not None:
            client = ServedReplayBuffer(self.address, KEY, *common, name=name, pipelined=pipelined)
        elif self._shared is not None:
            client = SharedReplayBuffer(NAME, *common, name=name)
        else:
            import reverb

            from distrl.replay.reverb.buffer import ReverbReplayBuffer

            client = ReverbReplayBuffer(
                reverb.Client(self.address),
                self._struct,
                self._config,
                self._batch_size,
                NAME,
                stop,
                self._per_item,
                insert_timeout=insert_timeout,
            )
        self._clients.append(client)
        return client

    def close(self) -> None:
        """Closes the clients, then the server."""
        for client in self._clients:
            client.close()
        if self._served is not None:
            self._served.close()
        if self._shared is not None:
            self._shared.close()
        if self._server is not None:
            self._server.stop()  # type: ignore[attr-defined]
        if self._folder is not None:
            self._folder.cleanup()
