"""Updates that are not finite: ended with a message or skipped, never published, never saved."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from distrl import presets
from distrl.agents.agent import PRIORITIES
from distrl.checkpointing.checkpointer import Checkpointer
from distrl.checkpointing.resume_point import ResumePoint, restore_learner
from distrl.checkpointing.store import Checkpoints
from distrl.config import CheckpointConfig, LearnerConfig
from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError, Diverged, SpecError
from distrl.experiment import ActorsConfig, Experiment
from distrl.goal import Goal
from distrl.launch.local.single_process import run_single_process
from distrl.learner import Learner
from distrl.learner_group.group import Agreement, SingleProcessGroup
from distrl.learning import divergence
from distrl.testing import CheckingAgent, CountingEnvironment
from distrl.types import TIME_FIELDS, Sample, StepType, TimeStep, Trajectory

COUNTERS = {"mean_return": None, "full_window": False}
UNROLLS = 2


class Summing:
    """Its parameters are the sum of all rewards, and so is its learner state.

    Each of the attributes is added to one of them in an update whose reward is negative.
    """

    params = state = loss = priority = 0.0
    env_spec = PythonEnvironment(CountingEnvironment, "counting").spec()

    def __init__(self, shape=(3,), **poison):
        self._shape = shape
        vars(self).update(poison)

    def initial_params(self, rng):
        return {"mlp": {"b": jnp.zeros(2), "w": jnp.zeros(self._shape)}}

    def initial_state(self, batch_size):
        return ()

    def initial_learner_state(self, params):
        return {"moment": jnp.zeros(()), "limit": jnp.array(jnp.inf)}

    def with_env_steps(self, params, env_steps):
        return params

    def learner_step(self, params, learner_state, batch):
        reward = jnp.sum(batch.timestep.reward)
        bad = reward < 0
        params = {"mlp": {"b": params["mlp"]["b"] + reward, "w": params["mlp"]["w"] + reward}}
        params["mlp"]["w"] = params["mlp"]["w"].at[-1].add(jnp.where(bad, self.params, 0.0))
        state = {**learner_state}
        state["moment"] += reward + jnp.where(bad, self.state, 0.0)
        priorities = jnp.ones(UNROLLS) + jnp.where(bad, self.priority, 0.0)
        return params, state, {"loss": jnp.where(bad, self.loss, reward), PRIORITIES: priorities}


class Table:
    """Takes priorities."""

    is_prioritized = True

    def __init__(self):
        self.sent = []

    def update_priorities(self, keys, priorities):
        assert np.isfinite(priorities).all()
        self.sent.append(int(keys[0]))


def sample(reward, key=0):
    steps = (2, UNROLLS)
    zeros = np.zeros(steps, np.float32)
    timestep = TimeStep(
        np.full(steps, StepType.MID, np.int8), zeros + reward / 4, zeros + 1, zeros, zeros
    )
    integer = np.zeros(UNROLLS, np.int32)
    trajectory = Trajectory(
        timestep, zeros, (), np.zeros(steps, np.int32), (), integer, integer, zeros[0]
    )
    return Sample(trajectory, np.full(UNROLLS, key, np.uint64))


def learn(learner, *rewards):
    for reward in rewards:
        learner.update(sample(reward, key=learner.version + 1))


def weights(learner_or_params):
    return np.asarray(learner_or_params["mlp"]["w"]).ravel().tolist()


@pytest.mark.parametrize(
    ("poison", "what"),
    [
        ({"params": np.nan}, "params['mlp']['w']"),
        ({"params": -np.inf}, "params['mlp']['w']"),
        ({"loss": np.nan}, "loss"),
        ({"loss": np.inf, "params": np.nan}, "params['mlp']['w']"),
        ({"priority": np.inf}, "priorities"),
        ({"params": np.nan, "shape": (300, 300)}, "params['mlp']['w']"),
        ({"loss": np.nan, "shape": (300, 300)}, "loss"),
    ],
)
def test_the_first_step_that_is_not_finite_is_named_with_its_leaf(poison, what):
    learner = Learner(Summing(**poison), Table(), seed=0)
    learn(learner, 1.0, 2.0)
    learner.take_report()
    learn(learner, -1.0, 5.0, -1.0)
    with pytest.raises(Diverged) as error:
        learner.take_report()
    assert str(error.value).startswith(
        f"training has diverged at learner step 3: {what} is not finite; lower the learning rate"
    )
    assert "\n" not in str(error.value)
    with pytest.raises(Diverged, match="learner step 3"):
        learn(learner, 1.0)


@pytest.mark.parametrize("shape", [(100, 200), (3, 3, 40, 60), (70_000,), (5, 5)])
@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_one_element_that_is_not_finite_is_found(shape, dtype):
    is_finite = jax.jit(divergence._are_finite)
    for largest in (jnp.finfo(dtype).max, jnp.finfo(dtype).min):
        x = jnp.full(shape, largest, dtype)
        assert is_finite(x)
        for bad in (jnp.nan, jnp.inf, -jnp.inf):
            for place in (0, 7, -1):
                assert not is_finite(x.reshape(-1).at[place].set(bad).reshape(shape))


class Counting(Summing):
    """Its parameters are no floats, and it logs no loss."""

    def initial_params(self, rng):
        return {"updates": jnp.zeros((), jnp.int32)}

    def initial_learner_state(self, params):
        return ()

    def learner_step(self, params, learner_state, batch):
        return {"updates": params["updates"] + 1}, learner_state, {}


@pytest.mark.parametrize("on_nonfinite", ["fail", "skip"])
def test_an_agent_with_nothing_to_check_learns(on_nonfinite):
    learner = Learner(Counting(), Table(), seed=0, on_nonfinite=on_nonfinite)
    learn(learner, 1.0, -1.0)
    assert int(learner.variables[1]["updates"]) == 2
    assert learner.take_report()["learner_steps"] == 2


def test_only_finite_parameters_are_published():
    learner = Learner(Summing(params=np.nan), Table(), seed=0, keep=3)
    assert learner.get_variables()[0] == 0
    learn(learner, 1.0, 2.0)
    version, params = learner.get_variables()
    assert version == 2 and weights(params) == [3.0] * 3
    learn(learner, -1.0, 1.0)
    assert learner.get_variables(2) is None
    version, params = learner.get_variables(1)
    assert version == 2 and weights(params) == [3.0] * 3
    assert learner.variables[0] == 2
    made = learner.published
    assert made.versions() == [2, 3, 4]
    assert weights(made.of_version(2)) == [3.0] * 3
    assert made.of_version(3) is None and made.of_version(4) is None
    with pytest.raises(LookupError, match=r"of 1 updates are not kept; those of \[2, 3, 4\] are"):
        made.of_version(1)


@pytest.mark.parametrize(
    "poison",
    [{"params": np.nan}, {"loss": np.nan}, {"state": np.inf}, {"priority": np.nan}],
    ids=lambda poison: next(iter(poison)),
)
def test_a_skipped_update_leaves_everything_as_it_was(poison):
    table = Table()
    learner = Learner(Summing(**poison), table, seed=0, on_nonfinite="skip")
    learn(learner, 1.0, 2.0, -1.0, 4.0, -1.0, 8.0)
    report = learner.take_report()
    assert (report["learner_steps"], report["updates_skipped"]) == (6, 2)
    assert weights(learner.variables[1]) == [15.0] * 3
    assert float(learner.state().agent["moment"]) == 15.0
    kept = [1, 2, 4] if "priority" in poison else [1, 2, 3, 4, 5]
    assert table.sent == kept


def test_skipping_ends_where_nothing_is_learned_any_more():
    learner = Learner(Summing(loss=np.nan), Table(), seed=0, on_nonfinite="skip")
    most = divergence.MAX_SKIPPED - 1
    learn(learner, *[-1.0] * most, 1.0, *[-1.0] * most)
    assert learner.take_report()["updates_skipped"] == 2 * most
    learn(learner, -1.0)
    with pytest.raises(Diverged, match=r"100 updates in a row were skipped, the last at learner s"):
        learner.take_report()


def test_what_has_diverged_is_named_if_there_are_several_policies():
    learner = Learner(Summing(loss=np.nan), Table(), seed=0, policy="prey")
    learn(learner, -1.0)
    with pytest.raises(Diverged, match=r"^training of policy 'prey' has diverged at learner step"):
        learner.take_report()


def test_a_member_of_a_population_skips_any_number_and_says_how_many():
    learner = Learner(Summing(loss=np.nan), Table(), seed=0, on_nonfinite="skip")
    learner.skip_any_number()
    learn(learner, -1.0, 1.0, *[-1.0] * (divergence.MAX_SKIPPED + 1))
    assert learner.take_report()["updates_skipped"] == divergence.MAX_SKIPPED + 2
    assert learner.skipped_in_row == divergence.MAX_SKIPPED + 1
    learner.restore(learner.state())  # as for a copy of another's parameters
    assert learner.skipped_in_row == 0


def test_the_skipped_updates_of_a_resumed_run_are_counted_from_the_start(tmp_path):
    learner = Learner(Summing(loss=np.nan), Table(), seed=0, on_nonfinite="skip")
    store = Checkpointer(
        tmp_path, CheckpointConfig(replay=False), learner, None, lambda: COUNTERS, {}
    )
    learn(learner, 1.0, -1.0, -1.0)
    path = store.save()
    resumed = Learner(Summing(loss=np.nan), Table(), seed=0, on_nonfinite="skip")
    restore_learner(resumed, path)
    assert resumed.take_report()["updates_skipped"] == 2
    learn(resumed, -1.0, 1.0)
    assert resumed.take_report()["updates_skipped"] == 3
    resumed.restore(resumed.state())  # as for a copy of another's parameters
    learn(resumed, -1.0)
    assert resumed.take_report()["updates_skipped"] == 4
    resumed.share()
    assert resumed.take_report()["updates_skipped"] == 4
    # Those in a row are of parameters that are no longer there.
    learn(resumed, *[-1.0] * (divergence.MAX_SKIPPED - 1))
    resumed.take_report()
    # A checkpoint of before they were saved.
    file = path / "manifest.json"
    manifest = json.loads(file.read_text())
    del manifest["updates_skipped"]
    file.write_text(json.dumps(manifest))
    restore_learner(resumed, path)
    assert resumed.take_report()["updates_skipped"] == 0


def test_nothing_is_saved_that_is_not_finite(tmp_path):
    learner = Learner(Summing(state=np.nan), Table(), seed=0)
    store = Checkpointer(
        tmp_path, CheckpointConfig(replay=False, keep=1), learner, None, lambda: COUNTERS, {}
    )
    learn(learner, 1.0)
    store.save()
    learn(learner, -1.0)
    learner.take_report()  # the parameters are finite
    with pytest.raises(Diverged, match=r"learner_state\['moment'\] is not finite after .* 2"):
        store.save()
    (path,) = Checkpoints(tmp_path).paths()
    assert path.name == "000001" and Checkpoints(tmp_path).latest() is not None


def test_a_checkpoint_that_is_not_finite_is_not_resumed_from(tmp_path, monkeypatch):
    learner = Learner(Summing(params=np.nan), Table(), seed=0)
    store = Checkpointer(
        tmp_path, CheckpointConfig(replay=False), learner, None, lambda: COUNTERS, {}
    )
    learn(learner, -1.0)
    monkeypatch.setattr(learner, "check", lambda state: None)  # as before there was the check
    path = store.save()
    with pytest.raises(SpecError, match=r"params\['mlp'\]\['w'\] is not finite: .*; move it away"):
        restore_learner(Learner(Summing(), Table(), seed=0), path)


class Ranging(Summing):
    """Also keeps the range of the values that it has seen: none yet, so that it is infinite."""

    def initial_params(self, rng):
        return {**super().initial_params(rng), "range": jnp.array([jnp.inf, -jnp.inf])}

    def learner_step(self, params, learner_state, batch):
        after, state, logs = super().learner_step(params, learner_state, batch)
        return {**after, "range": params["range"]}, state, logs


def test_parameters_that_begin_infinite_are_resumed(tmp_path):
    learner = Learner(Ranging(), Table(), seed=0)
    store = Checkpointer(
        tmp_path, CheckpointConfig(replay=False), learner, None, lambda: COUNTERS, {}
    )
    learn(learner, 1.0)
    path = store.save()
    resumed = Learner(Ranging(), Table(), seed=0)
    restore_learner(resumed, path)
    version, params = resumed.variables
    assert version == 1 and params["range"].tolist() == [np.inf, -np.inf]


def random_sample(experiment, agent, reward):
    """Returns a batch for a learner of an experiment, with one reward of this value."""
    rng, task = np.random.default_rng(0), experiment.only_task
    steps, unrolls = task.replay.unroll_length + 1, task.learner.batch_size

    def fill(leading, leaf):
        shape = (*leading, *leaf.shape)
        if np.issubdtype(leaf.dtype, np.floating):
            return rng.normal(size=shape).astype(leaf.dtype)
        return np.zeros(shape, leaf.dtype)

    parts = {}
    for name, nest in task.trajectory_struct(agent)._asdict().items():
        leading = (steps, unrolls) if name in TIME_FIELDS else (unrolls,)
        parts[name] = jax.tree.map(functools.partial(fill, leading), nest)
    batch = Trajectory(**parts)
    batch.timestep.step_type[:] = StepType.MID
    batch.timestep.discount[:] = 1
    batch.timestep.reward[1, 0] = reward
    return Sample(
        batch._replace(probability=np.full(unrolls, 0.1, np.float32)),
        np.arange(unrolls, dtype=np.uint64),
    )


@pytest.mark.full
@pytest.mark.parametrize("name", sorted(presets.AGENTS))
def test_every_agent_leaves_out_an_update_that_is_not_finite(name):
    env = "Pendulum-v1" if name in ("sac", "td3", "ddpg") else "CartPole-v1"
    made = presets.experiment(env, name)
    agent = made.make_agent()
    learner = Learner(agent, Table(), seed=0, on_nonfinite="skip")
    finite, nan = (random_sample(made, agent, reward) for reward in (1.0, np.nan))
    learner.update(finite)
    before = jax.tree.map(np.array, learner.state()[1:3])
    learner.update(nan)
    assert learner.take_report()["updates_skipped"] == 1
    jax.tree.map(np.testing.assert_array_equal, learner.state()[1:3], before)
    learner.update(finite)
    assert learner.take_report()["updates_skipped"] == 1
    changed = [
        bool((np.asarray(a) != b).any())
        for a, b in zip(jax.tree.leaves(learner.state()[1:3]), jax.tree.leaves(before))
    ]
    assert any(changed)


class Group(SingleProcessGroup):
    """One of two processes; `others` is what the other counts."""

    count = 2
    others = (0, 0, 0, 0, 0, 0, 0, 0)

    def agree(self, proceed, numbers=()):
        return Agreement(proceed, [a + b for a, b in zip(numbers, self.others)])


def test_all_processes_end_at_the_same_update():
    group = Group()
    looks, follows = (
        Learner(Summing(params=np.nan), Table(), seed=0, learner_group=each)
        for each in (SingleProcessGroup(), group)
    )
    learn(follows, 1.0, -1.0)
    follows.take_report()  # it knows, and waits for the others
    follows._diverged = None
    learn(follows, 1.0)  # nobody has looked
    group.others = (0, 0, 0, 1, 0, 0, 0, 0)
    with pytest.raises(Diverged, match="at learner step 2"):
        learn(follows, 1.0)
    assert follows.version == 3
    learn(looks, 1.0, -1.0)
    with pytest.raises(Diverged, match="at learner step 2"):
        looks.take_report()


def test_the_setting_is_checked():
    with pytest.raises(ConfigError, match="expected one of fail, skip"):
        LearnerConfig(on_nonfinite="no")


class Poisoned(CheckingAgent):
    """Its float parameter is not a number after the third update."""

    def initial_params(self, rng):
        return {**super().initial_params(rng), "w": jnp.zeros(())}

    def learner_step(self, params, learner_state, batch):
        w = jnp.where(params["version"] >= 2, jnp.nan, 1.0)
        params, learner_state, logs = super().learner_step(params, learner_state, batch)
        return {**params, "w": w}, learner_state, logs


class PoisonedConfig:
    def __init__(self, seen):
        self.seen = seen

    def make(self, env_spec):
        return Poisoned(env_spec, recurrent=False)


def test_one_process_ends_with_one_line_and_status_1(tmp_path, capsys):
    made = Experiment(
        environment=PythonEnvironment(CountingEnvironment, "counting"),
        agent=PoisonedConfig(None),
        actors=ActorsConfig(num_actors=1, num_envs=4),
        learner=LearnerConfig(batch_size=4),
        goal=Goal(max_env_steps=500),
    )
    assert run_single_process(made, tmp_path, ResumePoint()) == 1
    result = json.loads((tmp_path / "result.json").read_text())
    assert (result["status"], result["exit_code"]) == ("failed", 1)
    assert result["reason"].startswith(
        "Diverged: training has diverged at learner step 3: params['w'] is not finite"
    )
    out, err = capsys.readouterr()
    said = f"distrl: failed: {result['reason']} (exit status 1; nothing was saved)"
    assert out.splitlines()[-1] == said
    assert "Traceback" not in out + err
    assert not (tmp_path / "params.npz").exists() and not Checkpoints(tmp_path).paths()
