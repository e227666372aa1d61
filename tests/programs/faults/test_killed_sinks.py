"""The launcher is killed: no sink has lost more than ten seconds, and the curves go on."""

import csv
import json
import signal
import time

import pytest

from tests.programs.resuming.test_resume import Run
from tests.support.commands import TRAINING

_MOST_LOST_S = 10.0
_TRAIN_S = 12.0  # a sink that wrote its rows with a checkpoint would lose more
_FLAGS = (
    "--env=CartPole-v1", "--config.goal.mean_return=None", "--max_env_steps=1000000000",
    "--config.metrics.tensorboard=true", "--config.metrics.json_lines=true",
    "--config.checkpoint.period=14",
)  # fmt: skip


def texts(folder):
    """The rows of each sink that is a text."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = {"metrics.jsonl": rows}
    for name in ("metrics.csv", "episodes.csv"):
        found[name] = list(csv.DictReader((folder / name).read_text().splitlines()))
    return {
        name: [(int(row["env_steps"]), float(row["seconds"])) for row in rows]
        for name, rows in found.items()
    }


def points(folder):
    """A curve, as the stock TensorBoard reads it: steps and wall times."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder / "tensorboard"))
    events.Reload()
    return [(point.step, point.wall_time) for point in events.Scalars("learner_steps")]


@pytest.mark.full
@pytest.mark.timeout(400)
@pytest.mark.parametrize("topology", ["single_process", "heavy_env"])
def test_a_killed_run_has_its_rows_and_goes_on_in_the_same_curves(tmp_path, topology):
    pytest.importorskip("tensorboard")
    pytest.importorskip("tensorboardX")
    run = Run(tmp_path, *_FLAGS, f"--topology={topology}")
    run.start()
    try:
        run.wait_for(TRAINING)
        checkpoints = run.run_dir / "checkpoints"
        run.wait_for(lambda: checkpoints.exists() and any(checkpoints.iterdir()))
        time.sleep(_TRAIN_S)  # not for a state: this long it trains
        killed = time.time()
        run.end(signal.SIGKILL)
        for name, rows in texts(run.run_dir).items():
            assert rows, name
            assert killed - (run.run_dir / name).stat().st_mtime < _MOST_LOST_S, name
        assert killed - points(run.run_dir)[-1][1] < _MOST_LOST_S
        before = texts(run.run_dir)["metrics.csv"]
        run.start()
        resumed_at = run.resumed()["monitor"]["env_steps_acted"]
        run.wait_for(lambda: texts(run.run_dir)["metrics.csv"][-1][0] > before[-1][0])
        assert run.end(signal.SIGINT) == 130
    finally:
        run.close()
    assert resumed_at > 0
    curves = texts(run.run_dir)
    for name, rows in curves.items():
        assert rows == sorted(rows), name
        assert any(steps <= resumed_at for steps, _ in rows), name
    # Up to the checkpoint it is the same curve, and TensorBoard has the rows' points.
    kept = [row for row in before if row[0] <= resumed_at]
    assert curves["metrics.csv"][: len(kept)] == kept
    assert [steps for steps, _ in points(run.run_dir)] == [
        steps for steps, _ in curves["metrics.csv"]
    ]
