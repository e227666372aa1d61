"""The actor's node."""

import threading
from types import SimpleNamespace

import pytest

from distrl import envs
from distrl.config import ActorsConfig
from distrl.envs.pool_config import PoolConfig
from distrl.experiment import Experiment
from distrl.goal import Goal
from distrl.programs.nodes import actor
from distrl.testing import CheckingConfig, CountingEnvironment


@pytest.mark.parametrize(("wait_num", "step"), [(None, 12), (2, 6)])
def test_a_lease_is_for_steps_of_all_copies(monkeypatch, wait_num, step):
    monkeypatch.setattr(actor, "configure_jax", lambda: None)
    monkeypatch.setattr(actor.node_context, "stop_event", threading.Event)
    for name in ("Reporter", "actor_client", "_writer", "_own_inferencer", "make_actor"):
        monkeypatch.setattr(actor, name, lambda *args, **kwargs: None)
    made = []
    monkeypatch.setattr(actor, "ActorLease", lambda *args: made.append(args))
    environment = envs.PythonEnvironment(CountingEnvironment, pool=PoolConfig(kind="loop"))
    experiment = Experiment(
        envs.Copies(environment, 3),
        policies={name: CheckingConfig() for name in "abc"},
        policy_of=dict(zip("012", "abc", strict=True)),
        actors=ActorsConfig(num_actors=2, num_envs=4, wait_num=wait_num),
        goal=Goal(mean_return=None, max_env_steps=100),
    )
    handles = dict.fromkeys("abc", SimpleNamespace())
    node = actor.ActorNode(experiment, 1, handles, None, {}, handles, {})
    node._opened.close()
    ((_, task, name, life, of_lease, before, _),) = made
    assert (task, name, life, of_lease, before) == ("a", "actor/1", 0, step, 0)
