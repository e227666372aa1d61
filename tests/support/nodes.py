"""Programs of the substrate that `--substrate=auto` takes here, of a test's own nodes."""

import types
from collections.abc import Callable
from typing import Any

from distrl.programs.substrate import AUTO, BUILTIN, node_context, resolve
from distrl.programs.substrate.builtin import CallNode, Program

SUBSTRATE = resolve(AUTO)
"""Continuous integration runs the tests with Launchpad installed, and without."""

_KEY = "of a test"


class _Runs:
    """A node's object that has no other method."""

    def __init__(self, function: Callable[..., None], *arguments: Any):
        self._function, self._arguments = function, arguments

    def run(self) -> None:
        self._function(*self._arguments)


def new_program(name: str) -> Any:
    if SUBSTRATE == BUILTIN:
        return Program(name)
    import launchpad as lp

    return lp.Program(name)


def call_node(constructor: type, *arguments: Any) -> Any:
    """A node whose object's methods others call."""
    if SUBSTRATE == BUILTIN:
        return CallNode(constructor, *arguments)
    import launchpad as lp

    return lp.CourierNode(constructor, *arguments)


def function_node(function: Callable[..., None], *arguments: Any) -> Any:
    """A node that calls a function, and that nobody calls."""
    if SUBSTRATE == BUILTIN:
        return CallNode(_Runs, function, *arguments)
    import launchpad as lp

    return lp.PyNode(function, *arguments)


def new_server(port: int, **methods: Callable[..., Any]) -> Any:
    """Serves functions to this machine, as nodes serve their methods, until it is deleted."""
    if SUBSTRATE == BUILTIN:
        from distrl.programs.substrate import rpc

        return rpc.RpcServer(types.SimpleNamespace(**methods), f"127.0.0.1:{port}", _KEY)
    import courier

    server = courier.Server(port=port)
    for name, function in methods.items():
        server.Bind(name, function)
    server.Start()
    return server


def new_client(port: int, timeout: float) -> Any:
    """Returns a client of a `new_server`. Args: timeout: deadline of each call in seconds."""
    if SUBSTRATE == BUILTIN:
        from distrl.programs.substrate import rpc

        return rpc.RpcClient(f"127.0.0.1:{port}", _KEY, timeout)
    import courier

    return courier.Client(f"localhost:{port}", call_timeout=timeout)


def stop_program() -> None:
    """Ends the program without a reason; called in a node."""
    if SUBSTRATE == BUILTIN:
        node_context.program_stopper()()
        return
    import launchpad as lp

    lp.stop()


def on_stop(handler: Callable[[], None]) -> None:
    """Has a node, in whose main thread this is called, call a function when the program stops."""
    if SUBSTRATE == BUILTIN:
        node_context.stop_event().wait()
        handler()
        return
    import launchpad as lp

    lp.register_stop_handler(handler)
    lp.wait_for_stop()
