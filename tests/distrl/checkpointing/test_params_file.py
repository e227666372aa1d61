"""Parameters with their statistics: from eight actors, through a file, into a clean process."""

import errno
import gc
import importlib.util
import os
import runpy
import signal
import subprocess
import sys
import threading
from multiprocessing.connection import Listener
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distrl.checkpointing.params_file import load_params, save_nest, save_params
from distrl.errors import SpecError
from distrl.learner import Learner
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.transforms import statistics
from distrl.types import StepType
from tests.support.full_disk import no_file_above

PROGRAM = Path(__file__).with_name("noise_program.py")
PATHS = os.pathsep.join(filter(None, (str(PROGRAM.parents[3]), os.environ.get("PYTHONPATH"))))
noise = SimpleNamespace(**runpy.run_path(str(PROGRAM)))
KILLED, UPDATES = 3, 40
UNTIL_S = 60.0


def start(*arguments):
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": PATHS},
    )  # fmt: skip


def collect(listener, table, struct):
    """Adds the steps that each actor sends to the table, until it dies."""

    def one(connection):
        replay = LocalReplayBuffer(table, struct, noise.CONFIG, noise.BATCH)
        try:
            while True:
                replay.add(*connection.recv())
                connection.send(None)
        except (EOFError, ConnectionError):
            pass  # it was killed

    for _ in range(noise.NUM_ACTORS):
        threading.Thread(target=one, args=(listener.accept(),), daemon=True).start()


class Run:
    """A learner fed by eight processes, one of which is killed half way; and what it consumed."""

    def __init__(self, transport, folder):
        struct, server, listener = noise.struct(), None, None
        if transport == "reverb":
            server = start("serve")
            address = server.stdout.readline().strip()
            replay = noise.reverb_client(address)
        else:
            address = str(folder / "socket")
            listener = Listener(address, "AF_UNIX")
            table = LocalTable(struct, noise.CONFIG, noise.BATCH)
            threading.Thread(target=collect, args=(listener, table, struct), daemon=True).start()
            replay = LocalReplayBuffer(table, struct, noise.CONFIG, noise.BATCH)
        actors = start("actors", transport, address)
        pids = [int(pid) for pid in actors.stdout.readline().split()]
        try:
            self.learner = Learner(noise.make_agent(), replay, seed=0)
            self.consumed = []
            for update in range(UPDATES):
                if update == UPDATES // 2:
                    os.kill(pids[KILLED], signal.SIGKILL)
                sample = replay.sample(UNTIL_S)
                self.learner.update(sample)
                self.consumed.append(jax.tree.map(np.array, sample.trajectory))
        finally:
            for pid in set(pids) - {pids[KILLED]}:
                os.kill(pid, signal.SIGKILL)
            actors.wait(10)  # reaps them
            replay.close()
            if server is not None:
                server.communicate("", timeout=20)
            if listener is not None:
                listener.close()


@pytest.fixture(scope="module", params=["pipes", pytest.param("reverb", marks=pytest.mark.slow)])
def run(request, tmp_path_factory):
    if request.param == "reverb" and importlib.util.find_spec("reverb") is None:
        pytest.skip("dm-reverb is not installed (it has wheels for Python 3.10 at most)")
    return Run(request.param, tmp_path_factory.mktemp("run"))


def test_statistics_of_eight_actors_are_those_of_the_pooled_data(run):
    """One of the actors was killed in between."""
    steps = [trajectory.timestep for trajectory in run.consumed]
    rows = {
        name: np.concatenate([s.observation[name][:-1].reshape(-1, size) for s in steps])
        for name, size in (("count", 2), ("noise", 4))
    }
    streams = np.concatenate([trajectory.stream_id for trajectory in run.consumed])
    killed = range(noise.NUM_ENVS * KILLED, noise.NUM_ENVS * (KILLED + 1))
    assert set(streams) == set(range(noise.NUM_ACTORS * noise.NUM_ENVS))
    assert len(np.unique(rows["count"], axis=0)) == len(rows["count"])  # each step once
    late = np.concatenate([t.stream_id for t in run.consumed[-UPDATES // 4 :]])
    assert not set(killed) & set(late)
    rewards = np.concatenate([s.reward[1:][s.step_type[:-1] != StepType.LAST] for s in steps])
    learned = run.learner.variables[1]["statistics"]
    for got, data in (
        (learned["observation_normalizer"], rows["noise"]),
        (learned["reward_normalizer"], rewards),
    ):
        data = data.astype(np.float64)
        assert float(got.rows.hi) == len(data)
        mean, variance = (
            jax.tree.leaves(function(got))[0] for function in (statistics.mean, statistics.variance)
        )
        np.testing.assert_allclose(mean, data.mean(axis=0), rtol=1e-6)
        np.testing.assert_allclose(variance, data.var(axis=0), rtol=1e-6)


def test_a_policy_acts_alike_after_loading_in_a_clean_process(run, tmp_path):
    params, data, out = (tmp_path / f"{name}.npz" for name in ("params", "data", "out"))
    save_params(params, *run.learner.variables)
    rng = np.random.default_rng(7)
    observation = {
        "count": np.zeros((1000, 2), np.int32),
        "noise": (rng.normal(size=(1000, 4)) * noise.SPREADS + noise.MEANS).astype(np.float32),
    }
    np.savez(data, **observation)
    want = noise.actions(noise.make_agent(), run.learner.variables[1], observation)
    process = start("act", str(params), str(data), str(out))
    process.communicate(timeout=100)
    assert process.returncode == 0
    with np.load(out) as loaded:
        assert int(loaded["version"]) == UPDATES
        for name, actions in want.items():
            np.testing.assert_array_equal(loaded[name], actions)
    assert len(set(want["greedy"].tolist())) > 1


@pytest.fixture
def saved(tmp_path):
    agent = noise.make_agent()
    params = jax.jit(agent.initial_params)(jax.random.PRNGKey(0))
    save_params(tmp_path / "params.npz", 7, params)
    return tmp_path / "params.npz", params


def test_saved_parameters_are_loaded(saved):
    path, params = saved
    version, loaded = load_params(path, params)
    assert version == 7
    assert jax.tree.structure(loaded) == jax.tree.structure(params)
    jax.tree.map(np.testing.assert_array_equal, loaded, params)


def test_a_policy_without_its_statistics_is_refused(saved):
    path, params = saved
    save_params(path, 7, {"agent": params["agent"], "statistics": {}})
    with pytest.raises(
        SpecError,
        match=r"no params\['statistics'\]\['observation_normalizer'\].*expected float32.*other tr",
    ):
        load_params(path, params)


def test_unused_statistics_are_refused(saved):
    path, params = saved
    like = {"agent": params["agent"], "statistics": {}}
    with pytest.raises(SpecError, match=r"params\['statistics'\].* is not among the agent's param"):
        load_params(path, like)


def test_another_shape_is_refused(saved):
    path, params = saved
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((2, *leaf.shape), leaf.dtype), params)
    with pytest.raises(SpecError, match=r"params\['agent'\].*: expected float32\[2, .*\], got flo"):
        load_params(path, like)
    np.savez(path, a=np.zeros(3))
    with pytest.raises(SpecError, match="has no version; it is not a file of parameters"):
        load_params(path, params)


def test_parameters_of_a_type_that_numpy_lacks_are_loaded(tmp_path):
    path = tmp_path / "params.npz"
    params = {"w": jnp.array([[1.5, -2.0, 3.0]], jnp.bfloat16), "b": jnp.ones((), jnp.bfloat16)}
    save_params(path, 7, params)
    _, loaded = load_params(path, params)
    for name, leaf in params.items():
        assert loaded[name].dtype == leaf.dtype
        np.testing.assert_array_equal(loaded[name], leaf)
    like = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, np.float16), params)
    with pytest.raises(SpecError, match=r"params\['b'\]: expected float16\[\], got "):
        load_params(path, like)


def test_a_full_disk_is_one_error_and_leaves_nothing(tmp_path, monkeypatch):
    unraisable = []
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)
    with no_file_above(50_000):
        with pytest.raises(OSError, match=os.strerror(errno.EFBIG)):
            save_nest(tmp_path / "nest.npz", {"w": np.ones(100_000, np.float32)})
        gc.collect()  # a file that is still open is closed here, where it cannot raise
    assert unraisable == [] and list(tmp_path.iterdir()) == []
