"""JAX traces of a process on demand: a file says what to trace, and a signal says to read it.

The process that is traced reads the signal in a thread, whatever its main thread does.
"""

import contextlib
import gzip
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from distrl.errors import ConfigError
from distrl.launch.supervision.signals import ignore
from distrl.runtime.files import read_dict, write_json

TRACE_SIGNAL = int(signal.SIGRTMIN) + 6
PERFETTO = "perfetto_trace.json.gz"
_FOLDER = Path("/dev/shm")  # the same for all processes of a user, whatever their TMPDIR
_DONE = "done.json"
_WRITE_S = 60.0  # for the process to write its trace
_POLL_S = 0.1
_TRACING = threading.Lock()


def take_trace_orders() -> None:
    """Makes `TRACE_SIGNAL` reach the wake-up descriptor of this process. Main thread only."""
    signal.signal(TRACE_SIGNAL, ignore)
    signal.siginterrupt(TRACE_SIGNAL, False)


def obey_trace_order() -> None:
    """Starts the trace that was ordered from this process, in a separate thread."""
    threading.Thread(target=_obey, name="distrl-trace", daemon=True).start()


def _obey() -> None:
    order = _take_order(_order_file(os.getpid()))
    if order is None:
        return
    folder, error = Path(order["folder"]), None
    try:
        with _TRACING:
            _trace(folder, float(order["seconds"]))
    except Exception as problem:  # for the one who asked, not for the node
        error = f"{type(problem).__name__}: {problem}"
    try:
        write_json(folder / _DONE, {"error": error}, durable=False)
    except OSError as problem:  # a full disk, perhaps: who asked for the trace gives up
        line = f"distrl: a trace cannot be written: {error or problem}"
        print(line, file=sys.stderr, flush=True)


def _trace(folder: Path, seconds: float) -> None:
    if not uses_jax():
        raise ConfigError("it computes nothing with JAX")
    with _without_tensorflow():
        _record(folder, seconds)
    for path in folder.rglob("*.trace.json.gz"):
        with gzip.open(path) as file:
            trace = json.load(file)
        trace.pop("metadata", None)  # Perfetto does not read it
        with gzip.open(path.with_name(PERFETTO), "wt") as file:
            json.dump(trace, file)


def _record(folder: Path, seconds: float) -> None:
    """Records without Python's calls: they would slow everything down, and py-spy shows them."""
    import jax

    profiler: Any = jax.profiler
    if hasattr(profiler, "ProfileOptions"):
        options = profiler.ProfileOptions()
        options.python_tracer_level = 0
        profiler.start_trace(folder, profiler_options=options)
        time.sleep(seconds)
        profiler.stop_trace()
        return
    from jax._src.lib import xla_client  # JAX 0.5 has no public options

    options = xla_client.profiler.ProfileOptions()
    options.python_tracer_level = 0
    session = xla_client.profiler.ProfilerSession(options)
    time.sleep(seconds)
    session.export(session.stop(), str(folder))


@contextlib.contextmanager
def _without_tensorflow() -> Iterator[None]:
    """Keeps the profiler from importing TensorFlow, which takes seconds, to announce itself to it.

    It writes a line to stderr instead.
    """
    name = "tensorflow.python.profiler.trace"
    hidden = "tensorflow" not in sys.modules
    if hidden:
        sys.modules[name] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        if hidden:
            sys.modules.pop(name, None)


def uses_jax() -> bool:
    """Returns whether JAX has computed anything in this process, or could right away."""
    bridge = sys.modules.get("jax._src.xla_bridge")
    return bridge is not None and bool(bridge.backends_are_initialized())


def _order_file(pid: int) -> Path:
    return _FOLDER / f"distrl-trace-{pid}.json"


def _take_order(path: Path) -> dict[str, Any] | None:
    """Returns an order and removes it; None unless it is this user's own file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with os.fdopen(descriptor) as file:
        if os.fstat(file.fileno()).st_uid != os.geteuid():
            return None
        try:
            return dict(json.load(file))
        except ValueError:
            return None
        finally:
            path.unlink(missing_ok=True)


def takes_orders(pid: int) -> bool:
    """Returns whether a process has a handler for `TRACE_SIGNAL`, which would end any other."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return False
    caught = next((line.split()[1] for line in lines if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (TRACE_SIGNAL - 1) & 1)


def order_trace(pid: int, folder: Path, seconds: float) -> str | None:
    """Traces a process of this user and waits until the trace is written.

    Args:
      pid: the process, which must take orders.
      folder: where to write it.
      seconds: how long.

    Returns:
      None; or why there is no trace.
    """
    path = _order_file(pid)
    path.unlink(missing_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"folder": str(folder.absolute()), "seconds": seconds}, file)
    deadline = time.monotonic() + seconds + _WRITE_S
    try:
        os.kill(pid, TRACE_SIGNAL)
        while not (folder / _DONE).exists():
            if not Path(f"/proc/{pid}").is_dir():
                return f"process {pid} has ended"
            if time.monotonic() > deadline:
                return f"process {pid} has written no trace within {seconds + _WRITE_S:g} s"
            time.sleep(_POLL_S)
    except ProcessLookupError:
        return f"process {pid} has ended"
    finally:
        path.unlink(missing_ok=True)
    done = read_dict(folder / _DONE) or {}
    (folder / _DONE).unlink(missing_ok=True)
    return None if done.get("error") is None else str(done["error"])
