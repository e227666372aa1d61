"""What all transports of an inference service do alike."""

import threading

import jax
import numpy as np
import pytest

from distrl.types import StepType
from tests.support.inference import TRANSPORTS, Source, make, service, timestep

pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)


def test_answers_are_those_of_an_inferencer_in_the_same_process(transport):
    source, other = Source(), Source()
    agent, inferencer = make(source, served=True, sync_interval=3, batch_sizes=(2, 4))
    _, local = make(other, sync_interval=3, batch_sizes=(2, 4))
    rng = np.random.default_rng(0)
    with service(transport, inferencer, agent, 2, 4) as (_, clients):
        for call in range(40):
            source.version = other.version = call
            streams = rng.permutation(8)[: rng.integers(1, 5)].astype(np.int32)
            step = timestep(len(streams), StepType.MID)
            step = step._replace(
                step_type=rng.integers(0, 2, len(streams)).astype(np.int8),
                prev_action=rng.integers(0, 2, len(streams)).astype(np.int32),
                reward=rng.random(len(streams)).astype(np.float32),
            )
            life, with_state = int(rng.integers(0, 3)), bool(rng.integers(0, 2))
            got = clients[call % 2].inference(streams, step, life, with_state)
            expected = local.inference(streams, step, life, with_state)
            jax.tree.map(np.testing.assert_array_equal, got, expected)
            assert (got.state is None) == (not with_state)


def test_requests_have_any_life_of_a_stream(transport):
    agent, inferencer = make(served=True)
    with service(transport, inferencer, agent, 1, 4) as (_, clients):
        streams, step = np.arange(4, dtype=np.int32), timestep(4)
        for life in (0, -(2**31), 2**31 - 1):
            for calls in range(2):
                answer = clients[0].inference(streams, step, life)
                assert (answer.extras["seen"] == calls).all()


def test_every_caller_gets_its_own_rows(transport):
    """Many threads; the state of each one's streams counts its calls."""
    agent, inferencer = make(served=True, max_streams=64, batch_sizes=(4, 8, 16, 32))
    inferencer.warm_up()
    compiled = inferencer._stateful._cache_size()
    wrong = []

    def caller(index, remote):
        streams = (np.arange(4) + 4 * index).astype(np.int32)
        for step in range(200):
            kind = StepType.FIRST if step == 0 else StepType.MID
            answer = remote.inference(streams, timestep(4, kind), 0, with_state=step % 3 == 0)
            if not (answer.extras["seen"] == step).all():
                wrong.append((index, step))
            if step % 3 == 0 and not (answer.state[:, 0] == step).all():
                wrong.append((index, step, "state"))

    with service(transport, inferencer, agent, 8, 4) as (server, clients):
        threads = [threading.Thread(target=caller, args=each) for each in enumerate(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    assert not wrong
    assert server.requests == 8 * 200
    assert server.batches <= server.requests
    assert server.times()["batches"][:3] == [8 * 200, server.batches, 8 * 200 * 4]
    assert inferencer._stateful._cache_size() == compiled  # nothing was compiled again


def test_an_answer_stays_what_it_was(transport):
    agent, inferencer = make(served=True)
    with service(transport, inferencer, agent, 1, 2) as (_, (client,)):
        streams = np.arange(2, dtype=np.int32)
        first = client.inference(streams, timestep(2, StepType.FIRST), with_state=True)
        kept = jax.tree.map(np.copy, first)
        client.inference(streams, timestep(2), with_state=True)
        jax.tree.map(np.testing.assert_array_equal, first, kept)


def test_a_request_that_fails_fails_alone(transport):
    agent, inferencer = make(served=True, max_streams=2)
    with service(transport, inferencer, agent, 2, 2) as (_, (good, bad)):
        streams = np.arange(2, dtype=np.int32)
        good.inference(streams, timestep(2, StepType.FIRST))
        with pytest.raises((ValueError, RuntimeError), match="stream 2 is one more than the 2"):
            bad.inference(streams + 2, timestep(2))
        assert (good.inference(streams, timestep(2)).extras["seen"] == 1).all()
