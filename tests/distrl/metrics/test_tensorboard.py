"""Event files, on a disk that turns full."""

import errno
import os

import pytest

from distrl.metrics.tensorboard import TensorBoard
from tests.support.full_disk import no_file_above


@pytest.mark.parametrize("room", [None, 0, 40])  # bytes; None: for no event at all
def test_a_full_disk_costs_points_and_nothing_else(tmp_path, room):
    pytest.importorskip("tensorboardX")
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    folder = tmp_path / "tensorboard"
    lines = []
    sink = TensorBoard(folder, lines.append)
    before = [] if room is None else [1, 2]
    for step in before:
        sink.append({"env_steps": step, "loss": 0.5})
    whole = b"".join(path.read_bytes() for path in folder.glob("*"))
    with no_file_above(len(whole) + (room or 0)):
        for step in range(3, 50):
            sink.append({"env_steps": step, "loss": 0.5})
    for step in (50, 51):
        sink.append({"env_steps": step, "loss": 0.5, "entropy": None})
    (path,) = folder.iterdir()
    assert lines == [f"distrl: {path}: {os.strerror(errno.EFBIG)}: points will be missing"]
    content = path.read_bytes()
    with no_file_above(len(content) + 1):
        sink.append({"env_steps": 52, "loss": 0.5})
        sink.close()
    assert path.read_bytes() == content and content.startswith(whole)
    events = accumulator.EventAccumulator(str(folder))
    events.Reload()
    points = [(each.step, each.value) for each in events.Scalars("loss")]
    assert points == [(step, 0.5) for step in [*before, 50, 51]]
