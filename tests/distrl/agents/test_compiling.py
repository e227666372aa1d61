"""How agents' functions are compiled."""

import dataclasses
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import presets
from distrl.agents import compiling
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
    assert options(4, layer=256) == OLDER
    assert options(7, 7, 3, dtype=np.uint8, layer=512) == OLDER
    assert options(84, 84, 4, dtype=np.uint8) is None


@pytest.mark.skipif(not compiling._HAS_BOTH, reason="later ones ignore it")
def test_products_with_small_matrices_have_one_thread():
    assert options(4, layer=64) == options(4, layer=128) == ONE_THREAD
    assert options(4, layer=129) == options(129, layer=64) == OLDER


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
