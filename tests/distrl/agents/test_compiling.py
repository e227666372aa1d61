"""How agents' functions are compiled."""

import dataclasses
import os
import subprocess
import sys
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import presets
from distrl.agents import compiling
from distrl.agents.networks import NetworkConfig
from tests.support.selection import full

OLDER = {"xla_cpu_use_thunk_runtime": False}
ONE_THREAD = {**OLDER, "xla_cpu_multi_thread_eigen": False}


def options(*shape, dtype=np.float32, layer=64):
    agent = presets.experiment("CartPole-v1", "impala", 0).make_agent()
    spec = agent.env_spec._replace(observation=dm_specs.Array(shape, dtype))
    agent = types.SimpleNamespace(
        env_spec=spec, initial_params=lambda key: {"w": jnp.zeros((*shape, layer)), "n": key[0]}
    )
    return compiling.compiler_options(agent)


@pytest.mark.skipif(not compiling._HAS_BOTH, reason="this JAX has one runtime only")
def test_vectors_have_the_older_runtime_and_large_images_the_newer_one():
    assert options(4, layer=257) == OLDER
    assert options(7, 7, 3, dtype=np.uint8, layer=512) == OLDER
    assert options(84, 84, 4, dtype=np.uint8) is None


@pytest.mark.skipif(not compiling._HAS_BOTH, reason="later ones ignore it")
def test_products_with_small_matrices_have_one_thread():
    widest = compiling._SMALL
    assert options(4, layer=64) == options(4, layer=widest) == ONE_THREAD
    assert options(4, layer=widest + 1) == options(widest + 1, layer=64) == OLDER


@pytest.mark.skipif(compiling._HAS_BOTH, reason="this JAX has neither library for convolutions")
def test_libraries_for_convolutions_are_chosen_by_image_and_dtype():
    matrix_products = {"xla_cpu_experimental_ynn_fusion_type": "LIBRARY_FUSION_TYPE_INDIVIDUAL_DOT"}
    experiment = presets.experiment("Pong-v5", "impala", 0)
    network = dataclasses.replace(experiment.agent.network, cnn_dtype="bfloat16")
    agent = dataclasses.replace(experiment.agent, network=network)
    in_bfloat16 = dataclasses.replace(experiment, agent=agent)
    assert options(4) is None
    assert compiling.compiler_options(experiment.make_agent()) == matrix_products
    assert compiling.update_options(in_bfloat16.make_agent()) == {
        **matrix_products, "xla_cpu_experimental_onednn_custom_call": True,
    }  # fmt: skip


@pytest.mark.skipif(compiling._HAS_BOTH, reason="of later ones")
@pytest.mark.parametrize(
    "option", [("xla_cpu_no_such_option", True), ("xla_cpu_experimental_ynn_fusion_type", "NONE")]
)
def test_options_that_this_jax_does_not_have_are_left_out(option):
    assert not compiling._are_known((option,))


CORES = os.sched_getaffinity(0)
THREADS = """
import os
import sys
cores, *layers = sys.argv[1:]
os.sched_setaffinity(0, map(int, cores.split(",")))  # a test before may have kept one
import jax
from distrl.agents.compiling import computing_threads, start_backend
from tests.distrl.agents.test_compiling import made

start_backend(map(made, map(int, layers)))
start_backend([made(4)])  # later ones do nothing
jax.devices()  # no computation: to compile one needs threads, unless a cache has it
threads = set(map(int, os.listdir("/proc/self/task")))
assert computing_threads() <= threads
print(len(threads), os.environ.get("PJRT_NPROC"), len(computing_threads()))
"""


def made(layer):
    """An agent with a layer of this width."""
    params = {"w": jax.ShapeDtypeStruct((4, layer), np.float32)}
    return types.SimpleNamespace(
        initial_params=lambda key: jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), params)
    )


def threads(*layers, **environ):
    """How many threads a process with agents of these widths has, PJRT_NPROC after all, and how
    many threads compute for others.
    """
    done = subprocess.run(
        [sys.executable, "-c", THREADS, ",".join(map(str, CORES)), *map(str, layers)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **environ},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    count, variable, computing = done.stdout.split()
    return int(count), variable, int(computing)


@pytest.mark.skipif(len(CORES) < 2, reason="one core: one thread anyway")
def test_small_agents_have_one_thread_of_xla_and_children_may_have_more():
    widest = compiling._SMALL
    small, left, computing = threads(64, widest)
    wide, _, several = threads(64, widest + 1)
    assert small < wide and left == "None"
    assert (computing > 0) == (not compiling._HAS_BOTH) and several == 0


SPREAD = """
import os
from distrl.agents import compiling
from distrl.runtime.host_resources import native_threads
from tests.distrl.agents.test_compiling import CORES, made

os.sched_setaffinity(0, sorted(CORES)[:2])
compiling.start_backend([made(512)])
before = {thread: os.sched_getaffinity(thread) for thread in native_threads()}
compiling.spread_threads()
changed = [os.sched_getaffinity(thread) for thread in before]
changed = sorted(map(sorted, (now for now, was in zip(changed, before.values()) if now != was)))
print(changed == [[core] for core in sorted(CORES)[:2]], changed == [])
"""


@pytest.mark.skipif(len(CORES) < 2, reason="one core: one thread anyway")
def test_each_thread_of_xla_has_a_core():
    done = subprocess.run(
        [sys.executable, "-c", SPREAD],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    spread, none = done.stdout.split()
    assert (none if compiling._HAS_BOTH else spread) == "True"


COMPILES = """
import os
import sys
cores, *layers = sys.argv[1:]
os.sched_setaffinity(0, map(int, cores.split(",")))
from distrl.runtime.compilation_cache import use_compilation_cache
use_compilation_cache()
import jax
from distrl.agents.compiling import make_clients, start_backend
from tests.distrl.agents.test_compiling import made

start_backend(map(made, map(int, layers)))
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # as an actor does
make_clients()  # as a policy that is loaded does
jax.jit(lambda x: x * 3 + 1)(2.0)
"""


def compiled(folder, *layers, cores=CORES, **environ):
    """How many functions a process with agents of these widths had to compile."""
    folder.mkdir(exist_ok=True)
    before = len(list(folder.rglob("*-cache")))
    unset = ("JAX_COMPILATION_CACHE_DIR", "PJRT_NPROC")
    kept = {name: value for name, value in os.environ.items() if name not in unset}
    done = subprocess.run(
        [sys.executable, "-c", COMPILES, ",".join(map(str, cores)), *map(str, layers)],
        env={**kept, "JAX_PLATFORMS": "cpu", "DISTRL_COMPILATION_CACHE": str(folder), **environ},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return len(list(folder.rglob("*-cache"))) - before


@pytest.mark.skipif(len(CORES) < 2, reason="one core: one thread anyway")
def test_what_is_compiled_is_shared_among_processes_of_as_many_threads(tmp_path):
    """XLA divides loops among the threads of the process that compiles them."""
    wide = compiling._SMALL + 1
    assert compiled(tmp_path, 64) > 0
    assert compiled(tmp_path, 32) == 0
    assert compiled(tmp_path, wide) > 0
    assert compiled(tmp_path, wide) == compiled(tmp_path, 64, wide) == 0
    assert compiled(tmp_path, wide, cores={min(CORES)}) == 0  # one thread, as the first
    assert compiled(tmp_path, wide, PJRT_NPROC="7") > 0


@pytest.mark.parametrize(("wider", "small"), [(0, True), (1, False)])
def test_an_lstms_gates_are_as_wide_as_four_layers(wider, small):
    network = NetworkConfig(core="lstm", core_size=compiling._SMALL + wider)
    experiment = presets.experiment("CartPole-v1", "r2d2", 0)
    agent = dataclasses.replace(experiment.agent, network=network)
    made = dataclasses.replace(experiment, agent=agent).make_agent()
    assert compiling._is_small(made) == (small and not compiling._HAS_BOTH)


def test_a_number_of_threads_that_a_user_has_set_stays():
    (one, *_), (four, left, computing) = threads(64), threads(64, PJRT_NPROC="4")
    assert four >= one + 3 and left == "4" and computing == 0


def test_gpus_have_no_options(monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert options(4) is None


def test_jax_takes_the_options():
    double = jax.jit(lambda x: jnp.sum(2 * x), compiler_options=options(4))
    assert double(np.ones(4, np.float32)) == 8


@pytest.mark.parametrize("name", ["impala", full("ppo"), full("dqn"), "r2d2"])
def test_updates_from_long_unrolls_of_agents_with_a_memory_are_compiled(name):
    """The older runtime aborts the process in the gradients of some of them."""
    experiment = presets.experiment("MiniGrid-MemoryS7-v0", name, 0)
    network = dataclasses.replace(experiment.agent.network, core="lstm")
    experiment = dataclasses.replace(
        experiment,
        agent=dataclasses.replace(experiment.agent, network=network),
        replay=dataclasses.replace(experiment.replay, unroll_length=48, period=None),
        learner=dataclasses.replace(experiment.learner, batch_size=16),
    )
    task, agent = experiment.only_task, experiment.make_agent()
    params = jax.eval_shape(agent.initial_params, jax.ShapeDtypeStruct((2,), np.uint32))
    state = jax.eval_shape(agent.initial_learner_state, params)
    batch = task.batch_struct(experiment.trajectory_struct())
    assert compiling.update_options(agent) is None
    update = jax.jit(agent.learner_step, compiler_options=compiling.update_options(agent))
    update.lower(params, state, batch).compile()


def test_updates_of_others_are_compiled_as_their_inferences():
    agent = presets.experiment("CartPole-v1", "impala", 0).make_agent()
    assert compiling.update_options(agent) == compiling.compiler_options(agent)
