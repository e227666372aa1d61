"""`distrl doctor`: what is installed, what works here, and what to do about what does not."""

import math
import os
import platform
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from distrl.errors import ConfigError
from distrl.launch.network.endpoints import Endpoints
from distrl.launch.paths import code_command
from distrl.launch.supervision.result import EXIT_FAILED, EXIT_FINISHED
from distrl.programs import substrate
from distrl.programs.substrate.builtin import ADDRESS_NAME
from distrl.runtime.host_resources import free_tasks, usable_cores
from distrl.runtime.provenance import versions
from distrl.shared_memory import segment

_ENV_S = 60.0  # for a new Python to import a package on a busy machine
_LEAST_SHM = 256 << 20
_LEAST_FILES = 1024  # descriptors
_LEAST_THREADS = 1024  # free ones: a node has some ten, and more where there are many cores
_PARTS = ("jax", "haiku", "optax", "rlax", "gymnasium", "envpool")


class Finding(NamedTuple):
    """What one check found.

    Attributes:
      what: the check's name.
      state: "ok"; "note", which prevents nothing; or "fault".
      said: what was found.
      advice: what to do about it; "" if nothing.
    """

    what: str
    state: str
    said: str
    advice: str = ""


def doctor(arguments: list[str]) -> int:
    """Prints what works. Returns the exit status: 1 if something that training needs does not."""
    if len(arguments) > 1:
        raise ConfigError(f"doctor takes no arguments; got {' '.join(arguments[1:])}")
    installed = versions()
    print(f"Python {installed.pop('python')}, {sys.executable}")
    print(f"{platform.system()} {platform.release()} on {platform.machine()}")
    print("installed: " + ", ".join(f"{name} {version}" for name, version in installed.items()))
    faults = 0
    for check in CHECKS:
        result = check()
        faults += result.state == "fault"
        print(f"{result.state:>5}  {result.what}: {result.said}", flush=True)
        if result.advice:
            print(f"       -> {result.advice}")
    print("everything that training needs works" if not faults else f"faults: {faults}")
    return EXIT_FAILED if faults else EXIT_FINISHED


def _run(code: str) -> tuple[bool, str]:
    """Runs a line of Python in a new process; returns whether it worked, and its last line."""
    try:
        done = subprocess.run(
            code_command(code),
            env={"TF_CPP_MIN_LOG_LEVEL": "3", **os.environ},
            capture_output=True,
            text=True,
            timeout=_ENV_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False, f"no answer within {_ENV_S:g} s"
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return done.returncode == 0, lines[-1] if lines else f"exit status {done.returncode}"


def check_imports() -> Finding:
    """Whether the packages that every topology needs can be imported."""
    worked, line = _run(f"import {', '.join(_PARTS)}; import distrl.presets")
    advice = "install again: `make setup`, or `pip install .` in a new environment"
    said = f"{', '.join(_PARTS)} can be imported" if worked else line
    return Finding("imports", "ok" if worked else "fault", said, "" if worked else advice)


def check_envpool() -> Finding:
    """Whether EnvPool steps an environment."""
    worked, line = _run(
        "import envpool, numpy; e = envpool.make_gymnasium('CartPole-v1', num_envs=2); e.reset();"
        "e.step(numpy.zeros(2, int)); print('CartPole-v1 makes steps')"
    )
    advice = (
        "" if worked else "install EnvPool again, or take environments of gymnasium: --env=gym:"
    )
    return Finding("EnvPool", "ok" if worked else "note", line, advice)


def check_substrate() -> Finding:
    """What nodes can be made of."""
    try:
        taken = substrate.resolve(substrate.AUTO)
    except ConfigError as error:
        return Finding("substrate", "note", "none: single_process only", str(error))
    module = "launchpad, reverb" if taken == substrate.LAUNCHPAD else "grpc"
    worked, line = _run(f"import {module}")
    if worked:
        lacks = "" if taken == substrate.LAUNCHPAD else "; no Reverb"
        return Finding("substrate", "ok", f"--substrate=auto takes {taken}{lacks}")
    other = substrate.BUILTIN if taken == substrate.LAUNCHPAD else substrate.LAUNCHPAD
    return Finding(
        "substrate",
        "fault",
        f"{taken} is installed, and cannot be imported: {line}",
        f"install it again, or take --substrate={other}",
    )


def check_shared_memory() -> Finding:
    """Whether tables fit into shared memory."""
    folder = str(segment.FOLDER)
    try:
        total, _, free = shutil.disk_usage(folder)
        with tempfile.NamedTemporaryFile(dir=folder, prefix="distrl-doctor-") as file:
            file.write(b"x")
    except OSError as error:
        return Finding("shared memory", "fault", f"{folder}: {error}", f"mount a tmpfs at {folder}")
    said = f"{folder} has {free / 1e6:,.0f} MB free of {total / 1e6:,.0f} MB"
    if free >= _LEAST_SHM:
        return Finding("shared memory", "ok", said)
    return Finding(
        "shared memory", "note", said,
        "large tables will be refused: delete what is not used there, or give it more "
        "(mount -o remount,size=..., docker run --shm-size=...)",
    )  # fmt: skip


def check_limits() -> Finding:
    """Whether the process may open files and start processes and threads as needed."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    threads, _ = resource.getrlimit(resource.RLIMIT_NPROC)  # the kernel counts threads by it
    shown = [
        "unlimited" if limit == resource.RLIM_INFINITY else f"{limit:,}"
        for limit in (files, threads)
    ]
    raised = []
    if files != resource.RLIM_INFINITY and files < _LEAST_FILES:
        raised.append(f"ulimit -n {_LEAST_FILES}")
    if os.getuid() == 0:
        shown[1] = "unlimited"  # whatever is set
    elif threads != resource.RLIM_INFINITY:
        used = _threads()
        shown[1] += f" (of which you have {used:,})"
        if threads - used < _LEAST_THREADS:
            raised.append(f"ulimit -u {used + _LEAST_THREADS}")
    allowed = free_tasks()
    if allowed != math.inf:
        shown[1] += f" (the cgroup allows {allowed:,} more)"
        if allowed < _LEAST_THREADS:
            raised.append("a higher pids.max (docker run --pids-limit, TasksMax= of systemd)")
    said = f"{shown[0]} open files, {shown[1]} processes and threads, {usable_cores()} cores"
    if not raised:
        return Finding("limits", "ok", said)
    return Finding("limits", "note", said, f"for many actors: {'; '.join(raised)}")


def _threads(proc: Path = Path("/proc")) -> int:
    """Returns the number of threads of all processes of this user."""
    count = 0
    for path in proc.glob("[0-9]*/status"):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:  # it has ended, or is another user's, where /proc hides these
            continue
        fields = dict(line.split(":", 1) for line in lines if ":" in line)
        if int(fields["Uid"].split()[0]) == os.getuid():
            count += int(fields["Threads"])
    return count


def check_ports() -> Finding:
    """Whether nodes can listen on Unix sockets in a private folder."""
    try:
        endpoints = Endpoints()
    except (OSError, ConfigError) as error:
        advice = "set TMPDIR to a folder of yours with a short path"
        return Finding("ports", "fault", str(error), advice)
    try:
        address = endpoints.address(endpoints.take(), ADDRESS_NAME)
        with socket.socket(socket.AF_UNIX) as server:
            server.bind(address.removeprefix("unix:"))
    except OSError as error:
        return Finding("ports", "fault", str(error), "set TMPDIR to a local folder of yours")
    finally:
        endpoints.close()
    return Finding("ports", "ok", "nodes can listen on Unix sockets that only you can reach")


def check_gpus() -> Finding:
    """Which devices JAX has."""
    worked, line = _run("import jax; print(', '.join(map(str, jax.devices())))")
    if not worked:
        return Finding("JAX's devices", "fault", line, "unset JAX_PLATFORMS, or install JAX again")
    has_card = os.path.exists("/dev/nvidiactl") or shutil.which("nvidia-smi") is not None
    if has_card and "cuda" not in line.lower():
        jax = versions().get("jax", "")
        advice = f"this machine has an NVIDIA GPU; to use it: pip install 'jax[cuda12]=={jax}'"
        return Finding("JAX's devices", "note", line, advice)
    return Finding("JAX's devices", "ok", line)


CHECKS: tuple[Callable[[], Finding], ...] = (
    check_imports,
    check_envpool,
    check_substrate,
    check_shared_memory,
    check_limits,
    check_ports,
    check_gpus,
)
