"""Inference in shared memory: batches, processes that die, clients that write anything."""

import stat
import subprocess
import sys
import threading

import numpy as np
import pytest

from distrl.errors import ConfigError, DeadlineExceeded, SpecError, Stopped
from distrl.inference.messages import InferenceMessages
from distrl.inference.slots import Sizes, SlotFile
from distrl.shared_memory import segment
from distrl.shared_memory.process import Process
from distrl.types import StepType
from tests.support.commands import ROOT
from tests.support.inference import (
    Patient,
    make,
    serving,
    slot_client,
    slot_file,
    timestep,
)
from tests.support.waiting import in_thread, until

TWO = np.arange(2, dtype=np.int32)


class Stopping(Patient):
    """A server that never answers in a program that stops."""

    def check(self, what, began):
        raise Stopped(f"{what}: the program stops")


def waiting(file, index):
    return file.requested[index] != file.answered[index]


def ask(agent, file, index, answers, streams, kind=StepType.FIRST):
    """Asks in a thread, and waits until the request is there."""
    client = slot_client(agent, file, index)

    def call():
        answers[index] = client.inference(streams, timestep(len(streams), kind))

    thread, raised = in_thread(call)
    until(lambda: waiting(file, index), "the request")
    return thread, raised


def test_64_clients_are_one_batch():
    agent, inferencer = make(served=True, max_streams=128, batch_sizes=(2, 128))
    answers = {}
    with slot_file(agent, 64, 2) as file:
        asked = [ask(agent, file, i, answers, TWO + 2 * i) for i in range(64)]
        with serving(inferencer, agent, file) as server:
            for thread, _ in asked:
                thread.join(20)
    assert (server.batches, server.requests) == (1, 64)
    assert all((answers[i].extras["seen"] == 0).all() for i in range(64))


def test_a_server_that_is_restarted_finds_what_the_one_before_left():
    agent, inferencer = make(served=True)
    answers = {}
    with slot_file(agent, 2, 2) as file:
        with serving(inferencer, agent, file):
            before = slot_client(agent, file, 1).inference(TWO + 2, timestep(2))
        thread, raised = ask(agent, file, 0, answers, TWO)
        again = SlotFile.open(file.name, file.sizes, 0.0)
        with serving(make(served=True)[1], agent, again, life=1):
            thread.join(20)
    assert not raised
    assert (before.source_life, answers[0].source_life) == (0, 1)


def test_a_client_that_is_restarted_does_not_get_the_answer_of_the_one_before():
    agent, inferencer = make(served=True)
    with slot_file(agent, 1, 3) as file:
        left, _ = ask(agent, file, 0, {}, np.arange(3, dtype=np.int32))
        answers = {}

        def next_life():
            answers[0] = slot_client(agent, file, 0).inference(TWO, timestep(2), 1)

        thread, raised = in_thread(next_life)
        until(lambda: thread.is_alive(), "the next life")
        with serving(inferencer, agent, file) as server:
            thread.join(20)
            left.join(20)
    assert not raised
    assert server.requests == 2
    assert len(answers[0].action) == 2
    assert (answers[0].extras["seen"] == 0).all()


def test_a_stop_ends_a_wait():
    agent, _ = make()
    match = "inference: the program stops"
    with slot_file(agent, 1, 2) as file, pytest.raises(Stopped, match=match):
        slot_client(agent, file, 0, Stopping()).inference(TWO, timestep(2))


def test_what_a_client_writes_does_not_stop_the_server():
    """Random headers, rows and counts, in a slot beside one whose state counts its steps."""
    agent, inferencer = make(served=True, max_streams=4, batch_sizes=(2, 4))
    rng = np.random.default_rng(0)
    stop = threading.Event()
    with slot_file(agent, 2, 2) as file, serving(inferencer, agent, file):
        client = slot_client(agent, file, 0)
        client.inference(TWO, timestep(2, StepType.FIRST))

        def fuzz():
            header, rows, _ = file.slot(1)
            while not stop.is_set():
                header[:] = rng.integers(0, 256, len(header))
                if rng.random() < 0.7:
                    header[:4].view(np.int32)[0] = rng.integers(-1, 4)
                rows[:] = rng.integers(0, 256, len(rows))
                file.requested[1] = rng.integers(0, 2**32)
                file.bell.ring()

        thread, raised = in_thread(fuzz)
        for step in range(1, 300):
            answer = client.inference(TWO, timestep(2))
            assert (answer.extras["seen"] == step).all()
        stop.set()
        thread.join(20)
    assert not raised


def test_files_are_checked_and_removed():
    agent, _ = make()
    messages = InferenceMessages(agent)
    with slot_file(agent, 2, 2) as file:
        (shared,) = [each for each in segment.existing() if each.name == file.name]
        assert stat.S_IMODE(shared.path.stat().st_mode) == 0o600
        assert shared.is_finished(segment.REQUESTS)
        assert not shared.is_table
        with pytest.raises(ConfigError, match=r"there is a request file .* already"):
            SlotFile.create(file.name, file.sizes, Process.this())
        with pytest.raises(SpecError, match=r"the layout .* is not this program's"):
            SlotFile.open(file.name, Sizes(messages, 3, 2), 0.0)
        with pytest.raises(SpecError, match="of 3 rows; a slot has room for 2"):
            slot_client(agent, file, 0).inference(np.arange(3, dtype=np.int32), timestep(3))
    with pytest.raises(DeadlineExceeded, match="no request file"):
        SlotFile.open(file.name, file.sizes, 0.0)
    with pytest.raises(ConfigError, match=r"needs .* take --topology=heavy_env"):
        SlotFile.create("large", Sizes(messages, 2**20, 2**20), Process.this())
    dead = Process(2**22 + 1, 1)
    SlotFile.create("of-the-dead", Sizes(messages, 1, 1), dead)
    assert "of-the-dead" in segment.sweep()


@pytest.mark.full
@pytest.mark.timeout(200)
def test_clients_are_killed_at_any_moment():
    """Processes are killed while they ask and while they wait; the others are served."""
    agent, inferencer = make(served=True, max_streams=8, batch_sizes=(2, 4, 8))
    inferencer.warm_up()
    with slot_file(agent, 4, 2) as file, serving(inferencer, agent, file) as server:
        script = str(ROOT / "tests" / "distrl" / "inference" / "killed_clients.py")
        done = subprocess.run(
            [sys.executable, script, file.name],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    assert server.requests > 100
