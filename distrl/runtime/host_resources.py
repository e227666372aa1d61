"""The cores and the memory that this process may use; in a container, less than the machine's."""

import contextlib
import math
import os
from collections.abc import Iterator
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Returns the number of cores that this process may keep busy: at least 1.

    The smaller of its CPU affinity and its cgroup's CPU quota, rounded up (cgroup v2 `cpu.max`,
    v1 `cpu.cfs_quota_us`; of the group and of all groups above it).

    Args:
      root: the folder that contains `proc` and `sys`.
    """
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), _quota(root))))


def spread(number: int, cores: int) -> int:
    """Maps numbers to cores below `cores`: all of them in turn, each far from the previous one.

    Neighbours, or cores half of them apart, may be two threads of one core.
    """
    golden = round(0.618 * cores)
    stride = next(step for step in range(golden, cores + 2) if math.gcd(step, cores) == 1)
    return number * stride % cores


def native_threads() -> set[int]:
    """Returns the native ids of this process's threads."""
    return set(map(int, os.listdir("/proc/self/task")))


def thread_names(process: Path = Path("/proc/self")) -> dict[int, str]:
    """Returns the names of this process's threads, by native id."""
    names = {}
    for file in (process / "task").glob("*/comm"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
            names[int(file.parent.name)] = file.read_text().strip()
    return names


def threads_named(part: str, process: Path = Path("/proc/self")) -> set[int]:
    """Returns the native ids of those threads of this process whose names have this part."""
    return {thread for thread, name in thread_names(process).items() if part in name}


def keep_to_cores(thread: int, cores: set[int]) -> None:
    """Keeps a thread to these cores. Args: thread: native id; ignored if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.sched_setaffinity(thread, cores)


def keep_to_one_core(number: int) -> int:
    """Pins all threads of this process, current and future, to one core.

    Args:
      number: index of the process among those that are pinned; each gets another core.

    Returns:
      The core.
    """
    cores = sorted(os.sched_getaffinity(0))
    core = cores[spread(number, len(cores))]
    os.sched_setaffinity(0, {core})  # first, so that new threads inherit it
    for thread in os.listdir("/proc/self/task"):
        keep_to_cores(int(thread), {core})
    return core


@contextlib.contextmanager
def on_one_core() -> Iterator[None]:
    """Keeps this process's present threads to one core while the context lasts."""
    before = {}
    core = min(os.sched_getaffinity(0))
    for name in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # the thread has ended
            before[int(name)] = os.sched_getaffinity(int(name))
        keep_to_cores(int(name), {core})
    try:
        yield
    finally:
        for thread, cores in before.items():
            keep_to_cores(thread, cores)


def idle_seconds(cores: set[int], root: Path = Path("/")) -> float | None:
    """Returns how long these cores have been idle in total since the machine started.

    None: it is not known, or this process may not keep all of them busy.

    Args:
      cores: their numbers.
      root: the folder that contains `proc` and `sys`.
    """
    lines = (line.split() for line in _read(root / "proc/stat").splitlines())
    times = {fields[0]: fields for fields in lines if fields}
    if _quota(root) < len(cores) or not all(f"cpu{core}" in times for core in cores):
        return None
    ticks = sum(int(times[f"cpu{c}"][i]) for c in cores for i in (4, 5))  # idle, and iowait
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_limit(root: Path = Path("/")) -> int:
    """Returns how many bytes of memory this process may use.

    The machine's memory, or the limit of its cgroup or of a group above it where that is less
    (cgroup v2 `memory.max`, v1 `memory.limit_in_bytes`).

    Args:
      root: the folder that contains `proc` and `sys`.
    """
    limit = _meminfo("MemTotal", root)
    for group in _cgroups(root, "memory"):
        limit = min(limit, _memory_max(group))
    return int(limit)


def free_memory(root: Path = Path("/")) -> int:
    """Returns how many bytes of memory this process, or one that it starts, may still use.

    The memory that the machine has available, or that the limits of its cgroup and of those above
    it leave, if less. Memory that caches files counts as free.

    Args:
      root: the folder that contains `proc` and `sys`.
    """
    free = _meminfo("MemAvailable", root)
    for group in _cgroups(root, "memory"):
        used = _read(group / "memory.current") or _read(group / "memory.usage_in_bytes")
        if used:
            # v1 has the sum over the groups below under another name, besides `inactive_file`.
            stat = _named(_read(group / "memory.stat"))
            cached = stat.get("total_inactive_file", stat.get("inactive_file", 0))
            free = min(free, _memory_max(group) - int(used) + cached)
    return max(0, int(free))


def free_tasks(root: Path = Path("/")) -> float:
    """Returns how many more processes and threads the cgroups allow; infinite without a limit.

    Args:
      root: the folder that contains `proc` and `sys`.
    """
    free = math.inf
    for group in _cgroups(root, "pids"):
        limit = _read(group / "pids.max").strip()
        if limit.isdecimal():  # otherwise it is "max", or there is no such file
            free = min(free, int(limit) - int(_read(group / "pids.current") or 0))
    return max(0, free)


def oom_kills(root: Path = Path("/")) -> int:
    """Returns how many processes the kernel has killed so far because it was out of memory.

    Counts this process's cgroup, or the machine if cgroups do not count.

    Args:
      root: the folder that contains `proc` and `sys`.
    """
    for group in reversed(list(_cgroups(root))):
        text = _read(group / "memory.events")
        if text:
            return _named(text).get("oom_kill", 0)
    return _named(_read(root / "proc/vmstat")).get("oom_kill", 0)


def killed_by(name: str, kills_before: int) -> str:
    """Returns the end of a message about a process that a signal has ended: "actor/0 ...".

    Args:
      name: the signal's name.
      kills_before: `oom_kills()` before the process began.
    """
    if name == "SIGKILL" and oom_kills() > kills_before:
        return "was killed by the kernel (SIGKILL): out of memory"
    return f"was killed by {name}"


def raise_oom_score(by: int, process: Path = Path("/proc/self")) -> None:
    """Makes the kernel kill this process, and those that it will start, before its parent.

    Where memory runs out, the kernel kills the process with the highest score: its share of the
    memory in thousandths, plus this adjustment. Raising it takes no privilege.

    Args:
      by: thousandths to add to those that the process has inherited.
      process: the process's folder in `/proc`.
    """
    path = process / "oom_score_adj"
    with contextlib.suppress(OSError):  # a sandbox without the file
        path.write_text(str(min(1000, int(path.read_text()) + by)))


def _named(text: str) -> dict[str, int]:
    """Returns the numbers in a file of names and numbers."""
    return {name: int(number) for name, number in map(str.split, text.splitlines())}


def _meminfo(name: str, root: Path) -> float:
    """Returns a number of bytes from the machine's `proc/meminfo`."""
    return next(
        int(line.split()[1]) * 1024
        for line in (root / "proc/meminfo").read_text().splitlines()
        if line.startswith(f"{name}:")
    )


def _memory_max(group: Path) -> float:
    """Returns the limit of one cgroup's folder, which may not exist; infinite if there is none."""
    text = (_read(group / "memory.max") or _read(group / "memory.limit_in_bytes")).strip()
    return int(text) if text.isdecimal() else math.inf  # without a limit v1 has about 2^63


def _quota(root: Path) -> float:
    """Returns the cores that the cgroup's quota allows; infinite if there is none."""
    return min(map(_quota_of, _cgroups(root, "cpu")), default=math.inf)


def _cgroups(root: Path, controller: str = "") -> Iterator[Path]:
    """Yields the folders of this process's cgroups, which may not exist, each after those above it.

    Args:
      root: the folder that contains `proc` and `sys`.
      controller: a controller of cgroup v1, whose groups are included; "": only v2.
    """
    mounted = root / "sys/fs/cgroup"
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # v2: one hierarchy
            tops = [mounted, mounted / "unified"]
        elif controller in controllers.split(","):
            tops = [mounted / controllers, mounted / controller]
        else:
            continue
        # In a container the path may be the host's, of which only the top is visible.
        parts = [part for part in path.split("/") if part and part != ".."]
        for top in tops:
            for depth in range(len(parts) + 1):
                yield top.joinpath(*parts[:depth])


def _quota_of(group: Path) -> float:
    """Returns the quota of one cgroup's folder, which may not exist."""
    limit = _read(group / "cpu.max").split()  # v2: "max 100000" or "150000 100000"
    if not limit:
        limit = [
            _read(group / "cpu.cfs_quota_us").strip(),  # v1: -1 where there is none
            _read(group / "cpu.cfs_period_us").strip(),
        ]
    if not all(limit) or limit[0] == "max":
        return math.inf
    quota, period = map(int, limit)
    return quota / period if quota > 0 and period > 0 else math.inf


def _read(path: Path) -> str:
    """Returns a file's text; "" if it is missing or may not be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
