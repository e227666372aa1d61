"""Keeps Courier's and Reverb's servers where other machines and other users cannot reach them.

Both always listen on all interfaces, which cannot be configured, and a Courier server executes what
it receives. So their calls of `bind` are redirected, in the process that serves, to a function that
replaces "all interfaces": for the ports in `SOCKETS` by a Unix socket, whose folder only its user
can enter, and for others by 127.0.0.1. It leaves other addresses unchanged. Where that cannot be
done, nothing is started, unless the user allows open ports (see `OPEN`).
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
from distrl.runtime.posix import LIBC

OPEN = "DISTRL_OPEN_PORTS"  # "1" lets the servers listen on all interfaces

# By port: the path of the Unix socket on which a server of this port listens instead. Forked
# processes inherit it.
SOCKETS: dict[int, str] = {}

# By package: its extension module with the server. By module: the function that makes a server.
_SERVERS = {"courier": "courier.python.server", "reverb": "reverb.libpybind"}
_MAKERS = {
    "courier.python.server": ("BuildAndStart",),
    "reverb.libpybind": ("Server", "__init__"),
}
# By family: size of an address, position of the host in it, the hosts that mean all interfaces, and
# loopback.
_MAPPED = bytes(10) + b"\xff\xff"  # before an IPv4 address in an IPv6 one
_LOCALHOST = bytes([127, 0, 0, 1])
_ADDRESS: dict[int, tuple[int, slice, tuple[bytes, ...], bytes]] = {
    socket.AF_INET: (16, slice(4, 8), (bytes(4),), _LOCALHOST),
    socket.AF_INET6: (28, slice(8, 24), (bytes(16), _MAPPED + bytes(4)), _MAPPED + _LOCALHOST),
}


def loopback_for(address: bytes) -> bytes | None:
    """Returns the loopback address to use instead of all interfaces; None for other addresses.

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


def _port(address: bytes) -> int:
    return int.from_bytes(address[2:4], "big")


def _bind_unix(fd: int, path: str) -> None:
    """Makes `fd`, a new TCP socket, a Unix socket that is bound to `path`. Raises OSError.

    The file of a server that has ended is replaced; that of one that still listens is not.
    """
    with socket.socket(socket.AF_UNIX) as unix:
        unix.setblocking(False)
        try:
            unix.bind(path)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or _is_served(path):
                raise
            os.unlink(path)
            unix.bind(path)
        os.dup2(unix.fileno(), fd, inheritable=False)


def _is_served(path: str) -> bool:
    """Returns whether a process listens at the path of a Unix socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        # EAGAIN: more connections are waiting than fit.
        return probe.connect_ex(path) in (0, errno.EAGAIN)


# Both servers call it in the thread that makes them; ctypes acquires the GIL for it. It must live
# as long as the process, since GOT entries may have its address.
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_uint32, use_errno=True)
def _bind(fd: int, address: int | None, length: int) -> int:
    try:
        data = ctypes.string_at(address, length) if address else b""
        replacement = loopback_for(data)
        if replacement is None:
            return LIBC.bind(fd, ctypes.c_void_p(address), length)
        path = SOCKETS.get(_port(data))
        if path is not None:
            _bind_unix(fd, path)
            return 0
        # Reverb sets SO_REUSEPORT: a second server could then bind the port too, and clients would
        # reach either one.
        off = ctypes.c_int(0)
        share = (fd, socket.SOL_SOCKET, socket.SO_REUSEPORT, ctypes.byref(off), 4)
        return LIBC.setsockopt(*share) or LIBC.bind(fd, replacement, length)
    except BaseException as error:  # else ctypes returns 0, and `listen` binds all interfaces
        ctypes.set_errno(getattr(error, "errno", None) or errno.EACCES)
        return -1


def left_open() -> bool:
    """Returns whether the user lets the servers listen on all interfaces."""
    return os.environ.get(OPEN) == "1"


def check() -> None:
    """Raises ConfigError where `close_ports` would raise it."""
    if not left_open():
        _all_slots()


def close_ports() -> Callable[[], None]:
    """Makes all servers of this process that are created from now on listen as `SOCKETS` says.

    This includes servers of packages that are imported later, and of forked processes.

    Returns:
      A function that undoes it, for servers that are created later.

    Raises:
      ConfigError: it is not possible here.
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
    replacement = ctypes.cast(_bind, ctypes.c_void_p).value
    assert replacement is not None
    for shared, slot in _all_slots(*imported):
        try:
            previous = got_hook.replace(shared, slot, replacement)
        except OSError as error:
            raise _cannot(f"{shared.path}: {error}") from error
        if previous != replacement:
            undo.callback(got_hook.replace, shared, slot, previous)


def _make_one_at_a_time(undo: contextlib.ExitStack, module: ModuleType) -> None:
    """Makes the creation of servers mutually exclusive, to avoid a deadlock.

    For its first server gRPC tests, within `pthread_once`, whether ::1 can be bound. Meanwhile
    `_bind` may hand the GIL to another thread. If that thread creates a server too, it waits for
    the first one while it holds the GIL, for which the first one waits.
    """
    *path, name = _MAKERS[module.__name__]
    owner = functools.reduce(getattr, path, module)
    make, lock = getattr(owner, name), threading.Lock()
    if hasattr(make, "__wrapped__"):
        return

    @functools.wraps(make)
    def make_exclusively(*args: Any, **kwargs: Any) -> Any:
        with lock:
            return make(*args, **kwargs)

    setattr(owner, name, make_exclusively)
    undo.callback(setattr, owner, name, make)


def _all_slots(name: str = "", path: str = "") -> list[tuple[got_hook.SharedObject, int]]:
    """Returns the GOT entries for `bind` in the packages of the loaded servers.

    Args:
      name: name of a server's module that is being imported; "": all that are loaded.
      path: path of this module.
    """
    servers = {name: path} if name else {}
    for package, server in _SERVERS.items():
        if package in sys.modules and not name:
            module = sys.modules.get(server)
            if module is None or not module.__file__:
                raise _cannot(f"{package} has no module {server}, as its known versions have")
            servers[server] = module.__file__
    if not servers:
        return []
    if not got_hook.is_supported():
        raise _cannot(f"{platform.system()} on {platform.machine()} is not supported")
    loaded = got_hook.loaded()
    slots = []
    for server, file in servers.items():
        root = os.path.dirname(os.path.realpath(file))
        for _ in range(server.count(".") - 1):
            root = os.path.dirname(root)
        objects = [shared for shared in loaded if shared.path.startswith(root + os.sep)]
        pairs = [(shared, slot) for shared in objects for slot in got_hook.slots(shared, "bind")]
        if os.path.realpath(file) not in [shared.path for shared, _ in pairs]:
            raise _cannot(f"{file} does not import `bind` as expected")
        slots += pairs
    return slots


def _cannot(reason: str) -> ConfigError:
    return ConfigError(
        f"cannot close Courier's and Reverb's ports to other machines: {reason}; {OPEN}=1 leaves "
        "them open: anyone who can reach them can then run commands as you"
    )
