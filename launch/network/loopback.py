"""Keeps Courier's and Reverb's servers on loopback, out of other machines' reach.

Both always listen on all interfaces, and take no other address; and a Courier server calls what it
is sent. So their calls of `bind`, in the process that serves, are redirected to one that puts
127.0.0.1 in the place of "all interfaces", and leaves other addresses as they are. Where that
cannot be done, nothing is started, unless the user allows open ports (see `OPEN`).
"""

import contextlib
import ctypes
import errno
import functools
import importlib.machinery
import os
import platform
import socket
import sys
import threading
from collections.abc import Callable
from types import ModuleType
from typing import Any

from distrl.errors import ConfigError
from distrl.launch.network import got_hook

OPEN = "DISTRL_OPEN_PORTS"  # "1" lets the servers listen on all interfaces

# By package, the extension module that serves, and what in it makes a server.
_SERVERS = {"courier": "courier.python.server", "reverb": "reverb.libpybind"}
_MAKERS = {
    "courier.python.server": ("BuildAndStart",),
    "reverb.libpybind": ("Server", "__init__"),
}
# By family: size of an address, place of the host in it, what there is all interfaces, loopback.
_MAPPED = bytes(10) + b"\xff\xff"  # before an IPv4 address in an IPv6 one
_LOCALHOST = bytes([127, 0, 0, 1])
_ADDRESS: dict[int, tuple[int, slice, tuple[bytes, ...], bytes]] = {
    socket.AF_INET: (16, slice(4, 8), (bytes(4),), _LOCALHOST),
    socket.AF_INET6: (28, slice(8, 24), (bytes(16), _MAPPED + bytes(4)), _MAPPED + _LOCALHOST),
}

_libc = ctypes.CDLL(None, use_errno=True)


def loopback_for(address: bytes) -> bytes | None:
    """The address on loopback in the place of one on all interfaces; None for any other.

    Args:
      address: a `struct sockaddr`.
    """
    family = int.from_bytes(address[:2], sys.byteorder)
    if family not in _ADDRESS:
        return None
    size, host, everywhere, loopback = _ADDRESS[family]
    if len(address) < size or address[host] not in everywhere:
        return None
    return address[: host.start] + loopback + address[host.stop :]


# ctypes takes the GIL for it: both servers call it in the thread that makes them. It lives as long
# as the process, since a slot may hold its address.
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, use_errno=True)
def _bind(fd: int, address: int | None, length: int) -> int:
    try:
        changed = loopback_for(ctypes.string_at(address, length)) if address else None
        if changed is None:
            return _libc.bind(fd, ctypes.c_void_p(address), length)
        # Reverb asks to share its port: then a second server on it would be accepted too, and
        # clients land on either.
        off = ctypes.c_int(0)
        share = (fd, socket.SOL_SOCKET, socket.SO_REUSEPORT, ctypes.byref(off), 4)
        return _libc.setsockopt(*share) or _libc.bind(fd, changed, length)
    except BaseException:  # else ctypes says 0, and `listen` takes any port on all interfaces
        ctypes.set_errno(errno.EACCES)
        return -1


def left_open() -> bool:
    """Whether the user has the servers listen on all interfaces."""
    return os.environ.get(OPEN) == "1"


def check() -> None:
    """Raises ConfigError where `close_ports` would."""
    if not left_open():
        _all_slots()


def close_ports() -> Callable[[], None]:
    """Has all servers that this process makes from now on listen on loopback only.

    Those of packages that are imported later too, and those of its forks.

    Returns:
      What undoes it, for servers made later.

    Raises:
      ConfigError: it cannot be done here.
    """
    undo = contextlib.ExitStack()
    if left_open():
        return undo.close
    _redirect(undo)
    for server in _MAKERS:
        if server in sys.modules:
            _make_one_at_a_time(undo, sys.modules[server])
    loader: Any = importlib.machinery.ExtensionFileLoader
    create = loader.create_module

    @functools.wraps(create)
    def create_module(self: Any, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = create(self, spec)
        if spec.name in _SERVERS.values():
            _redirect(undo, spec.name, spec.origin or "")
            _make_one_at_a_time(undo, module)
        return module

    loader.create_module = create_module
    undo.callback(setattr, loader, "create_module", create)
    return undo.close


def _redirect(undo: contextlib.ExitStack, *imported: str) -> None:
    ours = ctypes.cast(_bind, ctypes.c_void_p).value
    assert ours is not None
    for shared, slot in _all_slots(*imported):
        try:
            before = got_hook.replace(shared, slot, ours)
        except OSError as error:
            raise _cannot(f"{shared.path}: {error}") from error
        if before != ours:
            undo.callback(got_hook.replace, shared, slot, before)


def _make_one_at_a_time(undo: contextlib.ExitStack, module: ModuleType) -> None:
    """Has the threads that make servers take turns.

    With its first server gRPC tries, within `pthread_once`, whether ::1 can be bound. `_bind` may
    hand the GIL to another thread meanwhile. If that makes a server too it waits for the first one,
    and keeps the GIL, which the first one waits for.
    """
    *path, name = _MAKERS[module.__name__]
    owner = functools.reduce(getattr, path, module)
    make, turn = getattr(owner, name), threading.Lock()
    if hasattr(make, "__wrapped__"):
        return

    @functools.wraps(make)
    def in_turn(*args: Any, **kwargs: Any) -> Any:
        with turn:
            return make(*args, **kwargs)

    setattr(owner, name, in_turn)
    undo.callback(setattr, owner, name, make)


def _all_slots(name: str = "", path: str = "") -> list[tuple[got_hook.SharedObject, int]]:
    """Where the loaded servers' packages keep the address of `bind`.

    Args:
      name, path: of a server's module that is being imported.
    """
    serving = {name: path} if name else {}
    for package, server in _SERVERS.items():
        if package in sys.modules and not name:
            module = sys.modules.get(server)
            if module is None or not module.__file__:
                raise _cannot(f"{package} has no module {server}, as its known versions have")
            serving[server] = module.__file__
    if not serving:
        return []
    if not got_hook.is_supported():
        raise _cannot(f"{platform.system()} on {platform.machine()} is not known")
    loaded = got_hook.loaded()
    found = []
    for server, file in serving.items():
        root = os.path.dirname(os.path.realpath(file))
        for _ in range(server.count(".") - 1):
            root = os.path.dirname(root)
        own = [each for each in loaded if each.path.startswith(root + os.sep)]
        pairs = [(shared, slot) for shared in own for slot in got_hook.slots(shared, "bind")]
        if os.path.realpath(file) not in [shared.path for shared, _ in pairs]:
            raise _cannot(f"{file} does not import `bind` as was expected")
        found += pairs
    return found


def _cannot(why: str) -> ConfigError:
    return ConfigError(
        f"Courier's and Reverb's ports cannot be kept from other machines: {why}; {OPEN}=1 leaves "
        "them open: anyone who reaches them then runs commands as you"
    )
