"""Parameters on their way to readers: bytes for those elsewhere, files for those of the machine."""

import functools
import mmap
import os
import types

import jax
import numpy as np
import pytest

from distrl import presets
from distrl.errors import SpecError
from distrl.runtime.codec import Codec
from distrl.shared_memory.board import Board
from distrl.shared_memory.process import Process
from distrl.shared_memory.published import PublishedVersions, shared_memory_domain
from distrl.variables import packed
from distrl.variables.packed import ParamsCodec
from distrl.variables.relay import VariableRelay
from distrl.variables.service import RemoteVariables, VariableService

DOMAIN = shared_memory_domain()


class Large:
    """An agent whose parameters all have the same value, and its source."""

    def __init__(self):
        self.version, self.asked = 0, []

    def initial_params(self, rng):
        return {"a": np.zeros((300, 100), np.float32), "b": np.zeros(3, np.int8)}

    def get_variables(self, newer_than):
        if newer_than == self.version:
            return None
        self.asked.append(self.version)
        return self.version, jax.tree.map(lambda a: a + self.version, self.initial_params(None))


@pytest.fixture
def files():
    versions = PublishedVersions(f"test-{os.getpid()}-packed", Process.this())
    yield versions
    versions.close()


@pytest.fixture
def agent(monkeypatch):
    monkeypatch.setattr(packed, "_LEAST_FILE", 1000)
    return Large()


def values(answer):
    version, params = answer
    assert all(np.all(np.asarray(leaf) == version) for leaf in jax.tree.leaves(params))
    return version


def test_a_reader_of_the_machine_maps_what_others_get_as_bytes(agent, files):
    service = VariableService(agent, agent, files)
    reader = RemoteVariables(service, agent)
    for version in range(4):
        agent.version = version
        assert values(reader.get_variables(version - 1)) == version
        assert isinstance(service.get_variables(-1, DOMAIN)[1], str)
        elsewhere = service.get_variables(-1, "elsewhere")
        assert isinstance(elsewhere[1], bytes)
        assert service.get_variables(-1)[1] is elsewhere[1]
        assert (
            values(RemoteVariables(VariableRelay(service, 0.0), agent).get_variables(-1)) == version
        )
    assert agent.asked == [0, 1, 2, 3]  # each is packed once
    assert reader.get_variables(3) is None


def test_who_comes_too_late_for_a_file_asks_again(agent, files):
    """Parameters that are replaced all the time come as bytes in the end."""
    service = VariableService(agent, agent, files)
    asked = []

    class Late:
        def get_variables(self, newer_than, reader):
            answer = service.get_variables(newer_than, reader)
            asked.append(type(answer[1]))
            for _ in range(2):  # two newer versions before it looks
                agent.version += 1
                service.get_variables(-1)
            return answer

    assert values(RemoteVariables(Late(), agent).get_variables(-1)) == 4
    assert asked == [str, str, bytes]


def test_without_memory_for_a_file_they_are_bytes(agent, files, monkeypatch):
    monkeypatch.setattr(files, "publish", lambda *arguments: None)
    service = VariableService(agent, agent, files)
    assert isinstance(service.get_variables(-1, DOMAIN)[1], bytes)


def test_small_ones_are_bytes(files):
    agent = Large()  # 120 kB
    assert isinstance(VariableService(agent, agent, files).get_variables(-1, DOMAIN)[1], bytes)


@pytest.mark.parametrize("agent", ["sac", "td3"])
def test_those_of_agents_that_update_often_are_small(agent):
    assert ParamsCodec(presets.experiment("Pendulum-v1", agent).make_agent()).is_small


def test_who_asks_a_closed_service_gets_bytes(agent, files):
    service = VariableService(agent, agent, files)
    path = service.get_variables(-1, DOMAIN)[1]
    service.close()
    assert not os.path.exists(path)
    assert values(RemoteVariables(service, agent).get_variables(-1)) == 0


@pytest.mark.parametrize("least_file", [1, 1 << 18])
def test_small_and_large_parameters_arrive_as_they_were(monkeypatch, least_file):
    monkeypatch.setattr(packed, "_LEAST_FILE", least_file)
    params = {
        "bool": np.array([True, False, True]),
        "bytes": np.arange(-2, 3, dtype=np.int8),
        "half": np.array([[0.5, -1.0]], np.float16),
        "none": np.zeros((2, 0), np.float32),
        "scalar": np.array(-7, np.int32),
        "single": np.array([[np.pi, np.inf], [-0.0, 1e-38]], np.float32),
    }
    codec = packed.ParamsCodec(types.SimpleNamespace(initial_params=lambda _: params))
    memory = np.empty(codec.nbytes, np.uint8)
    codec.put(params, memory)
    made = codec.to_device(memory.tobytes())
    for name, leaf in params.items():
        assert isinstance(made[name], jax.Array)
        assert (made[name].dtype, made[name].shape) == (leaf.dtype, leaf.shape)
        assert np.asarray(made[name]).tobytes() == leaf.tobytes()
    with pytest.raises(SpecError, match="expected 1 rows"):
        codec.to_device(memory.tobytes() + b"0")


@pytest.mark.parametrize("counts", [(600_000_000,), (300_000_000, 300_000_000)])
def test_parameters_may_have_more_bytes_than_a_c_int(counts):
    """Memory that nobody touches takes no room."""
    struct = {str(i): jax.ShapeDtypeStruct((count,), np.float32) for i, count in enumerate(counts)}
    codec = Codec(struct, "parameters")
    assert codec.row_bytes == 2_400_000_000
    data = np.frombuffer(mmap.mmap(-1, codec.row_bytes), np.uint8)
    for number, column in enumerate(codec.columns(data, 1)):
        column[0, -1] = number + 0.5
    leaves = codec.unpack(data, 1).values()
    assert [leaf.shape for leaf in leaves] == [(1, count) for count in counts]
    ends = [leaf[0, [0, -1]].tolist() for leaf in leaves]
    assert ends == [[0.0, number + 0.5] for number in range(len(counts))]


class Learns(Large):
    """Tells when it has other parameters, as a learner does."""

    def __init__(self):
        super().__init__()
        newest = functools.partial(self.get_variables, -1)
        self.published = types.SimpleNamespace(on_change=None, current_to_copy=newest)


def test_small_ones_are_read_without_asking_until_their_writer_ends(files):
    learner, calls = Learns(), []
    name = f"test-{os.getpid()}-newest"

    def serve():
        make_board = functools.partial(Board.create, name, Process.this())
        return VariableService(learner, learner, files, make_board)

    def ask(newer_than, reader):
        calls.append(newer_than)
        return service.get_variables(newer_than, reader)

    service = serve()
    reader = RemoteVariables(types.SimpleNamespace(get_variables=ask), learner)
    assert not reader.is_immediate()
    for version in range(4):
        learner.version = version
        learner.published.on_change()
        assert values(reader.get_variables(version - 1)) == version
        assert reader.get_variables(version) is None
        assert reader.is_immediate()
    assert calls == [-1]
    assert isinstance(service.get_variables(-1, "elsewhere")[1], bytes)
    learner.version = 2
    service = serve()  # it has resumed, in another process
    assert values(reader.get_variables(3)) == 2
    assert calls == [-1, 3] and reader.is_immediate()
    service.close()
    assert values(reader.get_variables(-1)) == 2
    assert not reader.is_immediate()


def test_small_ones_are_asked_for_where_there_is_no_memory_for_a_board(files):
    learner = Learns()
    service = VariableService(learner, learner, files, lambda nbytes: None)
    reader = RemoteVariables(service, learner)
    for version in range(2):
        learner.version = version
        assert values(reader.get_variables(version - 1)) == version
    assert not reader.is_immediate() and learner.published.on_change is None
