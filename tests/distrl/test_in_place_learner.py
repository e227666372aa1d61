"""Updates that overwrite parameters and learner state, of which others get copies."""

import threading
import types

import jax
import numpy as np
import pytest

from distrl import in_place_learner, presets, specs
from distrl.agents.agent import PRIORITIES
from distrl.agents.compiling import may_overwrite
from distrl.agents.dqn import DQNConfig
from distrl.errors import DeadlineExceeded, SaveError
from distrl.in_place_learner import InPlaceLearner, follows_structs
from distrl.learner import Learner
from distrl.learning import joined_params
from distrl.learning.random_batches import NoReplay, random_batch
from distrl.replay.columns import Columns
from distrl.runtime.joined import Joined
from distrl.specs import trajectory_struct
from distrl.types import Sample, Trajectory

pytestmark = pytest.mark.skipif(not may_overwrite(), reason="this JAX may not overwrite arrays")

AGENTS = {
    name: presets.experiment(env, name).make_agent()
    for name, env in (("dqn", "CartPole-v1"), ("sac", "Pendulum-v1"))
}
BOTH = pytest.mark.parametrize("keeps_params", [False, True])


def read_to_copy(learner):
    version, params = learner.published.current_to_copy()
    return version, params.split() if isinstance(params, Joined) else params


READS = {"to_keep": lambda learner: learner.variables, "to_copy": read_to_copy}


def batch(agent, seed=0, inserts=0):
    keys = np.arange(4, dtype=np.uint64)
    sample = Sample(random_batch(agent, 1, len(keys)), keys, inserts)
    rewards = np.random.default_rng(seed).normal(size=(2, 4)).astype(np.float32)
    timestep = sample.trajectory.timestep._replace(reward=rewards)
    return sample._replace(trajectory=sample.trajectory._replace(timestep=timestep))


def packed_as(columns, sample):
    block = columns.allocate(len(sample.key))
    columns.put(block, slice(None), columns.block(sample.trajectory))
    return columns.sample(block, sample.trajectory.probability, sample.key, sample.inserts)


def learner(keeps_params=False, name="dqn"):
    return InPlaceLearner(AGENTS[name], NoReplay(), seed=0, keeps_params=keeps_params)


def plain(name="dqn"):
    return Learner(AGENTS[name], NoReplay(), seed=0)


def same(one, other):
    jax.tree.map(np.testing.assert_array_equal, one, other)


def differ(one, other):
    return not all(map(np.array_equal, jax.tree.leaves(one), jax.tree.leaves(other)))


def arrays(learner):
    return learner.state()[1:3]


@pytest.mark.parametrize("name", AGENTS)
@BOTH
def test_it_learns_what_another_learner_does(name, keeps_params):
    other, one = plain(name), learner(keeps_params, name)
    for seed in range(5):
        assert one.version == seed
        same(one.variables, other.variables)
        for each in (other, one):
            each.update(batch(AGENTS[name], seed))
        same(arrays(one), arrays(other))
    same(one.get_variables(4), other.get_variables(4))


@BOTH
@pytest.mark.parametrize("small_batch", [1 << 16, 0])
def test_packed_samples_are_learned_from_as_others(keeps_params, small_batch, monkeypatch):
    monkeypatch.setattr(in_place_learner, "_SMALL_BATCH", small_batch)
    agent, forms = AGENTS["dqn"], []
    columns = Columns(trajectory_struct(agent.env_spec, (), ()), 1)
    one = InPlaceLearner(agent, NoReplay(columns), seed=0, keeps_params=keeps_params)
    other, update = plain(), one._update

    def spied(*args):
        forms.append(type(args[-1]))
        return update(*args)

    one._update = spied
    packed = tuple if small_batch else Trajectory
    for seed in range(3):
        sample = batch(agent, seed)
        again = packed_as(columns, sample)
        one.update(again)
        other.update(sample)
        same(arrays(one), arrays(other))
        later = batch(agent, seed + 10)  # what was packed says nothing about it
        one.update(again._replace(trajectory=later.trajectory))
        other.update(later)
        same(arrays(one), arrays(other))
    assert forms == [packed, Trajectory] * 3


@BOTH
def test_what_is_compiled_ahead_is_what_samples_need(keeps_params):
    agent = AGENTS["dqn"]
    columns = Columns(trajectory_struct(agent.env_spec, (), ()), 1)
    one = InPlaceLearner(agent, NoReplay(columns), seed=0, keeps_params=keeps_params)
    sample = batch(agent)
    given, structs = [], specs.struct(sample.trajectory)
    one._update, update = types.SimpleNamespace(lower=None), one._update

    def lower(*args):
        given.extend(args)
        return types.SimpleNamespace(compile=lambda: None)

    one._update.lower = lower
    one.compile_ahead(structs)
    one.ahead.wait()
    one._update = update
    again = packed_as(columns, sample)
    words, probability = one._batch(again)
    assert (words.shape, words.dtype) == (given[-1][0].shape, given[-1][0].dtype)
    assert (probability.shape, probability.dtype) == (given[-1][1].shape, given[-1][1].dtype)


@BOTH
def test_leaves_that_follow_from_environment_steps_are_up_to_date(keeps_params):
    other, one = plain(), learner(keeps_params)
    shown = []
    for seed in range(1, 4):
        for each in (other, one):
            each.update(batch(AGENTS["dqn"], seed, inserts=1000 * seed))
        same(arrays(one), arrays(other))
        shown.append(float(one.variables[1]["agent"]["epsilon"]))
    assert 1.0 > shown[0] > shown[1] > shown[2]


@BOTH
def test_logs_are_those_of_another_learner(keeps_params):
    other, one = plain(), learner(keeps_params)
    assert one.take_report() == other.take_report()
    shown = []
    for each in (other, one):
        each.on_update = lambda version, trained_steps, logs, params: shown.append(logs)
        each.update(batch(AGENTS["dqn"]))
    same(*shown)
    assert "loss" in shown[1] and PRIORITIES not in shown[1]
    assert one.take_report() == other.take_report()


def test_it_keeps_older_parameters_where_they_are_asked_for():
    one = InPlaceLearner(AGENTS["dqn"], NoReplay(), seed=0, keeps_params=True, keep=2)
    kept = [one.variables[1]]
    for seed in range(2):
        one.update(batch(AGENTS["dqn"], seed))
        kept.append(one.variables[1])
    assert one.published.versions() == [1, 2]
    for version in (1, 2):
        same(one.published.of_version(version), kept[version])
    with pytest.raises(LookupError, match="the parameters of 0 updates are not kept"):
        one.published.of_version(0)


def test_which_agents_can_have_it():
    class Scaled(type(AGENTS["dqn"])):
        def with_env_steps(self, params, env_steps):
            return jax.tree.map(lambda leaf: leaf * 0.5, params)

    class OnTheHost(Scaled):
        def with_env_steps(self, params, env_steps):
            return jax.tree.map(lambda leaf: np.where(env_steps < 0, leaf, leaf), params)

    class Changed(Scaled):
        def with_env_steps(self, params, env_steps):
            return {"agent": params}

    agent = AGENTS["dqn"]
    assert all(map(follows_structs, AGENTS.values()))
    for kind in (Scaled, OnTheHost, Changed):
        other = object.__new__(kind)
        vars(other).update(vars(agent))
        assert not follows_structs(other)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@BOTH
def test_what_was_given_out_stays_as_it_is(keeps_params, read):
    one, agent = learner(keeps_params), AGENTS["dqn"]
    shown = []
    one.on_update = lambda version, trained_steps, logs, params: shown.append(params)
    kept = []
    for seed in range(3):
        version, params = read(one)
        kept.append((params, one.state()))
        assert version == one.state().version == seed
        one.update(batch(agent, seed))
    for (params, state), after in zip(kept, shown, strict=True):
        same(params, state.params)
        assert differ(params, after)
    for last in READS.values():
        same(shown[-1], last(one)[1])
    for params, of_update in zip([params for params, _ in kept[1:]], shown, strict=False):
        same(params, of_update)


@BOTH
def test_it_resumes_from_a_state_which_stays_as_it_is(keeps_params):
    one, agent = learner(keeps_params), AGENTS["dqn"]
    one.update(batch(agent))
    state = one.state()
    others = [learner(), plain(), learner(True)]
    for other in others:
        other.restore(state)
        other.restore(other.state())  # as for a copy of another's parameters
    for each in (one, *others):
        each.update(batch(agent, 1))
    for other in others:
        same(arrays(other), arrays(one))
    assert differ(state.params, one.state().params)
    again = learner()
    again.restore(state)
    same(arrays(again), state[1:3])


@pytest.mark.parametrize("first", READS.values(), ids=READS)
@BOTH
def test_parameters_that_are_not_finite_are_not_given_out(keeps_params, first):
    one, agent = learner(keeps_params), AGENTS["dqn"]
    one.update(batch(agent))
    version, params = first(one)
    kept = jax.tree.map(np.array, params)
    sample = batch(agent, 1)
    sample.trajectory.timestep.reward[:] = np.nan
    one.update(sample)
    assert one.version == 2
    for read in (*READS.values(), first):
        assert read(one)[0] == version == 1
        same(read(one)[1], kept)
        one.update(sample)


def test_a_state_is_copied_between_two_updates(monkeypatch):
    one, agent = learner(), AGENTS["dqn"]
    sample, begun, may_end = batch(agent), threading.Event(), threading.Event()
    one.update(sample)
    version, update = one.version, one._update

    def slow(*args):
        made = update(*args)  # overwrites them
        begun.set()
        assert may_end.wait(30.0)
        return made

    one._update = slow
    updating = threading.Thread(target=one.update, args=(sample,))
    updating.start()
    try:
        assert begun.wait(30.0)
        monkeypatch.setattr(joined_params, "UPDATE_S", 0.01)
        for read in (one.state, lambda: one.variables, one.published.current_to_copy):
            with pytest.raises(DeadlineExceeded, match=r"an update has taken more than 0\.01 s"):
                read()
        monkeypatch.undo()
        states = []
        reading = threading.Thread(target=lambda: states.append((one.state(), one.variables)))
        reading.start()
    finally:
        may_end.set()
        updating.join(30.0)
    reading.join(30.0)
    [(state, (newest, params))] = states
    assert state.version == newest == version + 1
    same(params, state.params)


@pytest.mark.parametrize("read", READS.values(), ids=READS)
@BOTH
def test_an_update_that_raises_leaves_the_last_copy_of_the_parameters(keeps_params, read):
    one, agent = learner(keeps_params), AGENTS["dqn"]
    one.update(batch(agent))
    version, params = read(one)
    kept = jax.tree.map(np.array, params)
    one.update(batch(agent, 1))
    update = one._update

    def fail(*args):
        update(*args)
        raise MemoryError("out of memory")

    one._update = fail
    with pytest.raises(MemoryError):
        one.update(batch(agent, 2))
    with pytest.raises(SaveError, match="state after 2 updates is lost: the next one"):
        one.state()
    for again in READS.values():
        assert version == 1 and again(one)[0] == (2 if keeps_params else 1)
        if not keeps_params:
            same(again(one)[1], kept)


@BOTH
def test_a_learner_state_may_be_the_parameters_themselves(keeps_params):
    plain = DQNConfig().make(AGENTS["dqn"].env_spec)

    class Agent(type(plain)):
        def update_learner_state(self, params, opt_state, learner_state):
            state = super().update_learner_state(params, opt_state, learner_state)
            return state._replace(target=params["network"])

    agent = Agent(plain.config, plain.env_spec)
    one = InPlaceLearner(agent, NoReplay(), seed=0, keeps_params=keeps_params)
    other = Learner(agent, NoReplay(), seed=0)
    for seed in range(3):
        for each in (one, other):
            each.update(batch(agent, seed))
        state = one.state()
        same(state.agent.target, state.params["network"])
        same(arrays(one), arrays(other))
