"""Saved policies as opponents: their actions are those of `load_policy`, stream by stream."""

import dataclasses
import shutil

import jax
import numpy as np
import pytest

from distrl.agents.a2c import A2CConfig
from distrl.agents.networks import NetworkConfig
from distrl.checkpointing.params_file import save_params
from distrl.checkpointing.store import PARAMS, Checkpoints
from distrl.config import ActorsConfig, LearnerConfig
from distrl.envs import MultiAgentEnvironment, PythonEnvironment, make
from distrl.errors import ConfigError
from distrl.experiment import Experiment, LearnedPolicy
from distrl.launch.run_dir import run_dir
from distrl.policy import load_policy
from distrl.programs.single_process_parts import SingleProcess
from distrl.replay.config import ReplayConfig
from distrl.saved.saved_agent import PICKLE, agent_writer
from distrl.saved_policy import PastPolicies, SavedPolicy
from distrl.task import make_agent
from distrl.testing import CheckingConfig, CountingAgents, CountingEnvironment
from distrl.types import StepType, TimeStep

ENVIRONMENT, CARTPOLE = PythonEnvironment(CountingEnvironment), make("CartPole-v1")
LSTM = NetworkConfig(hidden_sizes=(8,), core="lstm", core_size=4)
REPLAY = ReplayConfig(unroll_length=5, max_size=100)
FIRST, MID, LAST = StepType.FIRST, StepType.MID, StepType.LAST


def save(run_dir, config, version, environment=ENVIRONMENT):
    """Writes a checkpoint with new parameters; those of a CheckingAgent are its version."""
    made = Experiment(environment, config, REPLAY, ActorsConfig(1, 2), learner=LearnerConfig(2))
    task = made.only_task
    agent = make_agent(config, (), task.env_spec)
    params = jax.jit(agent.initial_params)(np.array([0, 3], np.uint32))
    if isinstance(config, CheckingConfig):
        params = jax.tree.map(lambda leaf: np.full_like(leaf, version), params)

    def fill(folder):
        save_params(folder / PARAMS, version, params)
        agent_writer(task)(folder)
        return {}

    run_dir.mkdir(exist_ok=True)
    return Checkpoints(run_dir, 100).write(version, fill)


def steps(rng, count, streams, spec):
    """Gives time steps of random subsets of streams, whose episodes have three to six steps."""
    left = np.zeros(streams, int)
    for _ in range(count):
        ids = rng.permutation(streams)[: rng.integers(1, streams + 1)].astype(np.int32)
        step_type = np.where(left[ids] == 0, FIRST, np.where(left[ids] == 1, LAST, MID))
        left[ids] = np.where(left[ids] == 0, rng.integers(2, 6, len(ids)), left[ids] - 1)
        shape = (len(ids), *spec.observation.shape)
        observation = rng.normal(size=shape).astype(spec.observation.dtype)
        reward = np.where(step_type == FIRST, 0, rng.normal(size=len(ids))).astype(np.float32)
        ones = np.ones(len(ids), np.float32)
        yield ids, TimeStep(step_type.astype(np.int8), reward, ones, observation, (), ids)


def with_previous(timestep, previous):
    """The time step with the streams' last actions, zeros at FIRST."""
    first = timestep.step_type == FIRST
    return timestep._replace(prev_action=np.where(first, 0, previous).astype(previous.dtype))


def test_a_recurrent_policy_acts_as_if_loaded_for_each_stream(tmp_path):
    save(tmp_path / "run", A2CConfig(LSTM), 12, CARTPOLE)
    policy = SavedPolicy(str(tmp_path / "run"))
    policy.check(CARTPOLE.spec(), "them")
    source = policy.make_source(CARTPOLE.spec(), 2, 0)
    each = [load_policy(tmp_path / "run") for _ in range(2)]
    actions = np.zeros(2, CARTPOLE.spec().action.dtype)
    seen = set()
    for ids, timestep in steps(np.random.default_rng(0), 60, 2, CARTPOLE.spec()):
        timestep = with_previous(timestep, actions[ids])
        inference = source.inference(ids, timestep)
        for row, stream in enumerate(ids.tolist()):
            if timestep.step_type[row] == FIRST:
                each[stream].reset()
            each[stream](timestep.observation[row], timestep.reward[row])
            want = each[stream]._prev_action[0]  # what it chose, before it is clipped
            assert inference.action[row] == want
            actions[stream] = inference.action[row]
            seen.add(int(want))
    assert seen == {0, 1}


def test_each_episode_has_one_earlier_version(tmp_path):
    run = tmp_path / "run"
    policy = PastPolicies(str(run), newest=2, refresh=0.0, trust=True)
    source = policy.make_source(ENVIRONMENT.spec(), 5, 1)
    versions, allowed, current, random = set(), {}, None, 0
    for call, (ids, timestep) in enumerate(
        steps(np.random.default_rng(1), 240, 5, ENVIRONMENT.spec())
    ):
        if call in (40, 80, 120):  # a version more, and from the third on one less
            save(run, CheckingConfig(), call)
        current = [version for version in (40, 80, 120) if version <= call][-2:]
        timestep = with_previous(timestep, np.zeros(len(ids), np.float32))
        action = source.inference(ids, timestep).action
        for row, stream in enumerate(ids.tolist()):
            if timestep.step_type[row] == FIRST:
                allowed[stream] = None
                if current:
                    allowed[stream] = float(action[row])
                    assert action[row] in current
                    versions.add((float(action[row]), call >= 120))
            if allowed[stream] is None:
                random += 1
                assert action[row] not in (40, 80, 120)
            else:
                assert action[row] == allowed[stream]
    assert versions == {(40, False), (80, False), (80, True), (120, True)}
    assert random > 50


def test_damaged_checkpoints_are_no_past_policies(tmp_path, capsys):
    run = tmp_path / "run"
    paths = [save(run, CheckingConfig(), version) for version in (1, 2, 3)]
    (paths[1] / PARAMS).write_bytes(b"damaged")
    policy = PastPolicies(str(run), newest=2, refresh=0.0, trust=True)
    source = policy.make_source(ENVIRONMENT.spec(), 5, 1)
    seen = set()
    for ids, timestep in steps(np.random.default_rng(1), 60, 5, ENVIRONMENT.spec()):
        timestep = with_previous(timestep, np.zeros(len(ids), np.float32))
        seen.update(source.inference(ids, timestep).action.tolist())
    assert seen == {1.0, 3.0}
    (line,) = capsys.readouterr().out.splitlines()
    assert line.startswith(f"PastPolicies: checkpoint skipped: {paths[1]} is damaged: params.npz")
    (paths[2] / PICKLE).unlink()  # loaded already: it stays
    source.inference(ids, timestep)
    assert not capsys.readouterr().out
    unread = PastPolicies(str(run), newest=2, refresh=0.0)  # a setting, not damage
    with pytest.raises(ConfigError, match="has code of its own"):
        unread.make_source(ENVIRONMENT.spec(), 5, 1).inference(ids, timestep)


def test_in_an_experiment(tmp_path):
    save(tmp_path / "run", CheckingConfig(), 77)
    saved = SavedPolicy(str(tmp_path / "run"), trust=True)
    made = Experiment(
        MultiAgentEnvironment(CountingAgents),
        policies={
            "outer": LearnedPolicy(CheckingConfig(), REPLAY, LearnerConfig(batch_size=6)),
            "inner": saved,
        },
        policy_of={"a": "outer", "b": "inner", "c": "outer"},
        actors=ActorsConfig(1, 3),
    )
    with SingleProcess(made, printer=lambda line: None) as parts:
        acted = []
        send = parts.actor._pool.send

        def noting(actions):
            acted.append(actions.get("inner"))
            send(actions)

        parts.actor._pool.send = noting
        for _ in range(10):
            assert parts.run_once()
        report = parts.tasks["outer"].learner.take_report()
    assert not any(value for key, value in report.items() if key.startswith("wrong_"))
    assert all((each == 77).all() for each in acted if each is not None)


def test_what_cannot_work_is_refused(tmp_path):
    with pytest.raises(
        ConfigError, match=r"SavedPolicy: .*nothing is not a checkpoint, and has no"
    ):
        SavedPolicy(str(tmp_path / "nothing"))
    (tmp_path / "several" / "tasks" / "prey").mkdir(parents=True)
    with pytest.raises(ConfigError, match=r"several policies: name one, such as .*tasks/prey"):
        SavedPolicy(str(tmp_path / "several"))
    with pytest.raises(ConfigError, match="newest must be a whole number, 1 or more"):
        PastPolicies("runs/x", newest=0)
    save(tmp_path / "run", A2CConfig(LSTM), 3, CARTPOLE)
    policy = SavedPolicy(str(tmp_path / "run"))
    spec = CARTPOLE.spec()
    other = spec._replace(observation=spec.reward)
    with pytest.raises(ConfigError, match=r"policy 'them': .*was trained with another observation"):
        policy.check(other, "them")
    save(tmp_path / "own", CheckingConfig(), 4)
    with pytest.raises(ConfigError, match="trust=True"):
        SavedPolicy(str(tmp_path / "own")).check(ENVIRONMENT.spec(), "them")


def test_past_policies_that_cannot_be_loaded_are_refused_at_the_start(tmp_path):
    past = PastPolicies(str(tmp_path / "run"))
    past.check(CARTPOLE.spec(), "them")  # there is none yet
    save(tmp_path / "run", CheckingConfig(), 3)
    good = save(tmp_path / "run", A2CConfig(LSTM), 4, CARTPOLE)
    damaged = save(tmp_path / "run", A2CConfig(LSTM), 5, CARTPOLE)
    (damaged / PARAMS).write_bytes(b"damaged")
    past.check(CARTPOLE.spec(), "them")  # of the newest that is not damaged
    with pytest.raises(ConfigError, match=r"policy 'them': .*was trained with another action"):
        past.check(ENVIRONMENT.spec(), "them")
    shutil.rmtree(good)
    with pytest.raises(ConfigError, match="trust=True"):
        past.check(ENVIRONMENT.spec(), "them")
    PastPolicies(past.path, trust=True).check(ENVIRONMENT.spec(), "them")


def against_itself(path, agent, environment=CountingAgents, trust=False):
    return Experiment(
        MultiAgentEnvironment(environment),
        policies={
            "now": LearnedPolicy(agent, REPLAY, LearnerConfig(batch_size=6)),
            "before": PastPolicies(str(path), trust=trust),
        },
        policy_of={"a": "now", "b": "before", "c": "now"},
        actors=ActorsConfig(1, 3),
    )


def test_self_play_that_could_not_load_its_checkpoints_does_not_begin(tmp_path, monkeypatch):
    monkeypatch.setattr(run_dir, "lock", lambda path: None)
    run = tmp_path / "run"

    def begin(made):
        return run_dir.open_run(str(run), made, "single_process", ["x"], lambda line: None)

    message = (
        rf"^policy 'before': PastPolicies\('{run}'\) has the checkpoints of this run, and its agent"
        r".* \(distrl\.testing\.CheckingConfig\): loading them runs that code; set trust=True$"
    )
    with pytest.raises(ConfigError, match=message):
        begin(against_itself(run, CheckingConfig()))
    assert not run.exists()
    begin(against_itself(tmp_path / "another", CheckingConfig()))
    begin(against_itself(run, CheckingConfig(), trust=True))


@pytest.mark.parametrize("of_task", [False, True])
def test_self_play_that_would_never_find_a_checkpoint_does_not_begin(tmp_path, of_task):
    run = tmp_path / "run"
    folder = run / "tasks" / "now" if of_task else run
    several = {"then": LearnedPolicy(CheckingConfig(), REPLAY, LearnerConfig(batch_size=6))}
    made = against_itself(folder, CheckingConfig(), trust=True)
    if not of_task:
        policies = {**made.policies, **several}
        policy_of = {"a": "now", "b": "before", "c": "then"}
        made = dataclasses.replace(made, policies=policies, policy_of=policy_of)
    own = f"{run}" if of_task else f"{run}/tasks/now or {run}/tasks/then"
    message = (
        rf"^policy 'before': PastPolicies\('{folder}'\) will never find a checkpoint; that run has "
        rf"them in {own}$"
    )
    with pytest.raises(ConfigError, match=message):
        run_dir.open_run(str(run), made, "single_process", ["x"], lambda line: None)
    assert not run.exists()
    if not of_task:  # the same of another run
        (run / "tasks" / "then").mkdir(parents=True)
        (run / "tasks" / "now").mkdir()
        with pytest.raises(ConfigError, match=message):
            run_dir.open_run(f"{run}2", made, "single_process", ["x"], lambda line: None)
