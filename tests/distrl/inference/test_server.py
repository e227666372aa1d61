"""The inferencer and its server: versions, state by stream, batches, isolated errors."""

import concurrent.futures
import math
import threading

import jax
import numpy as np
import pytest

from distrl.errors import DeadlineExceeded, SpecError
from distrl.inference.messages import InferenceMessages
from distrl.inference.server import InferenceServer, RemoteInferencer
from distrl.runtime import codec as codec_module
from distrl.runtime.codec import Codec
from distrl.variables.client import VariableClient
from distrl.variables.service import RemoteVariables, VariableService
from tests.support.inference import Source, make, timestep
from tests.support.waiting import until


@pytest.mark.parametrize("most_fields_bytes", [codec_module._MAX_FIELDS_BYTES, 0])
def test_codec_keeps_values_and_refuses_other_lengths(monkeypatch, most_fields_bytes):
    monkeypatch.setattr(codec_module, "_MAX_FIELDS_BYTES", most_fields_bytes)
    struct = {
        "a": jax.ShapeDtypeStruct((3,), np.int8),
        "b": jax.ShapeDtypeStruct((), np.float32),
        "c": jax.ShapeDtypeStruct((2, 2), np.int32),
        "d": jax.ShapeDtypeStruct((), np.bool_),
        "empty": jax.ShapeDtypeStruct((2, 0), np.float32),
    }
    codec = Codec(struct, "message")
    nest = {
        "a": np.arange(15, dtype=np.int8).reshape(5, 3),
        "b": np.arange(5, dtype=np.float32),
        "c": np.arange(20, dtype=np.int32).reshape(5, 2, 2),
        "d": np.arange(5) % 2 == 0,
        "empty": np.zeros((5, 2, 0), np.float32),
    }
    data = codec.pack(nest, 5)
    assert len(data) == 5 * codec.row_bytes
    jax.tree.map(np.testing.assert_array_equal, codec.unpack(data, 5), nest)
    rows = np.frombuffer(data, np.uint8).reshape(5, codec.row_bytes)
    jax.tree.map(np.testing.assert_array_equal, jax.jit(codec.from_rows)(rows), nest)
    again = np.asarray(jax.jit(lambda r: codec.to_rows(codec.from_rows(r)))(rows)).tobytes()
    jax.tree.map(np.testing.assert_array_equal, codec.unpack(again, 5), nest)
    jax.tree.map(np.testing.assert_array_equal, codec.unpack(b"head" + data, 5, 4), nest)
    columns = codec.columns(np.frombuffer(data, np.uint8), 5)
    assert not any(column.flags.writeable for column in columns)
    jax.tree.map(np.testing.assert_array_equal, codec.nest(columns), nest)
    assert jax.tree.map(len, codec.unpack(b"", 0)) == dict.fromkeys(nest, 0)
    with pytest.raises(SpecError, match="message: expected 4 rows"):
        codec.unpack(data, 4)


def test_variables_cross_as_bytes_and_are_packed_once():
    agent, _ = make()
    source = Source()
    service = VariableService(source, agent)
    client = VariableClient(RemoteVariables(service, agent))
    assert client.version == 0
    source.version = 7
    first = service.get_variables(0)
    assert service.get_variables(0)[1] is first[1]
    assert service.get_variables(7) is None
    client.refresh()
    assert (client.version, int(client.params["version"])) == (7, 7)


def test_variables_in_the_background_raise_where_they_are_used():
    class Failing(Source):
        def get_variables(self, newer_than):
            if newer_than >= 0:
                raise ValueError("gone")
            return super().get_variables(newer_than)

    client = VariableClient(Failing(), background=True)
    with pytest.raises(ValueError, match="gone"):
        for _ in range(1000):
            client.update()
            threading.Event().wait(0.01)
    client.close()


def test_parameters_are_refreshed_every_sync_interval():
    source = Source()
    _, inferencer = make(source, sync_interval=3)
    versions = []
    for _ in range(9):
        source.version += 1
        versions.append(inferencer.inference(np.arange(2, dtype=np.int32), timestep(2)).version)
    assert versions == [0, 0, 0, 0, 5, 5, 5, 8, 8]


@pytest.mark.parametrize("batch_sizes", [(), (4, 8)])
def test_state_is_kept_by_stream_in_any_order(batch_sizes):
    """Random subsets in random order; FIRST and a new life begin at zero."""
    _, inferencer = make(batch_sizes=batch_sizes)
    rng = np.random.default_rng(0)
    count, life = np.zeros(8), np.zeros(8, int)
    for _ in range(200):
        streams = rng.permutation(8)[: rng.integers(1, 9)].astype(np.int32)
        first = rng.random(len(streams)) < 0.2
        life[streams] += rng.random(len(streams)) < 0.1
        fresh = life[streams] != getattr(inferencer, "_test_life", np.full(8, -1))[streams]
        count[streams] = np.where(first | fresh, 0, count[streams])
        step = timestep(len(streams))
        step = step._replace(step_type=np.where(first, 0, 1).astype(np.int8))
        answer = inferencer.inference(streams, step, life[streams].copy(), with_state=True)
        np.testing.assert_array_equal(answer.extras["seen"], count[streams])
        np.testing.assert_array_equal(answer.state[:, 0], count[streams])
        count[streams] += 1
        seen = getattr(inferencer, "_test_life", np.full(8, -1)).copy()
        seen[streams] = life[streams]
        inferencer._test_life = seen


def test_more_streams_than_max_streams_are_refused():
    _, inferencer = make(max_streams=4)
    with pytest.raises(ValueError, match="one more than the 4"):
        inferencer.inference(np.arange(5, dtype=np.int32), timestep(5))


def serve(inferencer, agent, timeout=20.0, max_batch=16):
    messages = InferenceMessages(agent)
    server = InferenceServer(inferencer, messages, max_batch, timeout)
    return server, RemoteInferencer(server, messages)


def test_a_bad_request_fails_alone():
    agent, inferencer = make(served=True)
    server, remote = serve(inferencer, agent)
    with pytest.raises(SpecError, match="inference request"):
        server.inference(b"\x02\0\0\0" + b"\0" * 20)
    remote.inference(np.arange(2, dtype=np.int32), timestep(2))


@pytest.mark.parametrize("timeout", [1e18, math.inf])
def test_a_request_may_wait_as_long_as_it_takes(timeout):
    agent, inferencer = make(served=True)
    gate, entered = threading.Event(), threading.Event()

    class Slow:
        def infer_encoded(self, *args):
            entered.set()
            assert gate.wait(20)
            return inferencer.infer_encoded(*args)

    server, remote = serve(Slow(), agent, timeout=timeout)
    streams = np.arange(2, dtype=np.int32)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        first = pool.submit(remote.inference, streams, timestep(2))
        assert entered.wait(20)
        second = pool.submit(remote.inference, streams, timestep(2))
        until(lambda: second.done() or server._waiting, "the second request")
        gate.set()
        assert second.result(20).version == first.result(20).version


def test_a_stuck_batch_ends_at_the_deadline_and_the_next_is_served():
    agent, inferencer = make(served=True)
    gate = threading.Event()
    entered = threading.Event()

    class Stuck:
        def infer_encoded(self, *args):
            entered.set()
            gate.wait(20)
            return inferencer.infer_encoded(*args)

    _, remote = serve(Stuck(), agent, timeout=0.2)
    streams = np.arange(2, dtype=np.int32)
    first = threading.Thread(target=remote.inference, args=(streams, timestep(2)))
    first.start()
    assert entered.wait(10)
    with pytest.raises(DeadlineExceeded, match="no answer for 2 streams"):
        remote.inference(streams, timestep(2))
    gate.set()
    first.join(20)
    remote.inference(streams, timestep(2))
