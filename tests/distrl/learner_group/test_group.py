"""The processes of one learner meet, agree, and notice each other's end; here most are threads."""

import concurrent.futures
import os
import pickle
import socket
import threading
import time

import jax
import numpy as np
import pytest

from distrl.agents.dqn import DQNConfig
from distrl.agents.networks import NetworkConfig
from distrl.errors import ConfigError, DeadlineExceeded, PeerError, Stopped
from distrl.learner import Learner
from distrl.learner_group.devices import Devices
from distrl.learner_group.group import LearnerGroup, join
from distrl.specs import EnvironmentSpec
from distrl.testing import random_batch
from distrl.types import TIME_FIELDS, Sample

ABOUT = {"agent": "A"}
WAIT_S = 20.0


@pytest.fixture
def address():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def at_once():
    """Runs functions of an index in threads; gives their futures."""
    executors = []

    def run(count, function):
        executors.append(concurrent.futures.ThreadPoolExecutor(count))
        return [executors[-1].submit(function, index) for index in range(count)]

    yield run
    for executor in executors:
        executor.shutdown(wait=False)


def meet(at_once, address, count=3, **more):
    found = at_once(count, lambda index: LearnerGroup(address, count, index, ABOUT, **more))
    return [future.result(WAIT_S) for future in found]


def test_all_say_and_all_hear(at_once, address):
    learner_group = meet(at_once, address)

    def work(index):
        with learner_group[index] as mine:
            said = [mine.agree(True, (index, turn)) for turn in range(50)]
            said.append(mine.agree(index != 1, (0, 0)))
            mine.leave(2)  # has no one left to tell
            return said

    for future in at_once(3, work):
        *said, last = future.result(WAIT_S)
        assert said == [(True, [3, 3 * turn]) for turn in range(50)]
        assert last == (False, [0, 0])


def test_they_come_in_any_order_and_strangers_are_left_alone(at_once, address):
    host, port = address.rsplit(":", 1)

    def come(index):
        time.sleep((0.3, 0.0, 0.6)[index])
        if index == 2:
            for data in (b"GET / HTTP/1.0\r\n\r\n", b"[]\n", b'{"index": "x"}\n', b""):
                with socket.create_connection((host, int(port)), timeout=WAIT_S) as stranger:
                    stranger.sendall(data)
        return LearnerGroup(address, 3, index, ABOUT)

    learner_group = [future.result(WAIT_S) for future in at_once(3, come)]
    assert len({each.port for each in learner_group}) == 1
    for each in learner_group:
        each.close()


def test_a_process_of_another_experiment_is_refused_in_one_line(at_once, address):
    found = at_once(2, lambda index: LearnerGroup(address, 2, index, {"agent": "AB"[index]}))
    for future in found:
        with pytest.raises(ConfigError) as caught:
            future.result(WAIT_S)
        assert "is not of this learner: its agent is B, that of process 0 is A" in str(caught.value)


def test_who_is_missing_is_named(at_once, address):
    def come(index):
        return LearnerGroup(address, 3, index, ABOUT, timeout=1.0) if index < 2 else None

    first, second, _ = at_once(3, come)
    with pytest.raises(DeadlineExceeded, match=r"of 3 processes there is no 2"):
        first.result(WAIT_S)
    with pytest.raises((DeadlineExceeded, PeerError), match=r"learner process 0 \(127.0.0.1"):
        second.result(WAIT_S)


def test_no_process_0(address):
    with pytest.raises(DeadlineExceeded, match=r"process 1 found no process 0 at 127.0.0.1"):
        LearnerGroup(address, 2, 1, ABOUT, timeout=0.5)


def test_an_address_that_cannot_be():
    with pytest.raises(ConfigError, match=r"expected HOST:PORT, got 'here'"):
        LearnerGroup("here", 2, 0, ABOUT)
    with pytest.raises(ConfigError, match=r"learner process 0 cannot listen at 192.0.2.1:2000"):
        LearnerGroup("192.0.2.1:2000", 2, 0, ABOUT)


@pytest.mark.parametrize("ends", [0, 2])
def test_who_has_failed_is_named_to_all(at_once, address, ends):
    learner_group = meet(at_once, address)

    def work(index):
        with learner_group[index] as mine:
            mine.agree(True)
            if index == ends:
                raise ZeroDivisionError("its own")
            mine.agree(True)

    for index, future in enumerate(at_once(3, work)):
        error = future.exception(WAIT_S)
        if index == ends:
            assert isinstance(error, ZeroDivisionError)
        else:
            assert isinstance(error, PeerError)
            assert str(error).startswith(f"learner process {ends} (127.0.0.1:")
            assert str(error).endswith("has failed")


def test_what_its_end_has_broken_is_blamed_on_it(at_once, address):
    learner_group = meet(at_once, address, count=2)

    def work(index):
        with learner_group[index] as mine:
            if index == 0:
                raise RuntimeError("Gloo all-reduce failed: Connection closed by peer")
            mine._sockets[0].shutdown(socket.SHUT_RDWR)  # as the kernel does for one that dies

    error = at_once(2, work)[0].exception(WAIT_S)
    assert isinstance(error, PeerError)
    assert str(error).startswith("learner process 1 (127.0.0.1:")
    assert str(error).endswith("has ended")
    assert "Gloo" in str(error.__cause__)


def test_a_main_thread_that_does_not_notice_is_told_of(at_once, address, monkeypatch):
    monkeypatch.setattr("distrl.learner_group.group._STUCK_S", 0.2)
    told, heard = [], threading.Event()

    def on_stuck(message):  # each of the two may be told of the other
        told.append(message)
        if "learner process 1 (127.0.0.1" in message:
            heard.set()

    learner_group = meet(at_once, address, count=2, on_stuck=on_stuck)
    learner_group[1]._sockets[0].shutdown(socket.SHUT_RDWR)
    assert heard.wait(WAIT_S), told


class Prioritized:
    is_prioritized = True

    def __init__(self):
        self.sent = []

    def update_priorities(self, keys, priorities):
        self.sent.append((keys, priorities))


BATCH, UPDATES = 8, 100


def make_agent():
    from dm_env import specs

    spec = EnvironmentSpec(specs.Array((3,), np.float32), specs.DiscreteArray(4))
    return DQNConfig(NetworkConfig(hidden_sizes=(16,)), n_step=2).make(spec)


def make_batch(agent, seed):
    rng = np.random.default_rng(seed)
    probability = rng.uniform(0.001, 0.1, BATCH).astype(np.float32)
    return random_batch(agent, 5, BATCH, seed)._replace(probability=probability)


def learn(address, index, count, path):
    """One process's part of the learning, with its rows of each batch."""
    jax.config.update("jax_disable_most_optimizations", True)
    agent, table = make_agent(), Prioritized()
    own = slice(index * BATCH // count, (index + 1) * BATCH // count)
    with join(address, count, index, ABOUT) as learner_group:
        devices = Devices(BATCH // count)
        learner = Learner(agent, table, seed=index, devices=devices, learner_group=learner_group)
        learner.share()
        for i in range(UPDATES):
            batch = make_batch(agent, i % 10)
            part = {
                name: jax.tree.map(
                    lambda x, name=name: x[:, own] if name in TIME_FIELDS else x[own], nest
                )
                for name, nest in batch._asdict().items()
            }
            keys = np.arange(BATCH, dtype=np.uint64)[own]
            learner.update(Sample(batch._replace(**part), keys))
        if index == 0:
            learner.leave()
        else:
            with pytest.raises(Stopped):
                learner.update(Sample(batch._replace(**part), keys))
    state = learner.state()
    found = (state.params, state.agent, learner.variables, state.env_steps, table.sent)
    path.write_bytes(pickle.dumps(jax.tree.map(np.asarray, found)))


def test_two_processes_learn_what_one_learns(elsewhere, address, tmp_path):
    env = {**os.environ, "XLA_FLAGS": "--xla_force_host_platform_device_count=1"}
    children = [
        elsewhere(learn, address, index, 2, tmp_path / str(index), env=env) for index in (0, 1)
    ]
    agent, table = make_agent(), Prioritized()
    learner = Learner(agent, table, seed=0)
    for i in range(UPDATES):
        learner.update(Sample(make_batch(agent, i % 10), np.arange(BATCH, dtype=np.uint64)))
    state = learner.state()
    want = (state.params, state.agent, learner.variables, state.env_steps)
    sent = []
    for index, child in enumerate(children):
        assert child.wait(100.0) == 0
        *got, its = pickle.loads((tmp_path / str(index)).read_bytes())
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want)):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
        sent.append(its)
    for (keys, priorities), *parts in zip(table.sent, *sent):
        np.testing.assert_array_equal(keys, np.concatenate([part[0] for part in parts]))
        found = np.concatenate([part[1] for part in parts])
        np.testing.assert_allclose(found, priorities, rtol=1e-3, atol=1e-5)
