"""How many cores this process may use, which in a container is not what the machine has."""

import contextlib
import math
import os
from pathlib import Path


def usable_cores(root: Path = Path("/")) -> int:
    """Cores that this process may keep busy: at least 1.

    The smaller of its CPU affinity and its cgroup's CPU quota, rounded up (cgroup v2 `cpu.max`,
    v1 `cpu.cfs_quota_us`; of the group and of all groups above it).

    Args:
      root: what `/proc` and `/sys` are looked up under.
    """
    return max(1, math.ceil(min(len(os.sched_getaffinity(0)), _quota(root))))


def spread(number: int, cores: int) -> int:
    """A core, below `cores`, for each number: all in turn, each far from the one before.

    Neighbours, or cores half of them apart, may be two threads of one core.
    """
    golden = round(0.618 * cores)
    stride = next(step for step in range(golden, cores + 2) if math.gcd(step, cores) == 1)
    return number * stride % cores


def keep_to_one_core(number: int) -> int:
    """Keeps every thread of this process, and those that they will start, to one core.

    Args:
      number: of the process among those that do so; they come to different cores.

    Returns:
      The core.
    """
    cores = sorted(os.sched_getaffinity(0))
    core = cores[spread(number, len(cores))]
    os.sched_setaffinity(0, {core})  # first: what this thread starts now is kept as well
    for thread in os.listdir("/proc/self/task"):
        with contextlib.suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(int(thread), {core})
    return core


def _quota(root: Path) -> float:
    """Cores that the cgroup's quota allows; infinite where there is none."""
    mounted = root / "sys/fs/cgroup"
    quota = math.inf
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, path = line.split(":", 2)
        if not controllers:  # v2: one hierarchy
            tops = [mounted, mounted / "unified"]
        elif "cpu" in controllers.split(","):
            tops = [mounted / controllers, mounted / "cpu"]
        else:
            continue
        # In a container the path may be the host's, of which only the top is to be seen.
        parts = [part for part in path.split("/") if part and part != ".."]
        for top in tops:
            for depth in range(len(parts) + 1):
                quota = min(quota, _quota_of(top.joinpath(*parts[:depth])))
    return quota


def _quota_of(group: Path) -> float:
    """Of one cgroup's folder, which may not be there."""
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
    """A file's text; nothing where it is missing or may not be read."""
    try:
        return path.read_text()
    except OSError:
        return ""
