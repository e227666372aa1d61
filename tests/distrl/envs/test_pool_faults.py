"""Environments that misbehave, one of eight: every fault, every Python pool, both policies."""

import contextlib
import gc
import logging
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl.envs import PythonEnvironment
from distrl.envs.pool_config import PoolConfig
from distrl.errors import ConfigError, EnvironmentFault
from distrl.testing import COUNT, STEP, CountingEnvironment
from distrl.types import StepType
from tests.support.selection import full

NUM_ENVS, CULPRIT, AT = 8, 3, 6
SEEDS = range(5000, 5000 + NUM_ENVS)
TIMEOUT = 1.0  # seconds, of a step
WAIT_NUMS = (NUM_ENVS, 3)
PYTHON = ("loop", "threads", "processes")
WORKERS = [("loop", None), ("threads", 2), ("threads", 8), ("processes", 2), ("processes", 8)]
RETURNED = {  # what a step returns instead, and what the message says of it
    "shape": (lambda step: step._replace(observation=np.zeros(3, np.float32)),
              r"observation: expected float32\[4\], got float32\[3\]"),
    "dtype": (lambda step: step._replace(observation=np.zeros(4, np.int32)),
              r"observation: expected float32\[4\], got int32\[4\]"),
    "structure": (lambda step: step._replace(observation={"a": step.observation}),
                  r"observation: expected float32\[4\], got (a dict|object)"),
    "nan": (lambda step: step._replace(observation=np.full(4, np.nan, np.float32)),
            r"observation: expected finite numbers, got 4 of 4 that are not"),
    "inf reward": (lambda step: step._replace(reward=np.inf), "reward: expected .*finite"),
    "no reward": (lambda step: step._replace(reward=None), "reward: expected float32"),
    "discount": (lambda step: step._replace(discount=0.5),
                 r"discount: expected 0 .* or 1 .* at LAST, got 0\.5; gamma is agent\.discount"),
    "zero discount": (lambda step: step._replace(step_type=StepType.MID, discount=0.0),
                      "discount: expected 1 in the middle"),
    "first": (lambda step: step._replace(step_type=StepType.FIRST, reward=None, discount=None),
              "step_type"),
}  # fmt: skip
ENDS = {"exit": "with exit status 7", "kill": "killed by SIGKILL"}


class Faulty(CountingEnvironment):
    """One seed of it misbehaves, at its step number AT; or in its first reset."""

    fault = "raise"

    def __init__(self, seed):
        super().__init__(seed)
        self._culprit = seed == SEEDS[CULPRIT]
        self._steps = 0

    def reset(self):
        if self._culprit and self.fault == "reset":
            raise OSError("no episode today")
        return super().reset()

    def step(self, action):
        step = super().step(action)
        self._steps += 1
        if not self._culprit or self._steps != AT:
            return step
        if self.fault == "raise":
            raise OSError("the simulator is gone")
        if self.fault == "hang":
            time.sleep(4 * TIMEOUT)
        if self.fault == "exit":
            os._exit(7)
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return RETURNED[self.fault][0](step) if self.fault in RETURNED else step


def make(kind, wait_num, fault, num_workers=None, builder=Faulty, **settings):
    settings.setdefault("step_timeout", TIMEOUT if fault == "hang" else 60.0)
    config = PoolConfig(kind=kind, num_workers=num_workers, **settings)
    environment = PythonEnvironment(type("Faulty", (builder,), {"fault": fault}), pool=config)
    return environment.make_pool(NUM_ENVS, wait_num, SEEDS)


def play(pool, steps=30):
    """Steps every environment so often at least; checks each one's steps and boundaries.

    Returns:
      a list for each environment, of the FIRSTs that followed an episode closed by the pool.
    """
    before = [None] * NUM_ENVS
    closed, began = [False] * NUM_ENVS, [[] for _ in range(NUM_ENVS)]
    count = np.zeros(NUM_ENVS, int)
    pool.start()
    while True:
        step = pool.recv()
        count[step.env_id] += 1
        for row, env_id in enumerate(step.env_id.tolist()):
            kind, obs = int(step.step_type[row]), step.observation[row]
            reward, discount = step.reward[row], step.discount[row]
            last_kind, last_obs = before[env_id] or (StepType.LAST, None)
            assert (kind == StepType.FIRST) == (last_kind == StepType.LAST)
            if kind == StepType.FIRST:
                assert reward == 0 and discount == 1 and obs[STEP] == 0
                if closed[env_id]:
                    assert obs[COUNT] == 0  # a new one
                    began[env_id].append(step)
                closed[env_id] = False
            elif np.array_equal(obs, last_obs):
                assert (kind, reward, discount) == (StepType.LAST, 0, 1)
                closed[env_id] = True
            else:
                assert obs[COUNT] == last_obs[COUNT] + 1 and reward == obs[STEP]
            before[env_id] = kind, obs
        if count.min() >= steps:
            return began
        pool.send(np.zeros(pool.wait_num, np.int32), step.env_id)


def faults():
    for kind, num_workers in WORKERS:
        for fault in ("raise", "shape", "nan"):
            yield kind, num_workers, fault
        if num_workers != 8:
            for fault in set(RETURNED) - {"shape", "nan"}:
                yield kind, num_workers, fault
        if kind != "loop":
            hang = (kind, num_workers, "hang")
            yield full(*hang) if num_workers == 8 else hang
        if kind == "processes":
            yield kind, num_workers, "exit"
            yield kind, num_workers, "kill"


MESSAGES = {
    "raise": "raised OSError: the simulator is gone",
    "hang": "hung; its step or reset did not end within step_timeout=1 s",
    **{name: text for name, (_, text) in RETURNED.items()},
    **ENDS,
}


@pytest.mark.parametrize("wait_num", WAIT_NUMS)
@pytest.mark.parametrize(("kind", "num_workers", "fault"), sorted(faults(), key=str))
def test_fail_names_the_environment_and_what_happened(kind, num_workers, fault, wait_num):
    pool = make(kind, wait_num, fault, num_workers)
    began = time.monotonic()
    with pytest.raises(EnvironmentFault, match=MESSAGES[fault]) as raised:
        play(pool)
    # Step AT is the third or so of its second episode.
    where = f"Faulty: environment {CULPRIT} (seed {SEEDS[CULPRIT]}, step "
    assert where in str(raised.value) and f" of its episode, {AT} in all)" in str(raised.value)
    if fault == "hang":
        assert ", in step" in str(raised.value) or " in step\n" in str(raised.value)
    if fault == "raise":
        assert 'raise OSError("the simulator is gone")' in str(raised.value)
    with pytest.raises(EnvironmentFault, match=MESSAGES[fault]):
        pool.recv()
    pool.close()
    assert time.monotonic() - began < 30


@pytest.mark.parametrize("wait_num", WAIT_NUMS)
@pytest.mark.parametrize(("kind", "num_workers", "fault"), sorted(faults(), key=str))
def test_restart_closes_one_episode_and_goes_on(kind, num_workers, fault, wait_num, caplog):
    pool = make(kind, wait_num, fault, num_workers, on_fault="restart", max_restarts=1)
    with caplog.at_level(logging.WARNING, "distrl.envs"):
        began = play(pool)
    restarts = pool.restarts
    pool.close()
    assert re.search(MESSAGES[fault], caplog.text)
    rebuilt = {CULPRIT}
    if kind == "processes" and fault in ("hang", *ENDS):  # its worker's others are lost as well
        rebuilt = set(range(CULPRIT % num_workers, NUM_ENVS, num_workers))
    assert restarts == len(rebuilt)
    assert [len(x) for x in began][CULPRIT] == 1
    assert {i for i, firsts in enumerate(began) if firsts} <= rebuilt


@pytest.mark.parametrize("kind", PYTHON)
def test_a_reset_that_fails_is_tried_again_with_a_new_seed(kind):
    pool = make(kind, 3, "reset", on_fault="restart", max_restarts=1)
    assert not any(play(pool))
    assert pool.restarts == 1
    pool.close()


class Informing(Faulty):
    """Declares nested infos, and fails where it does."""

    success = np.int8

    def env_info_spec(self):
        position = {"x": dm_specs.Array((), np.float32), "y": dm_specs.Array((), np.uint8)}
        return {"position": position, "success": dm_specs.Array((), self.success)}

    def env_info(self):
        position = {"x": np.float32(3), "y": np.uint8(4)}
        return {"position": position, "success": self.success(0)}


@pytest.mark.parametrize("dtype", [np.int8, np.bool_])
def test_a_fault_leaves_no_info_and_an_unknown_success(dtype):
    builder = type("Informing", (Informing,), {"success": dtype})
    pool = make("loop", NUM_ENVS, "raise", builder=builder, on_fault="restart")
    step = pool.reset()
    for _ in range(AT):
        step = pool.step(np.zeros(NUM_ENVS, np.int32))
    assert pool.restarts == 1
    pool.close()
    wrong = np.arange(NUM_ENVS) == CULPRIT
    np.testing.assert_array_equal(step.env_info["position"]["x"], np.where(wrong, 0, 3))
    np.testing.assert_array_equal(step.env_info["position"]["y"], np.where(wrong, 0, 4))
    np.testing.assert_array_equal(step.env_info["success"], np.where(wrong, -1, 0))


class Hopeless(Faulty):
    def __init__(self, seed):
        if seed % 4096 == SEEDS[CULPRIT] % 4096:
            raise OSError("no licence")
        super().__init__(seed)


@pytest.mark.parametrize("kind", PYTHON)
def test_the_budget_ends(kind):
    config = PoolConfig(kind=kind, on_fault="restart", max_restarts=3)
    environment = PythonEnvironment(Hopeless, pool=config)
    pool = environment.make_pool(NUM_ENVS, 3, SEEDS)
    with pytest.raises(
        EnvironmentFault, match=r"(?s)building it raised OSError: no licence.*max_restarts=3"
    ):
        play(pool)
    pool.close()


class Unclosable(CountingEnvironment):
    def close(self):
        if self._count > 1:  # not the one that tells its spec
            raise OSError("closed already")


def test_an_error_while_closing_is_logged(caplog):
    pool = PythonEnvironment(Unclosable).make_pool(2, 2, range(2))
    pool.reset()
    pool.step(np.zeros(2, np.int32))
    pool.step(np.zeros(2, np.int32))
    pool.close()
    assert caplog.text.count("OSError: closed already") == 2


# What ends a process, or hangs in it, where it is the program's own.


def play_faulty(kind, fault, wait_num):
    play(make(kind, wait_num, fault, on_fault="restart"))


@pytest.mark.parametrize(("fault", "code"), [("exit", 7), ("kill", -signal.SIGKILL)])
@pytest.mark.parametrize("kind", ["loop", "threads"])
def test_an_environment_that_ends_its_process_ends_this_one(kind, fault, code, elsewhere):
    assert elsewhere(play_faulty, kind, fault, NUM_ENVS).wait(60.0) == code


@pytest.mark.parametrize("wait_num", WAIT_NUMS)
def test_a_loop_that_hangs_ends_its_process_with_the_stack(wait_num, elsewhere, tmp_path):
    output = tmp_path / "output"
    with open(output, "w") as stderr:
        assert elsewhere(play_faulty, "loop", "hang", wait_num, stderr=stderr).wait(60.0) == 1
    text = output.read_text()
    assert f"Faulty: environment {CULPRIT} (seed {SEEDS[CULPRIT]}, step" in text
    assert MESSAGES["hang"] in text and "time.sleep(4 * TIMEOUT)" in text


# Processes that are killed, and what is left.


def children(pid):
    """Returns the child processes of a process, and theirs."""
    pids = []
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text().split()):
                pids += [child, *children(child)]
    return pids


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def wait_until(condition, what, seconds=10.0):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def workers_of(pool):
    return children(pool._host.pid)


def finish(pool):
    """Goes on from a first recv; returns how many steps closed an episode early."""
    early, count = 0, np.zeros(NUM_ENVS, int)
    while count.min() < 30:
        step = pool.recv()
        count[step.env_id] += 1
        early += int(((step.step_type == StepType.LAST) & (step.reward == 0)).sum())
        pool.send(np.zeros(pool.wait_num, np.int32), step.env_id)
    return early


@pytest.mark.parametrize("wait_num", WAIT_NUMS)
def test_a_worker_killed_from_outside_is_replaced(wait_num):
    pool = make("processes", wait_num, "", 2, on_fault="restart", max_restarts=1)
    pool.start()
    step = pool.recv()
    count = np.zeros(NUM_ENVS, int)
    count[step.env_id] += 1
    while count[::2].min() < 2:  # until all of the first worker have begun an episode
        pool.send(np.zeros(wait_num, np.int32), step.env_id)
        step = pool.recv()
        count[step.env_id] += 1
    os.kill(workers_of(pool)[0], signal.SIGKILL)
    pool.send(np.zeros(wait_num, np.int32), step.env_id)
    early = finish(pool)
    assert 1 <= early <= 4 and pool.restarts == 4
    pool.close()


@pytest.mark.parametrize("wait_num", WAIT_NUMS)
def test_a_worker_killed_from_outside_fails_the_pool(wait_num):
    pool = make("processes", wait_num, "", 2)
    pool.start()
    step = pool.recv()
    deadline = time.monotonic() + 10.0
    while len(workers_of(pool)) < 2:  # the first one may answer before there is a second
        assert time.monotonic() < deadline
    os.kill(workers_of(pool)[1], signal.SIGKILL)
    with pytest.raises(EnvironmentFault, match="killed by SIGKILL"):
        while True:
            pool.send(np.zeros(wait_num, np.int32), step.env_id)
            step = pool.recv()
    pool.close()


def test_a_worker_that_was_stopped_is_found_to_hang():
    pool = make("processes", NUM_ENVS, "", 2, on_fault="restart", step_timeout=TIMEOUT)
    step = pool.reset()
    os.kill(workers_of(pool)[0], signal.SIGSTOP)
    step = pool.step(np.zeros(NUM_ENVS, np.int32))
    assert (step.step_type == StepType.LAST).sum() >= 4 and pool.restarts == 4
    pool.close()


@pytest.mark.parametrize("policy", ["fail", "restart"])
def test_the_end_of_the_host_is_an_error(policy):
    pool = make("processes", NUM_ENVS, "", 2, on_fault=policy)
    pool.reset()
    workers = workers_of(pool)
    os.kill(pool._host.pid, signal.SIGKILL)
    with pytest.raises(EnvironmentFault, match="process that holds the workers"):
        while True:
            pool.step(np.zeros(NUM_ENVS, np.int32))
    pool.close()
    wait_until(lambda: not any(map(alive, workers)), "workers outlive their host")


def test_workers_are_killed_before_their_program_where_memory_runs_out():
    pool = make("processes", NUM_ENVS, "", 2)
    pool.reset()
    scores = [int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in workers_of(pool)]
    pool.close()
    program = int(Path("/proc/self/oom_score_adj").read_text())
    assert scores == [min(1000, program + 300)] * 2


def test_close_leaves_nothing():
    gc.collect()
    fds, processes = len(os.listdir("/proc/self/fd")), children(os.getpid())
    for wait_num in (NUM_ENVS, 3):
        pool = make("processes", wait_num, "", 2)
        pool.start()  # and closed while in flight
        pool.close()
        pool.close()
        pool = make("processes", wait_num, "exit", 8, on_fault="restart")
        play(pool)
        pool.close()
    assert len(os.listdir("/proc/self/fd")) == fds
    assert children(os.getpid()) == processes


def test_a_pool_that_is_dropped_leaves_nothing():
    processes = children(os.getpid())
    pool = make("processes", NUM_ENVS, "", 2)
    pool.reset()
    del pool
    gc.collect()
    assert children(os.getpid()) == processes


def test_pools_do_not_hold_each_other():
    first, second = (make("processes", NUM_ENVS, "", 2) for _ in "ab")
    first.reset()
    second.reset()
    workers = workers_of(first)
    first.close()
    assert not any(map(alive, workers))
    assert len(second.step(np.zeros(NUM_ENVS, np.int32)).reward) == NUM_ENVS
    second.close()


@pytest.mark.parametrize("kind", ["loop", "threads"])
def test_a_dropped_pool_ends_its_threads(kind):
    before = set(threading.enumerate())
    pool = make(kind, NUM_ENVS, "", 2)
    pool.reset()
    threads = set(threading.enumerate()) - before
    assert threads
    del pool
    gc.collect()
    wait_until(lambda: not any(t.is_alive() for t in threads), "a thread is left")


class Stuck(CountingEnvironment):
    def step(self, action):
        if self._seed < 9:  # the one that tells its spec
            return super().step(action)
        subprocess.Popen(["sleep", "60"])  # what a simulator is
        time.sleep(60)
        return None


def test_close_ends_environments_that_hang_and_what_they_started():
    pool = PythonEnvironment(Stuck, pool=PoolConfig("processes", num_workers=1)).make_pool(
        2, 2, range(9, 11)
    )
    pool.reset()
    pool.send(np.zeros(2, np.int32), pool.env_ids)
    pids = []
    wait_until(lambda: pids.extend(workers_of(pool)) or len(set(pids)) == 2, "no simulator")
    began = time.monotonic()
    pool.close()
    assert time.monotonic() - began < 8
    wait_until(lambda: not any(map(alive, pids)), "a process is left")


def play_for_ever():
    pool = make("processes", NUM_ENVS, "", 2)
    step = pool.reset()
    print(*children(os.getpid()), flush=True)
    while True:
        step = pool.step(step.env_id)


def test_no_worker_outlives_its_program(elsewhere):
    program = elsewhere(play_for_ever, stdout=subprocess.PIPE)
    pids = list(map(int, program.stdout.readline().split()))
    assert len(pids) == 3 and all(map(alive, pids))
    program.kill()
    wait_until(lambda: not any(map(alive, pids)), "workers outlive their program", 5.0)


THREADS = """
import os
import numpy as np
def builder(seed):
    from distrl.testing import CountingEnvironment
    import threadpoolctl
    counts = {x["num_threads"] for x in threadpoolctl.threadpool_info()}
    assert counts <= {1}, counts
    assert os.environ["OMP_NUM_THREADS"] == os.environ["PJRT_NPROC"] == "1"
    import jax.numpy as jnp
    assert jnp.ones(3).sum() == 3
    return CountingEnvironment(seed)
from distrl.envs import PythonEnvironment
from distrl.testing import CountingEnvironment
from distrl.envs.pool_config import PoolConfig
environment = PythonEnvironment(builder, pool=PoolConfig("processes", num_workers=2))
environment.__dict__["_spec"] = PythonEnvironment(CountingEnvironment).spec()
pool = environment.make_pool(4, 4, range(4))
pool.reset()
pool.close()
"""


def test_workers_have_one_thread_of_blas_openmp_and_xla():
    pytest.importorskip("threadpoolctl")
    done = subprocess.run(
        [sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr


def test_pinned_workers_have_a_core_each():
    pool = make("processes", NUM_ENVS, "", 2, pin_workers=True)
    pool.reset()
    cores = sorted(os.sched_getaffinity(0))
    affinities = [os.sched_getaffinity(pid) for pid in workers_of(pool)]
    assert sorted(map(min, affinities)) == sorted(cores[i % len(cores)] for i in range(2))
    assert all(len(cores_of_worker) == 1 for cores_of_worker in affinities)
    pool.close()


def test_a_process_pool_after_jax_has_started_warns(monkeypatch):
    bridge = pytest.importorskip("jax._src.xla_bridge")
    monkeypatch.setattr(bridge, "backends_are_initialized", lambda: True)
    with pytest.warns(RuntimeWarning, match="make the pool before the first JAX computation"):
        make("processes", NUM_ENVS, "", 2).close()


def test_a_pool_that_costs_more_than_it_saves_says_so(caplog):
    for kind in ("processes", "loop"):
        pool = make(kind, NUM_ENVS, "", 2)
        pool.start()
        with caplog.at_level(logging.WARNING, "distrl.envs"):
            for _ in range(1200):
                pool.send(np.zeros(NUM_ENVS, np.int32), pool.recv().env_id)
        pool.close()
    assert caplog.text.count("environment.pool.kind=loop would be faster") == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kind": "process"}, "did you mean processes"),
        ({"pin_workers": True}, "pin_workers is for worker processes, and kind is 'loop'"),
        ({"num_workers": 0}, "num_workers must be a whole number, 1 or more"),
        ({"worker_threads": -1}, "worker_threads must be a whole number, 0 or more"),
        ({"step_timeout": 0}, "step_timeout must be more than 0"),
        ({"on_fault": "ignore"}, "on_fault: expected one of fail, restart"),
        ({"max_restarts": -1}, "max_restarts must be a whole number, 0 or more"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        PoolConfig(**settings)


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
@pytest.mark.parametrize("handled", [True, False])
def test_what_a_signal_handler_may_raise_is_a_fault_where_signals_are_handled(
    monkeypatch, error, handled
):
    """Only in a script of the user's own it may be a Ctrl-C, which ends the script."""

    class Ends(CountingEnvironment):
        def step(self, action):
            raise error

    handler = signal.SIG_IGN if handled else signal.default_int_handler
    monkeypatch.setattr(signal, "getsignal", lambda number: handler)
    environment = PythonEnvironment(Ends, pool=PoolConfig(kind="loop"))
    object.__setattr__(environment, "_spec", PythonEnvironment(CountingEnvironment).spec())
    pool = environment.make_pool(1, 1, [3])
    pool.start()
    pool.recv()
    with pytest.raises(EnvironmentFault if handled else type(error)):
        pool.send(np.zeros(1, pool.spec.action.dtype), np.zeros(1, np.int32))
        pool.recv()
