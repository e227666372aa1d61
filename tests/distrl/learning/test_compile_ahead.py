"""What is compiled ahead is not compiled again when it is called."""

import jax
import numpy as np
import pytest
from jax import monitoring

from distrl.config import ActorsConfig, LearnerConfig
from distrl.envs import PythonEnvironment
from distrl.experiment import Experiment
from distrl.learning.compile_ahead import CompileAhead
from distrl.programs.build import NEVER, Builder
from distrl.replay.config import ReplayConfig
from distrl.testing import CheckingConfig, CountingEnvironment
from distrl.variables.client import VariableClient

COMPILE = "/jax/core/compile/backend_compile_duration"
_seen: list[str] = []
monitoring.register_event_duration_secs_listener(lambda name, *_, **__: _seen.append(name))


def compilations(call):
    _seen.clear()
    call()
    return _seen.count(COMPILE)


def builder():
    return Builder(
        Experiment(
            PythonEnvironment(CountingEnvironment, "counting"),
            CheckingConfig(),
            replay=ReplayConfig(max_size=16, unroll_length=3),
            actors=ActorsConfig(1, 4),
            learner=LearnerConfig(batch_size=4),
        )
    )


def test_a_function_of_shapes():
    function = jax.jit(lambda x: x * 2)
    CompileAhead(function, jax.ShapeDtypeStruct((3,), np.float32)).wait()
    assert compilations(lambda: function(np.ones(3, np.float32))) == 0
    assert compilations(lambda: function(np.ones(2, np.float32))) == 1


def test_what_fails_is_said_and_left_to_the_call(capsys):
    def fails(x):
        raise ValueError("so")

    CompileAhead(jax.jit(fails), jax.ShapeDtypeStruct((3,), np.float32)).wait()
    assert capsys.readouterr().out == "not compiled ahead: ValueError: so\n"
    with pytest.raises(ValueError, match="so"):
        jax.jit(fails)(1.0)
    CompileAhead(fails, 1.0).wait()  # no function of jax.jit
    assert capsys.readouterr().out == ""


def test_an_update_and_an_inference():
    built = builder()
    replay = built.make_local_replay(None, None)
    learner = built.make_learner(replay)
    learner.compile_ahead(built.task.batch_struct(built.struct))
    learner.ahead.wait()
    inferencer = built.make_inferencer(None, 4)
    inferencer.compile_ahead(built.agent, 4)
    inferencer.set_variables(VariableClient(learner, NEVER))
    pool = built.make_shared_pool(0)
    timestep = pool.reset()
    ids = np.arange(4, dtype=np.int32)
    assert compilations(lambda: inferencer.inference(ids, timestep)) == 0
    while not replay.can_sample():
        inference = inferencer.inference(ids, timestep, 0, replay.needs_state(ids, 0))
        replay.add(ids, timestep, inference)
        timestep = pool.step(inference.action)
    sample = replay.sample(1.0)
    assert compilations(lambda: learner.update(sample)) == 0
    pool.close()
