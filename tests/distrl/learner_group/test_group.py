"""A learner's processes connect, agree, and notice each other's end; most tests use threads."""

import concurrent.futures
import errno
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
from distrl.learner_group import process_group
from distrl.learner_group.devices import Devices
from distrl.learner_group.group import SingleProcessGroup
from distrl.learner_group.process_group import ProcessGroup, join
from distrl.learner_group.rendezvous import send
from distrl.learning.random_batches import random_batch
from distrl.runtime.sockets import joined_address, listen
from distrl.specs import EnvironmentSpec
from distrl.types import TIME_FIELDS, Sample
from tests.support.ipv6 import needs_ipv6

ABOUT = {"agent": "A"}
WAIT_S = 20.0


@pytest.fixture
def address(request):
    """A free address, of IPv4 unless the test says otherwise."""
    host = getattr(request, "param", "127.0.0.1")
    with listen(host, 0) as free:
        return joined_address(host, free.getsockname()[1])


@pytest.fixture
def in_threads():
    """Runs `function(index)` in a thread for each index; returns the futures."""
    executors = []

    def run(count, function):
        executors.append(concurrent.futures.ThreadPoolExecutor(count))
        return [executors[-1].submit(function, index) for index in range(count)]

    yield run
    for executor in executors:
        executor.shutdown(wait=False)


def meet(in_threads, address, count=3, **options):
    futures = in_threads(count, lambda index: ProcessGroup(address, count, index, ABOUT, **options))
    return [future.result(WAIT_S) for future in futures]


@pytest.mark.parametrize("address", ["127.0.0.1", needs_ipv6("::1")], indirect=True)
def test_all_get_the_same_answers(in_threads, address):
    groups = meet(in_threads, address)

    def work(index):
        with groups[index] as group:
            answers = [group.agree(True, (index, round_)) for round_ in range(50)]
            answers.append(group.agree(index != 1, (0, 0)))
            group.leave()  # all have left
            return answers

    for future in in_threads(3, work):
        *answers, last = future.result(WAIT_S)
        assert answers == [(True, [3, 3 * round_]) for round_ in range(50)]
        assert last == (False, [0, 0])


@pytest.mark.parametrize("address", [needs_ipv6("::1")], indirect=True)
def test_jaxs_service_has_an_address_of_ipv6(in_threads, address, monkeypatch):
    services = []
    monkeypatch.setattr(
        process_group.jax.distributed,
        "initialize",
        lambda service, *_, **__: services.append(service),
    )
    monkeypatch.setattr(process_group.jax, "default_backend", lambda: "gpu")
    first, other = in_threads(2, lambda index: join(address, 2, index, ABOUT))
    with first.result(WAIT_S) as group, other.result(WAIT_S):
        assert sorted(services)[1] == f"[::1]:{group.port}"


def test_a_process_that_leaves_ends_the_updates_of_all(in_threads, address):
    groups = meet(in_threads, address)

    def work(index):
        with groups[index] as group:
            if index == 1:
                return group.leave()
            return group.agree(True, (1, 2)).proceed

    began = time.monotonic()
    assert [future.result(WAIT_S) for future in in_threads(3, work)] == [False, None, False]
    assert time.monotonic() - began < 10.0


def test_a_group_of_one_agrees_with_itself():
    with SingleProcessGroup() as group:
        assert group.agree(True, (3, 4)) == (True, [3, 4])
        nest = {"w": np.ones(2)}
        assert group.broadcast(nest) is nest
        group.leave()


def test_processes_start_in_any_order_and_other_connections_are_closed(in_threads, address):
    host, port = address.rsplit(":", 1)

    def start(index):
        time.sleep((0.3, 0.0, 0.6)[index])
        if index == 2:
            for data in (b"GET / HTTP/1.0\r\n\r\n", b"[]\n", b'{"index": "x"}\n', b""):
                with socket.create_connection((host, int(port)), timeout=WAIT_S) as other:
                    other.sendall(data)
        return ProcessGroup(address, 3, index, ABOUT)

    groups = [future.result(WAIT_S) for future in in_threads(3, start)]
    assert len({group.port for group in groups}) == 1
    for group in groups:
        group.close()


def test_a_process_of_another_experiment_is_refused_in_one_line(in_threads, address):
    futures = in_threads(2, lambda index: ProcessGroup(address, 2, index, {"agent": "AB"[index]}))
    for future in futures:
        with pytest.raises(ConfigError) as caught:
            future.result(WAIT_S)
        message = "belongs to another learner: its agent is B, that of process 0 is A"
        assert message in str(caught.value)


@pytest.mark.parametrize(
    ("host", "hint"),
    [
        ("localhost", "; from other hosts 127.0.0.1 is not reached: give an address that is"),
        ("0.0.0.0", ""),
    ],
)
def test_a_name_that_leads_each_host_to_itself_is_told(address, host, hint):
    """As on Debian, whose /etc/hosts has 127.0.1.1 for the host's own name."""
    address = address.replace("127.0.0.1", host)
    with pytest.raises(DeadlineExceeded) as caught:
        ProcessGroup(address, 2, 0, ABOUT, timeout=0.01)
    assert str(caught.value) == (
        f"learner process 0 waits at {address}: of 2 processes these are missing: 1{hint}"
    )


def test_a_missing_process_is_named(in_threads, address):
    def start(index):
        return ProcessGroup(address, 3, index, ABOUT, timeout=1.0) if index < 2 else None

    first, second, _ = in_threads(3, start)
    with pytest.raises(DeadlineExceeded, match=r"of 3 processes these are missing: 2; "):
        first.result(WAIT_S)
    with pytest.raises((DeadlineExceeded, PeerError), match=r"learner process 0 \(127.0.0.1"):
        second.result(WAIT_S)


def test_no_process_0(address):
    with pytest.raises(DeadlineExceeded, match=r"process 1 found no process 0 at 127.0.0.1"):
        ProcessGroup(address, 2, 1, ABOUT, timeout=0.5)


def test_an_invalid_address():
    with pytest.raises(ConfigError, match=r"expected HOST:PORT, got 'here'"):
        ProcessGroup("here", 2, 0, ABOUT)
    with pytest.raises(ConfigError, match=r"learner process 0 cannot listen at 192.0.2.1:2000"):
        ProcessGroup("192.0.2.1:2000", 2, 0, ABOUT)


def fail_one(in_threads, groups, failing):
    """Has one process fail after an update; checks that the others name it."""

    def work(index):
        with groups[index] as group:
            group.agree(True)
            if index == failing:
                raise ZeroDivisionError("its own error")
            group.agree(True)

    for index, future in enumerate(in_threads(len(groups), work)):
        error = future.exception(WAIT_S)
        if index == failing:
            assert isinstance(error, ZeroDivisionError)
        else:
            assert isinstance(error, PeerError)
            assert str(error).startswith(f"learner process {failing} (127.0.0.1:")
            assert str(error).endswith("has failed")


@pytest.mark.parametrize("failing", [0, 2])
def test_a_process_that_fails_is_named_to_all(in_threads, address, failing):
    fail_one(in_threads, meet(in_threads, address), failing)


@pytest.mark.parametrize("failing", [0, 2])
def test_a_connection_stays_open_until_the_last_message_is_sent(
    in_threads, address, failing, monkeypatch
):
    def send_late(connection, message):
        if "failed" in message:
            time.sleep(0.5)  # the scheduler lets the listening thread run first
        send(connection, message)

    monkeypatch.setattr(process_group, "send", send_late)
    fail_one(in_threads, meet(in_threads, address), failing)


def test_a_broken_connection_is_read_to_its_end_before_it_is_judged(
    in_threads, address, monkeypatch
):
    groups = meet(in_threads, address)

    def fail_to_send(connection, message):
        if connection is groups[1]._sockets[0]:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        send(connection, message)

    def work(index):
        with groups[index] as group:
            if index == 0:
                time.sleep(0.3)  # its last message comes after process 1's error
                group.close()
            else:
                group.agree(True)

    monkeypatch.setattr(process_group, "send", fail_to_send)
    monkeypatch.setattr(process_group, "_CAUSE_S", 10.0)
    for future in in_threads(3, work)[1:]:
        error = future.exception(WAIT_S)
        assert isinstance(error, PeerError)
        assert str(error).startswith("learner process 0 (127.0.0.1:")
        assert str(error).endswith("has failed")


def test_a_failure_is_the_cause_also_if_another_connection_ends_first(
    in_threads, address, monkeypatch
):
    monkeypatch.setattr(process_group, "_GRACE_S", 5.0)
    groups = meet(in_threads, address)
    groups[2]._sockets[0].shutdown(socket.SHUT_RDWR)  # as XLA's abort does
    time.sleep(0.3)
    send(groups[1]._sockets[0], {"failed": True})
    cause = r"^learner process 1 \(127\.0\.0\.1:\d+\) has failed$"
    with groups[0] as group, pytest.raises(PeerError, match=cause):
        group.agree(True)


def test_an_error_caused_by_a_lost_process_is_blamed_on_it(in_threads, address):
    groups = meet(in_threads, address, count=2)

    def work(index):
        with groups[index] as group:
            if index == 0:
                raise RuntimeError("Gloo all-reduce failed: Connection closed by peer")
            group._sockets[0].shutdown(socket.SHUT_RDWR)  # as the kernel does for a dead process

    error = in_threads(2, work)[0].exception(WAIT_S)
    assert isinstance(error, PeerError)
    assert str(error).startswith("learner process 1 (127.0.0.1:")
    assert str(error).endswith("has ended")
    assert "Gloo" in str(error.__cause__)


def test_on_stuck_is_called_if_the_main_thread_does_not_notice(in_threads, address, monkeypatch):
    monkeypatch.setattr(process_group, "_STUCK_S", 0.2)
    messages, heard = [], threading.Event()

    def on_stuck(message):  # called in each of the two processes
        messages.append(message)
        if "learner process 1 (127.0.0.1" in message:
            heard.set()

    groups = meet(in_threads, address, count=2, on_stuck=on_stuck)
    groups[1]._sockets[0].shutdown(socket.SHUT_RDWR)
    assert heard.wait(WAIT_S), messages


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
    rows = slice(index * BATCH // count, (index + 1) * BATCH // count)
    with join(address, count, index, ABOUT) as learner_group:
        devices = Devices(BATCH // count)
        learner = Learner(agent, table, seed=index, devices=devices, learner_group=learner_group)
        learner.share()
        for i in range(UPDATES):
            batch = make_batch(agent, i % 10)
            part = {
                name: jax.tree.map(
                    lambda x, name=name: x[:, rows] if name in TIME_FIELDS else x[rows], nest
                )
                for name, nest in batch._asdict().items()
            }
            keys = np.arange(BATCH, dtype=np.uint64)[rows]
            learner.update(Sample(batch._replace(**part), keys))
        if index == 0:
            learner.leave()
        else:
            with pytest.raises(Stopped):
                learner.update(Sample(batch._replace(**part), keys))
    state = learner.state()
    result = (state.params, state.agent, learner.variables, state.trained_steps, table.sent)
    path.write_bytes(pickle.dumps(jax.tree.map(np.asarray, result)))


@pytest.mark.full
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
    want = (state.params, state.agent, learner.variables, state.trained_steps)
    sent = []
    for index, child in enumerate(children):
        assert child.wait(100.0) == 0
        *got, priorities = pickle.loads((tmp_path / str(index)).read_bytes())
        for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
        sent.append(priorities)
    assert len(table.sent) == UPDATES - 1  # those of the last update come with the next one
    for (keys, priorities), *parts in zip(table.sent, *sent, strict=True):
        np.testing.assert_array_equal(keys, np.concatenate([part[0] for part in parts]))
        joined = np.concatenate([part[1] for part in parts])
        np.testing.assert_allclose(joined, priorities, rtol=1e-3, atol=1e-5)
