"""Calls in one process, by a server that is started twice; prints what came of them as JSON.

In a process of its own: gRPC's threads would forbid the forks of other tests.
"""

import concurrent.futures
import json
import math
import os
import pathlib
import random
import resource
import socket
import tempfile
import threading
import time

import grpc
import numpy as np

from distrl.programs.substrate.rpc import CallError, RpcClient, RpcServer
from distrl.runtime.messages import encode

MAX_BYTES = 1 << 20


class Node:
    """What is served."""

    def __init__(self):
        self.released = threading.Event()
        self.calls = 0

    def add(self, first, second=1):
        self.calls += 1
        return first + second

    def fail(self, text):
        raise ValueError(text)

    def wait(self):
        self.released.wait(20.0)
        return "released"

    def echo(self, value):
        return value

    def bad_result(self):
        return object()

    def run(self):
        raise AssertionError("run is not served")

    def _private(self):
        raise AssertionError("it is not served")


def error_of(call, *args):
    try:
        return f"returned {call(*args)!r}"
    except CallError as error:
        return f"{error.code.name if error.code else None}: {error}"


def changed_answers(path, key):
    """Returns the kinds of errors in which answers of random or changed bytes end."""
    rng, good = random.Random(0), encode((True, [1.5, "text", np.ones(3)]))

    def answer(request, context):
        data = bytearray(good if rng.random() < 0.7 else rng.randbytes(rng.randrange(200)))
        for _ in range(rng.randrange(1, 5)):
            if data:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        return bytes(data[: rng.randrange(len(data) + 1)] if rng.random() < 0.3 else data)

    class Answers(grpc.GenericRpcHandler):
        def service(self, call):
            return grpc.unary_unary_rpc_method_handler(answer)

    pool = concurrent.futures.ThreadPoolExecutor(1)
    server = grpc.server(pool, handlers=[Answers()])
    server.add_insecure_port(f"unix:{path}")
    server.start()
    client, kinds = RpcClient(f"unix:{path}", key, 5.0), set()
    for call in range(200):
        try:
            client.futures.ask().result(5.0) if call % 2 else client.ask()
        except Exception as error:
            kinds.add(type(error).__name__)
    client.close()
    server.stop(0.0).wait(5.0)
    return sorted(kinds)


def raw(path, data):
    """Sends bytes that are no call, and reads until the server hangs up or says nothing."""
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(0.05)
        stranger.connect(path)
        try:
            stranger.sendall(data)
            while stranger.recv(65536):
                pass
        except OSError:
            pass


def main():
    folder = tempfile.mkdtemp()
    path = os.path.join(folder, "s:15000")
    address, key = f"unix:{path}", "a" * 64
    client, told = RpcClient(address, key, 10.0), {}
    early = client.futures.add(1)  # before there is a server
    node = Node()
    server = RpcServer(node, address, key, MAX_BYTES)
    told["early"] = early.result(10.0)
    told["sum"], told["named"] = client.add(1), client.add(1, second=3)
    value = [(1, b"x", None), {"a": 2.5}]
    told["echo"] = client.echo(value) == value
    told["array"] = client.echo(np.arange(6.0).reshape(2, 3)).tolist()
    told["error"] = error_of(client.fail, "no such unroll ä")
    told["long_error"] = len(error_of(client.fail, "x" * 10**6))
    told["bad_result"] = error_of(client.bad_result)
    told["run"] = error_of(client.run)
    private = grpc.insecure_channel(address).unary_unary("/distrl/_private")
    try:
        private(b"", timeout=5.0, metadata=(("distrl-key", key),))
    except grpc.RpcError as error:
        told["private"] = error.code().name
    future = client.futures.wait()
    told["pending"] = not future.done()
    node.released.set()
    told["future"] = future.result(10.0)
    try:
        client.futures.fail("later").result(10.0)
    except CallError as error:
        told["future_error"] = str(error).splitlines()[0]
    node.released.clear()
    told["patient"] = [RpcClient(address, key, limit).add(1) for limit in (1e10, 1e18, math.inf)]
    hasty = RpcClient(address, key, 0.2)
    told["deadline"] = error_of(hasty.wait)
    try:
        client.futures.wait().result(0.05)
    except concurrent.futures.TimeoutError:
        told["result_timeout"] = True
    node.released.set()
    told["large"] = error_of(client.echo, bytes(2 * MAX_BYTES))[:40]

    calls, before = node.calls, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    rng = random.Random(0)
    preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
    frame = b"\x7f\xff\xff\x00\x00\x00\x00\x00\x01"  # a frame that claims 8 MB
    for case in range(30):
        raw(path, [b"", preface, preface + frame][case % 3] + rng.randbytes(rng.randrange(3000)))
    for wrong in ("", "a" * 63, "b" * 64):
        told.setdefault("stranger", []).append(error_of(RpcClient(address, wrong, 5.0).add, 1)[:15])
    channel = grpc.insecure_channel(address)
    method = channel.unary_unary("/distrl/add")
    for metadata in ((), (("distrl-key", key),)):
        for _ in range(20):
            try:
                method(rng.randbytes(rng.randrange(500)), timeout=5.0, metadata=metadata)
            except grpc.RpcError as error:
                told.setdefault("garbage", set()).add(error.code().name)
    told["garbage"] = sorted(told["garbage"])
    told["changed_answers"] = changed_answers(os.path.join(folder, "false"), key)
    told["grew_kb"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    told["no_effect"] = node.calls == calls
    told["still"] = client.add(2)

    server.stop()
    told["gone"] = error_of(RpcClient(address, key, 0.3).add, 1)[:17]
    waiting = client.futures.add(40)
    server = RpcServer(node, address, key, MAX_BYTES)
    told["again"] = waiting.result(10.0)
    start = time.perf_counter()
    for _ in range(200):
        client.add(1)
    told["call_us"] = (time.perf_counter() - start) * 5000
    server.stop()
    pathlib.Path(path).unlink(missing_ok=True)
    print(json.dumps(told), flush=True)
    os._exit(0)


main()
