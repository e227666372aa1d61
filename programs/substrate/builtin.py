"""A program and its nodes without Launchpad: the few things of it that our programs use."""

import contextlib
import secrets
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from distrl.errors import ConfigError
from distrl.programs.substrate import BUILTIN, node_context

ADDRESS_NAME = "builtin"  # names the addresses at which nodes are called
_FINISH_S = 10.0  # seconds that calls in progress have when their node has returned


class Address:
    """Where a node is called, which the launcher decides. Args: name: its kind."""

    def __init__(self, name: str = ADDRESS_NAME) -> None:
        self.name = name
        self._builder: Any = None

    def bind(self, builder: Any) -> None:
        """Sets what gives the address. Args: builder: has a method `build`, which returns it."""
        self._builder = builder

    def resolve(self) -> str:
        """Returns the address, "unix:/path"."""
        if self._builder is None:
            raise RuntimeError("an address is known only when its program has been launched")
        return str(self._builder.build())


class LaunchContext:
    """What the launcher gives a node: the function that ends the program."""

    def __init__(self) -> None:
        self.program_stopper: Callable[..., None] = lambda **_: None

    def initialize(
        self, launch_type: object, launch_config: object, program_stopper: Callable[..., None]
    ) -> None:
        """Sets how the node ends its program. Args: launch_type, launch_config: not used."""
        del launch_type, launch_config
        self.program_stopper = program_stopper


class Handle:
    """A node as others know it before they run, where it becomes an `rpc.Client`."""

    def __init__(self, address: Address, key: str) -> None:
        self._address, self._key = address, key
        self._timeout: float | None = None

    def set_client_kwargs(self, call_timeout: float | None) -> None:
        """Sets the deadline of the client's calls in seconds."""
        self._timeout = call_timeout

    def dereference(self) -> Any:
        """Returns the client; in the node that calls."""
        from distrl.programs.substrate.rpc import RpcClient

        client = RpcClient(self._address.resolve(), self._key, self._timeout)
        node_context.manager().on_close(client.close)
        return client


class CallNode:
    """A node whose object's public methods other nodes call.

    The object is made in the node; its `run`, if it has one, is what the node does.

    Args:
      constructor: makes the object from `args` and `kwargs`; handles among them, also in
        collections, arrive as clients.

    Attributes:
      addresses: where it is called.
      launch_context: what the launcher gives it.
    """

    input_handles: tuple[()] = ()  # those that the launcher must connect

    def __init__(self, constructor: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
        self._constructor, self._args, self._kwargs = constructor, args, kwargs
        self.addresses = [Address()]
        self.launch_context = LaunchContext()
        self.key = ""  # which callers must know

    @property
    def function(self) -> Callable[[], None]:
        """What the node's process or thread runs."""
        return self._run

    def allocate_address(self, address: Address) -> None:
        """Adds an address, which the launcher binds and the node's object serves by itself."""
        self.addresses.append(address)

    def create_handle(self) -> Handle:
        """Returns a handle, for a program's nodes only."""
        return Handle(self.addresses[0], self.key)

    def _run(self) -> None:
        from distrl.programs.substrate.rpc import RpcServer

        node_context.enter(self.launch_context.program_stopper)
        instance = self._constructor(*_clients(self._args), **_clients(self._kwargs))
        server = RpcServer(instance, self.addresses[0].resolve(), self.key)
        # If `run` fails, the server continues until the failure has been reported: otherwise the
        # callers' errors would be reported before their cause.
        node_context.manager().on_close(server.stop)
        if hasattr(instance, "run"):
            instance.run()
        else:
            node_context.stop_event().wait()
        server.stop(_FINISH_S)


def _clients(argument: Any) -> Any:
    """Returns an argument with clients instead of handles."""
    if isinstance(argument, Handle):
        return argument.dereference()
    if isinstance(argument, Mapping):
        return {key: _clients(value) for key, value in argument.items()}
    if isinstance(argument, tuple) and hasattr(argument, "_fields"):
        return type(argument)(*map(_clients, argument))
    if isinstance(argument, (tuple, list)):
        return type(argument)(map(_clients, argument))
    return argument


class Program:
    """Nodes in groups. Only peers that know the program's key can call them.

    Attributes:
      name: its name.
      groups: the nodes by their groups' labels, in order.
    """

    substrate = BUILTIN

    def __init__(self, name: str) -> None:
        self.name = name
        self.groups: dict[str, list[Any]] = {}
        self._key = secrets.token_hex(32)
        self._group: str | None = None
        # Once, before the forks; it starts no threads yet.
        import distrl.programs.substrate.rpc  # noqa: F401

    @contextlib.contextmanager
    def group(self, label: str) -> Iterator[None]:
        """While entered, adds nodes to this group."""
        self._group = label
        try:
            yield
        finally:
            self._group = None

    def add_node(self, node: CallNode) -> Handle:
        """Adds a node to the current group, and returns a handle of it."""
        if self._group is None or not isinstance(node, CallNode):
            raise ConfigError("a builtin program has nodes of type CallNode, each in a group")
        node.key = self._key
        self.groups.setdefault(self._group, []).append(node)
        return node.create_handle()
