"""Cores, memory and out-of-memory kills of a process's cgroup, on made-up file trees."""

import math
import os
import subprocess
import sys

import pytest

from distrl.runtime.host_resources import (
    free_memory,
    free_tasks,
    idle_seconds,
    memory_limit,
    oom_kills,
    raise_oom_score,
    spread,
    threads_named,
    usable_cores,
)


def tree(root, files):
    for path, text in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return root


@pytest.fixture(autouse=True)
def many_cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))


V2 = {"proc/self/cgroup": "0::/jobs/mine\n"}
V1 = {"proc/self/cgroup": "5:memory:/mine\n4:cpu,cpuacct:/mine\n0::/\n"}


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({}, 64),
        ({**V2, "sys/fs/cgroup/jobs/mine/cpu.max": "max 100000"}, 64),
        ({**V2, "sys/fs/cgroup/jobs/mine/cpu.max": "250000 100000"}, 3),
        ({**V2, "sys/fs/cgroup/jobs/mine/cpu.max": "1000 100000"}, 1),
        (
            {
                **V2,
                "sys/fs/cgroup/jobs/cpu.max": "200000 100000",
                "sys/fs/cgroup/jobs/mine/cpu.max": "800000 100000",
            },
            2,
        ),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "400000 100000"}, 4),
        # A container that sees the host's path, and its own group as the top.
        ({"proc/self/cgroup": "0::/docker/abc\n", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2),
        (
            {
                **V1,
                "sys/fs/cgroup/cpu,cpuacct/mine/cpu.cfs_quota_us": "150000\n",
                "sys/fs/cgroup/cpu,cpuacct/mine/cpu.cfs_period_us": "100000\n",
            },
            2,
        ),
        (
            {
                **V1,
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            64,
        ),
    ],
)
def test_the_smallest_limit_counts(tmp_path, files, cores):
    assert usable_cores(tree(tmp_path, files)) == cores


def test_affinity_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {3, 5})
    files = {**V2, "sys/fs/cgroup/jobs/mine/cpu.max": "800000 100000"}
    assert usable_cores(tree(tmp_path, files)) == 2


NO_LIMIT_V1 = 9223372036854771712

MEMINFO = {"proc/meminfo": "MemTotal:       1000 kB\nMemFree:        100 kB\n"}


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, 1_024_000),
        ({**V2, "sys/fs/cgroup/jobs/mine/memory.max": "max\n"}, 1_024_000),
        ({**V2, "sys/fs/cgroup/jobs/mine/memory.max": "5000\n"}, 5000),
        (
            {
                **V2,
                "sys/fs/cgroup/jobs/memory.max": "4000\n",
                "sys/fs/cgroup/jobs/mine/memory.max": "5000\n",
            },
            4000,
        ),
        ({"proc/self/cgroup": "0::/docker/abc\n", "sys/fs/cgroup/memory.max": "3000"}, 3000),
        ({**V1, "sys/fs/cgroup/memory/mine/memory.limit_in_bytes": "6000\n"}, 6000),
        ({**V1, "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{NO_LIMIT_V1}\n"}, 1_024_000),
        (
            {
                **V1,
                "sys/fs/cgroup/memory/memory.limit_in_bytes": "2000\n",
                "sys/fs/cgroup/memory/mine/memory.limit_in_bytes": f"{NO_LIMIT_V1}\n",
            },
            2000,
        ),
    ],
)
def test_the_smallest_memory_limit_counts(tmp_path, files, limit):
    assert memory_limit(tree(tmp_path, {**MEMINFO, **files})) == limit


AVAILABLE = {"proc/meminfo": "MemTotal: 1000 kB\nMemAvailable: 500 kB\n"}
MINE = "sys/fs/cgroup/jobs/mine"


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, 512_000),
        ({**V2, f"{MINE}/memory.max": "max\n", f"{MINE}/memory.current": "9000000\n"}, 512_000),
        ({**V2, f"{MINE}/memory.max": "9000\n", f"{MINE}/memory.current": "2000\n"}, 7000),
        (
            {
                **V2,
                f"{MINE}/memory.max": "9000\n",
                f"{MINE}/memory.current": "8000\n",
                f"{MINE}/memory.stat": "anon 5000\nactive_file 1000\ninactive_file 2000\n",
            },
            3000,
        ),
        (
            {
                **V2,
                "sys/fs/cgroup/jobs/memory.max": "9000\n",
                "sys/fs/cgroup/jobs/memory.current": "9500\n",
                f"{MINE}/memory.max": "9000\n",
                f"{MINE}/memory.current": "1000\n",
            },
            0,
        ),
        (
            {
                **V1,
                "sys/fs/cgroup/memory/memory.limit_in_bytes": f"{NO_LIMIT_V1}\n",
                "sys/fs/cgroup/memory/memory.usage_in_bytes": "900000\n",
                "sys/fs/cgroup/memory/mine/memory.limit_in_bytes": "9000\n",
                "sys/fs/cgroup/memory/mine/memory.usage_in_bytes": "8000\n",
                "sys/fs/cgroup/memory/mine/memory.stat": (
                    "inactive_file 100\nactive_file 100\ntotal_inactive_file 2000\n"
                ),
            },
            3000,
        ),
    ],
)
def test_the_least_free_memory_counts(tmp_path, files, free):
    assert free_memory(tree(tmp_path, {**AVAILABLE, **files})) == free


EVENTS = "low 0\nhigh 2\nmax 3\noom 4\noom_kill {}\noom_group_kill 0\n"


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({}, 0),
        ({"proc/vmstat": "nr_free_pages 9\noom_kill 2\n"}, 2),
        ({**V2, "proc/vmstat": "oom_kill 2\n"}, 2),
        (
            {
                **V2,
                "proc/vmstat": "oom_kill 9\n",
                "sys/fs/cgroup/memory.events": EVENTS.format(8),
                "sys/fs/cgroup/jobs/mine/memory.events": EVENTS.format(5),
            },
            5,
        ),
        (
            {
                "proc/self/cgroup": "0::/docker/abc\n",
                "sys/fs/cgroup/memory.events": EVENTS.format(3),
            },
            3,
        ),
    ],
)
def test_kills_of_the_nearest_group_are_counted(tmp_path, files, kills):
    assert oom_kills(tree(tmp_path, files)) == kills


def test_this_machine_can_be_read():
    assert memory_limit() > 0
    assert oom_kills() >= 0


@pytest.mark.parametrize("cores", [1, 2, 3, 4, 6, 8, 12, 16, 64, 96])
def test_numbers_are_spread_over_all_cores_and_lie_apart(cores):
    cores_of = [spread(number, cores) for number in range(cores)]
    assert sorted(cores_of) == list(range(cores))
    if cores >= 8:
        assert abs(cores_of[1] - cores_of[0]) not in (1, cores // 2, cores - 1)


def test_threads_are_found_by_their_names(tmp_path):
    names = {"task/7/comm": "tf_XLAEigen\n", "task/8/comm": "python\n", "task/9/comm": "XLAEigen\n"}
    assert threads_named("XLAEigen", tree(tmp_path, names)) == {7, 9}
    assert threads_named("XLAExecute", tmp_path) == set()


def test_keeping_to_one_core_takes_every_thread_of_the_process_along():
    program = """
import os, threading
from distrl.runtime.host_resources import keep_to_one_core, spread
cores = sorted(os.sched_getaffinity(0))
seen, go = [], threading.Event()
def look():
    go.wait(30)
    seen.append(os.sched_getaffinity(0))
before = threading.Thread(target=look)
before.start()
core = keep_to_one_core(len(cores) + 1)
after = threading.Thread(target=look)
after.start()
go.set()
before.join()
after.join()
assert core == cores[spread(len(cores) + 1, len(cores))], core
assert seen == [{core}] * 2 and os.sched_getaffinity(0) == {core}, seen
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


@pytest.mark.parametrize(("before", "after"), [("0\n", "300"), ("-500\n", "-200"), ("900", "1000")])
def test_the_oom_score_is_raised_up_to_its_limit(tmp_path, before, after):
    (tmp_path / "oom_score_adj").write_text(before)
    raise_oom_score(300, tmp_path)
    assert (tmp_path / "oom_score_adj").read_text() == after


def test_a_sandbox_without_oom_scores(tmp_path):
    raise_oom_score(300, tmp_path / "missing")


def test_idle_seconds_are_those_of_the_cores_that_may_be_used(tmp_path):
    text = "cpu  9 9 9 999 99 6 7\ncpu0 1 2 3 4 5 6 7\ncpu1 1 2 3 40 50 6 7\n\nintr 1 2 3 4 5\n"
    quota = {**V2, "sys/fs/cgroup/jobs/cpu.max": "150000 100000"}
    root = tree(tmp_path, {**quota, "proc/stat": text})
    tick = os.sysconf("SC_CLK_TCK")
    assert idle_seconds({1}, root) == 90 / tick
    assert idle_seconds({0, 1}, root) is None  # 1.5 cores are allowed
    (root / "proc/self/cgroup").unlink()
    assert idle_seconds({0, 1}, root) == 99 / tick
    assert idle_seconds({0, 7}, root) is None
    assert idle_seconds({0}, tmp_path / "none") is None


@pytest.mark.parametrize(
    ("files", "free"),
    [
        ({}, math.inf),
        ({**V2, f"{MINE}/pids.max": "max\n", f"{MINE}/pids.current": "9\n"}, math.inf),
        ({**V2, f"{MINE}/pids.max": "60\n", f"{MINE}/pids.current": "9\n"}, 51),
        (
            {
                **V2,
                "sys/fs/cgroup/jobs/pids.max": "20\n",
                "sys/fs/cgroup/jobs/pids.current": "21\n",
                f"{MINE}/pids.max": "60\n",
                f"{MINE}/pids.current": "9\n",
            },
            0,
        ),
        (
            {
                "proc/self/cgroup": "7:pids:/mine\n",
                "sys/fs/cgroup/pids/mine/pids.max": "30\n",
                "sys/fs/cgroup/pids/mine/pids.current": "10\n",
            },
            20,
        ),
    ],
)
def test_the_smallest_rest_of_processes_counts(tmp_path, files, free):
    assert free_tasks(tree(tmp_path, files)) == free
