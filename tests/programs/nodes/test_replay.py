"""The node of a table."""

import os
import threading
from types import SimpleNamespace

import pytest

from distrl.checkpointing.resume_point import ResumePoint
from distrl.checkpointing.store import TABLE
from distrl.config import LearnerConfig
from distrl.envs import PythonEnvironment
from distrl.experiment import Experiment
from distrl.programs.build import Builder
from distrl.programs.nodes.replay import TableNode
from distrl.programs.program import FrameEndpoint
from distrl.programs.running import shared_files
from distrl.programs.substrate import node_context
from distrl.replay.config import ReplayConfig
from distrl.replay.served.client import ServedReplayBuffer
from distrl.testing import CheckingConfig, CountingEnvironment

KEY = "the key of a test"
REPLAY = ReplayConfig("uniform", 4, 64, backend="served")


@pytest.fixture
def served(tmp_path, monkeypatch):
    """Returns `served(resume_point)`, a client elsewhere of a node's table; one at a time."""
    monkeypatch.setattr(node_context, "stop_event", threading.Event)
    first_life = lambda: SimpleNamespace(restarted=False, made_file=False)  # noqa: E731
    monkeypatch.setattr(shared_files, "current_heartbeat", first_life)
    experiment = Experiment(
        PythonEnvironment(CountingEnvironment), CheckingConfig(), REPLAY,
        learner=LearnerConfig(batch_size=4),
    )  # fmt: skip
    builder = Builder(experiment)
    address = f"unix:{tmp_path}/table"
    endpoint = FrameEndpoint(SimpleNamespace(resolve=lambda: address), KEY)
    parts = []

    def close():
        while parts:
            parts.pop()()

    def make(resume_point):
        close()
        node = TableNode(
            experiment, builder.task.name, str(tmp_path), resume_point, None,
            f"node-{os.getpid()}", "replay/0", served=endpoint,
        )  # fmt: skip
        parts.extend([node._table.close, node._server.close])
        client = ServedReplayBuffer(
            address, KEY, builder.struct, REPLAY, 4, name="learner/0", insert_timeout=5.0
        )
        parts.append(client.close)
        return client

    yield make
    close()


def test_a_learner_elsewhere_samples_as_if_nothing_had_ended(served, tmp_path):
    client = served(ResumePoint())
    block = client.table.columns.allocate(32)
    for column in block.columns:
        column[...] = 0
    client.table.insert(block, None, 5.0)
    client.sample(5.0)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    client.save(checkpoint / TABLE, 5.0)
    expected = [client.sample(5.0).key.tolist() for _ in range(5)]
    client = served(ResumePoint(checkpoint=str(checkpoint)))
    assert [client.sample(5.0).key.tolist() for _ in range(5)] == expected
