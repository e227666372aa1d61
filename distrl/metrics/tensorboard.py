"""Metrics as event files for TensorBoard."""

import socket
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distrl.metrics.appended_file import AppendedFile


class TensorBoard:
    """Event files for `tensorboard --logdir RUN`, by environment steps.

    They are written here, not by tensorboardX's `SummaryWriter`: its thread ends when the disk is
    full, and the next points would wait for it forever.
    """

    def __init__(self, folder: Path, printer: Callable[[str], None]):
        self._folder = folder
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{time.time_ns()}"
        self._file = AppendedFile(folder / name, printer, "points")  # a file for each program
        self._resumed_at: int | None = None
        self._begun = False  # whether the file has its first events

    def resume(self, env_steps: int) -> None:
        """See `Sink`. Takes effect with the next row."""
        self._resumed_at = env_steps

    def append(self, row: Mapping[str, Any]) -> None:
        """See `Sink`."""
        from tensorboardX.proto.event_pb2 import Event, SessionLog
        from tensorboardX.proto.summary_pb2 import Summary
        from tensorboardX.summary import scalar

        step, now = int(row["env_steps"]), time.time()
        points = Summary()
        for name, value in row.items():
            if value is not None and name != "env_steps":
                points.MergeFrom(scalar(name, value))
        events = [Event(wall_time=now, step=step, summary=points)]
        if not self._begun:
            first = step if self._resumed_at is None else self._resumed_at + 1
            session = SessionLog(status=SessionLog.START)  # drops points from `first` on
            events[:0] = [
                Event(wall_time=now, file_version="brain.Event:2"),
                Event(wall_time=now, step=first, session_log=session),
            ]
            with self._file.errors.reporting():
                self._folder.mkdir(parents=True, exist_ok=True)
        if self._file.append(b"".join(_record(event.SerializeToString()) for event in events)):
            self._begun = True

    def close(self) -> None:
        """See `Sink`."""
        self._file.close()


def _record(data: bytes) -> bytes:
    """Returns an event as TensorBoard reads it: a TFRecord, with checksums of length and data."""
    from tensorboardX.record_writer import masked_crc32c

    length = struct.pack("<Q", len(data))
    checksums = (struct.pack("<I", masked_crc32c(part)) for part in (length, data))
    return length + next(checksums) + data + next(checksums)
