"""An inference service and its clients in one process, over each transport."""

import contextlib
import itertools
import os
import tempfile
import threading
import time

import numpy as np

from distrl import specs
from distrl.inference.frame_service import FrameInferenceClient, FrameInferenceServer
from distrl.inference.messages import InferenceMessages
from distrl.inference.server import InferenceServer, RemoteInferencer
from distrl.inference.slot_client import SlotInferencer
from distrl.inference.slot_server import SlotServer
from distrl.inference.slots import Sizes, SlotFile
from distrl.inferencer import Inferencer
from distrl.runtime.heartbeat import Heartbeat
from distrl.shared_memory import segment
from distrl.shared_memory.process import Process
from distrl.testing import CheckingConfig, CountingEnvironment
from distrl.types import StepType
from distrl.variables.client import VariableClient

ENV = CountingEnvironment(0)
SPEC = specs.EnvironmentSpec(ENV.observation_spec(), ENV.action_spec())
TRANSPORTS = ("calls", "frames", "slots")
KEY = "the key of a program"
_numbers = itertools.count()


class Source:
    """A source of parameters."""

    def __init__(self):
        self.version = 0

    def get_variables(self, newer_than):
        if self.version <= newer_than:
            return None
        return self.version, {"version": np.int32(self.version)}


def timestep(n, kind=StepType.MID):
    """Returns time steps `[n]`."""
    step = specs.zeros(specs.timestep_struct(SPEC), n)
    return step._replace(step_type=np.full(n, kind, np.int8))


def make(source=None, served=False, **kwargs):
    """Returns an agent and its inferencer."""
    agent = CheckingConfig().make(SPEC)
    kwargs["codec"] = InferenceMessages(agent) if served else None
    variables = VariableClient(source or Source(), kwargs.pop("sync_interval", 1))
    options = {"seed": 0, "max_streams": 16, **kwargs}
    return agent, Inferencer(agent, variables, **options)


class Patient:
    """What a client knows of a server that will be there, for 60 seconds."""

    life = 0

    def request_version(self, version):
        raise AssertionError("nobody asks")

    def check(self, what, began):
        assert time.monotonic() < began + 60.0, f"{what}: no answer"

    def wait_for_restart(self, life, what, error):
        raise error


@contextlib.contextmanager
def slot_file(agent, count, rows):
    """A file of slots of this process."""
    sizes = Sizes(InferenceMessages(agent), count, rows)
    name = f"test-inference-{os.getpid()}-{next(_numbers)}"
    file = SlotFile.create(name, sizes, Process.this())
    try:
        yield file
    finally:
        for shared in segment.existing():
            if shared.name == name:
                shared.path.unlink()


@contextlib.contextmanager
def serving(inferencer, agent, file, life=0):
    """A server of slots in a thread."""
    heartbeat = Heartbeat()
    heartbeat.begin(life)
    server = SlotServer(inferencer, InferenceMessages(agent), file, heartbeat)
    stop = threading.Event()
    thread = threading.Thread(target=server.serve, args=(stop,))
    thread.start()
    try:
        yield server
    finally:
        stop.set()
        file.bell.ring()
        thread.join(20)
        assert not thread.is_alive()


@contextlib.contextmanager
def frame_server(server, messages, rows):
    """Serves an inference server by frames; yields the address."""
    with tempfile.TemporaryDirectory() as folder:
        address = f"unix:{folder}/inferencer"
        served = FrameInferenceServer(server, messages, rows, address, KEY)
        try:
            yield address
        finally:
            served.close()


def frame_client(address, messages, rows, timeout=20.0, stop=None, key=KEY):
    """Returns a client of a server by frames."""
    stop = stop or threading.Event()
    return FrameInferenceClient(messages, rows, address, key, timeout, stop)


def slot_client(agent, file, index, server=None):
    """Returns the client of a slot."""
    return SlotInferencer(file, index, InferenceMessages(agent), server or Patient())


@contextlib.contextmanager
def service(transport, inferencer, agent, count, rows):
    """A service; yields its server and a client for each of `count` callers of `rows` streams."""
    if transport == "calls":
        messages = InferenceMessages(agent)
        server = InferenceServer(inferencer, messages, count * rows, 60.0)
        yield server, [RemoteInferencer(server, messages) for _ in range(count)]
        return
    if transport == "frames":
        messages = InferenceMessages(agent)
        server = InferenceServer(inferencer, messages, count * rows, 60.0)
        with frame_server(server, messages, rows) as address:
            clients = [frame_client(address, messages, rows) for _ in range(count)]
            yield server, [RemoteInferencer(client, messages) for client in clients]
            for client in clients:
                client.close()
        return
    with slot_file(agent, count, rows) as file, serving(inferencer, agent, file) as server:
        yield server, [slot_client(agent, file, index) for index in range(count)]
