"""Outcomes of episodes, vector rewards and action repeat, from a pool's steps to metrics.csv."""

import csv
import math
import types

import jax
import numpy as np
import pytest
from dm_env import specs as dm_specs

from distrl import specs
from distrl.config import MetricsConfig
from distrl.envs import PythonEnvironment
from distrl.episodes import EpisodeOutcome, EpisodeStatistics, RecentEpisodes
from distrl.evaluator import Evaluator, play_to_the_end
from distrl.goal import Goal
from distrl.inference.messages import InferenceMessages
from distrl.metrics.monitor import Monitor
from distrl.metrics.sinks import make_writer
from distrl.replay.buffer import ReplayConfig
from distrl.replay.local.buffer import LocalReplayBuffer
from distrl.replay.local.table import LocalTable
from distrl.testing import CheckingConfig, CountingEnvironment, LateCountingEnvironment
from distrl.types import Inference, TimeStep

REWARD = dm_specs.Array((), np.float32)
SUCCESS = {"success": dm_specs.Array((), np.int8)}


def env_spec(reward=REWARD, env_info=()):
    counting = CountingEnvironment(0)
    return specs.EnvironmentSpec(
        counting.observation_spec(), counting.action_spec(), reward, env_info
    )


def steps(kinds, rewards=None, discounts=None, env_info=()):
    """Returns one vector step."""
    n = len(kinds)
    return TimeStep(
        np.array(kinds, np.int8),
        np.ones(n, np.float32) if rewards is None else np.array(rewards, np.float32),
        np.ones(n, np.float32) if discounts is None else np.array(discounts, np.float32),
        np.zeros((n, 4), np.float32),
        np.zeros(n, np.int32),
        np.arange(n, dtype=np.int32),
        env_info,
    )


@pytest.mark.parametrize(
    ("success", "discount", "outcome"),
    [
        (1, 0, EpisodeOutcome.SUCCESS),
        (1, 1, EpisodeOutcome.SUCCESS),  # also at the time limit
        (0, 0, EpisodeOutcome.FAILURE),
        (0, 1, EpisodeOutcome.TIME_OUT),
        (-1, 0, EpisodeOutcome.END),
        (-1, 1, EpisodeOutcome.TIME_OUT),
        (None, 0, EpisodeOutcome.END),
        (None, 1, EpisodeOutcome.TIME_OUT),
    ],
)
def test_outcome(success, discount, outcome):
    declared = () if success is None else SUCCESS
    statistics = EpisodeStatistics(2, env_spec(env_info=declared))

    def info(value):  # ignored at steps other than LAST
        return () if success is None else {"success": np.array([value, 1], np.int8)}

    assert statistics.add(steps([0, 0], [0, 0], env_info=info(1))) is None
    envs, records = statistics.add(steps([2, 1], [3, 3], [discount, 1], info(success)))
    assert envs.tolist() == [0] and records == [[3.0, 1, outcome]]
    assert statistics.take()["episodes"] == records


def test_undeclared_names_are_ignored():
    """EnvPool has infos of the same names, with another meaning."""
    statistics = EpisodeStatistics(1, env_spec())
    info = {"success": np.ones(1, np.int8), "time_steps": np.full(1, 9, np.int32)}
    statistics.add(steps([0], [0], env_info=info))
    _, records = statistics.add(steps([2], [1], [0], info))
    assert records == [[1.0, 1, EpisodeOutcome.END]]


@pytest.mark.parametrize("asynchronous", [False, True])
def test_lengths_in_time_steps_of_the_unwrapped_environment(asynchronous):
    spec = env_spec(env_info={"time_steps": dm_specs.Array((), np.int32)})
    statistics = EpisodeStatistics(3, spec)
    ids = np.array([2, 0], np.int32) if asynchronous else None
    n = 2 if asynchronous else 3
    lengths = []
    for kind, spent in [(0, 7), (1, 4), (1, 4), (2, 3), (0, 7), (2, 2)]:  # a reset counts nothing
        info = {"time_steps": np.full(n, spent, np.int32)}
        ended = statistics.add(steps([kind] * n, env_info=info), ids)
        if ended is not None:
            envs, records = ended
            assert envs.tolist() == ([2, 0] if asynchronous else [0, 1, 2])
            lengths.append([record[1] for record in records])
    assert lengths == [[11] * n, [2] * n]
    assert statistics.take()["env_steps"] == 4 * n  # transitions, as the learner counts them


@pytest.mark.parametrize("asynchronous", [False, True])
def test_a_vector_reward_is_kept_by_component(asynchronous):
    statistics = EpisodeStatistics(2, env_spec(dm_specs.Array((2,), np.float32)))
    ids = np.array([1, 0], np.int32) if asynchronous else None
    for kind, reward in [(0, [[0, 0], [0, 0]]), (1, [[1, 10], [2, 20]]), (2, [[3, 30], [4, 40]])]:
        ended = statistics.add(steps([kind, kind], reward, [0, 0]), ids)
    envs, records = ended
    assert envs.tolist() == ([1, 0] if asynchronous else [0, 1])
    assert records == [
        [44.0, 2, EpisodeOutcome.END, 4.0, 40.0],
        [66.0, 2, EpisodeOutcome.END, 6.0, 60.0],
    ]


class Grades(CountingEnvironment):
    """Rewards of two components; episodes of even length are successes, if it reports success."""

    reports_success = True

    def step(self, action):
        step = super().step(action)
        return step._replace(reward=np.array([step.reward, 1.0], np.float32))

    def reward_spec(self):
        return dm_specs.Array((2,), np.float32, "reward")

    def env_info_spec(self):
        return SUCCESS if self.reports_success else {}

    def env_info(self):
        return {"success": np.int8(self._length % 2 == 0)}


class Silent(Grades):
    reports_success = False


class ConstantInferencer:
    """An inferencer and its variables, with a constant action."""

    version = 7

    def refresh(self):
        pass

    def inference(self, stream_ids, timestep, life):
        return Inference(np.zeros(len(stream_ids), np.int32), (), 0)


def monitor(goal, run_dir=None, spec=None):
    ends, lines = [], []
    made = Monitor(
        goal,
        lambda *end: ends.append(end),
        make_writer(MetricsConfig(), run_dir, print, {}, None),
        0.0,
        lines.append,
        spec,
    )
    return made, ends, lines


def test_from_a_pool_to_the_metrics(tmp_path):
    """Grades: episodes of 3, 4, 5, 6, 7 steps; 4 and 6 are successes, the others time limits."""
    environment = PythonEnvironment(Grades)
    pool = environment.make_pool(5, 5, seeds=range(5))
    statistics = EpisodeStatistics(5, pool.spec)
    timestep = pool.reset()
    while len(statistics._episodes) < 50:
        statistics.add(timestep)
        timestep = pool.step(np.zeros(5, np.int32))
    pool.close()
    report = statistics.take(restarts=3)
    goal = Goal(mean_return=None, window=50)
    made, _, lines = monitor(goal, tmp_path, environment.spec())
    made.report("actor/0", 0, [report])
    made.report("learner/0", 0, [{"learner_steps": 1, "trained_steps": 10, "loss": 0.0}])
    made.close()
    (first, *_) = csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines())
    recent = report["episodes"][-50:]
    assert float(first["mean_return_1"]) == float(first["mean_length"])  # 1 per step
    lengths = np.array([record[1] for record in recent])
    assert float(first["mean_return_0"]) == np.mean(lengths * (lengths + 1) / 2)
    assert float(first["mean_return"]) == pytest.approx(
        float(first["mean_return_0"]) + float(first["mean_return_1"])
    )
    success = float(np.mean(lengths % 2 == 0))
    assert float(first["success_rate"]) == success
    assert float(first["time_out_rate"]) == pytest.approx(1 - success)
    assert float(first["failure_rate"]) == 0
    assert first["env_restarts"] == "3"
    assert f"success {100 * success:.0f} %" in lines[-1]
    assert "environments restarted 3" in lines[-1]


def test_an_environment_that_reports_no_success(tmp_path):
    made, _, lines = monitor(Goal(mean_return=None), tmp_path, env_spec())
    episodes = [[1.0, 5, EpisodeOutcome.TIME_OUT], [1.0, 5, EpisodeOutcome.END]]
    made.report("actor/0", 0, [{"env_steps": 10, "episodes": episodes}])
    made.report("learner/0", 0, [{"learner_steps": 1, "trained_steps": 10, "loss": 0.0}])
    made.close()
    (row, *_) = csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines())
    assert row["success_rate"] == row["failure_rate"] == row["evaluation_success_rate"] == ""
    assert row["time_out_rate"] == "0.5" and row["env_restarts"] == "0"
    assert "success" not in lines[-1] and "restarted" not in lines[-1]


@pytest.mark.parametrize("builder", [Grades, Silent])
def test_the_evaluators_scores(builder):
    environment = PythonEnvironment(builder)
    pool = environment.make_pool(5, 5, seeds=range(5))
    inferencer = ConstantInferencer()
    evaluator = Evaluator(pool, {"task": (inferencer, inferencer)})
    for _ in range(2):  # the second begins in the middle of episodes, which it skips
        scores = play_to_the_end(evaluator.play(25), lambda: False)["task"]
        # Each environment plays five consecutive episodes: one of each length.
        assert scores["evaluation_returns"] == [(6 + 10 + 15 + 21 + 28) / 5, 5.0]
        assert scores["evaluation_return"] == 21.0
        assert (scores["evaluation_return_min"], scores["evaluation_return_max"]) == (9, 35)
        assert scores["version"] == 7 and scores["env_restarts"] == 0
        assert scores.get("evaluation_success_rate") == (0.4 if builder is Grades else None)
    made, _, lines = monitor(Goal(mean_return=None), None, environment.spec())
    made.report("evaluator/0", 0, [scores])
    state = made.snapshot()
    assert state["evaluation_return_1"] == 5.0
    assert ("evaluation 21.0 (success 40 %)" in lines[-1]) == (builder is Grades)
    pool.close()


@pytest.mark.parametrize(
    ("episodes", "returns"),
    [
        (3, [6, 10, 15]),
        (5, [6, 10, 15, 21, 28]),
        (7, [6, 10, 10, 15, 15, 21, 28]),  # the first two environments play a second one
        (13, [6, 10, 15, 10, 15, 21, 15, 21, 28, 21, 28, 28, 6]),
    ],
)
def test_every_environment_plays_as_many_episodes_or_one_less(episodes, returns):
    pool = PythonEnvironment(CountingEnvironment).make_pool(5, 5, seeds=range(5))
    evaluator = Evaluator(pool, {"task": (ConstantInferencer(), ConstantInferencer())})
    scores = play_to_the_end(evaluator.play(episodes), lambda: False)["task"]
    assert scores["evaluation_episodes"] == len(returns) == episodes
    assert scores["evaluation_return"] == np.mean(returns)
    assert scores["evaluation_return_max"] == max(returns)
    pool.close()


def test_scores_are_exact_with_late_rewards():
    pool = PythonEnvironment(LateCountingEnvironment).make_pool(5, 5, seeds=range(5))
    evaluator = Evaluator(pool, {"task": (ConstantInferencer(), ConstantInferencer())})
    scores = play_to_the_end(evaluator.play(25), lambda: False)["task"]
    assert scores["evaluation_return"] == (6 + 10 + 15 + 21 + 28) / 5
    assert (scores["evaluation_return_min"], scores["evaluation_return_max"]) == (6, 28)
    pool.close()


def test_a_goal_of_successes():
    won, lost = [0.0, 5, EpisodeOutcome.SUCCESS], [9.0, 5, EpisodeOutcome.TIME_OUT]
    spec = env_spec(env_info=SUCCESS)
    made, ends, _ = monitor(Goal(mean_return=None, success_rate=0.75, window=4), None, spec)
    made.report("actor/0", 0, [{"env_steps": 5, "episodes": [won, won, won]}])
    assert not ends  # the window is not full
    made.report("actor/0", 1, [{"env_steps": 5, "episodes": [lost]}])
    ((reason, reached),) = ends
    assert reached and "the success rate of the last 4 episodes is 75 % (goal 75 %)" in reason
    # With a mean return too, both must be reached.
    made, ends, _ = monitor(Goal(mean_return=4.0, success_rate=0.5, window=4), None, spec)
    made.report("actor/0", 0, [{"env_steps": 5, "episodes": [won, won, won, lost]}])
    assert not ends
    made.report("actor/0", 1, [{"env_steps": 5, "episodes": [lost]}])
    ((reason, reached),) = ends
    assert reached
    assert "return of the last 4 episodes is 4.5 (goal 4) and the success rate" in reason
    budget = Goal(mean_return=None, success_rate=0.5, window=4, max_trained_steps=10)
    made, ends, _ = monitor(budget, None, spec)
    made.report("learner/0", 0, [{"learner_steps": 1, "trained_steps": 10}])
    ((reason, reached),) = ends
    assert not reached and "success rate no episode ended (goal 50 %)" in reason


def test_vector_rewards_reach_the_learner():
    """Through the request to an inferencer, and through a table."""
    spec = env_spec(dm_specs.Array((2,), np.float32))
    agent = CheckingConfig(recurrent=False).make(spec)
    messages = InferenceMessages(agent)
    ids = np.array([3, 5], np.int32)
    sent = steps([1, 1], [[1, 10], [2, 20]])
    rows, _, _ = messages.request_rows(messages.pack_request(ids, sent, 0, False))
    _, came = messages.request.unpack(rows.reshape(-1), 2)
    np.testing.assert_array_equal(came.reward, sent.reward)

    struct = specs.trajectory_struct(spec, {"seen": jax.ShapeDtypeStruct((), np.float32)}, ())
    config = ReplayConfig(unroll_length=2)
    replay = LocalReplayBuffer(LocalTable(struct, config, 2), struct, config, 2)
    for t in range(3):
        inference = Inference(np.zeros(2, np.int32), {"seen": np.zeros(2, np.float32)}, 0)
        replay.add(ids, steps([1, 1], [[t, 10 * t], [2 * t, 20 * t]]), inference)
    reward = replay.sample(1.0).trajectory.timestep.reward
    assert reward[:, 0].tolist() == [[0, 0], [1, 10], [2, 20]]
    assert reward[:, 1].tolist() == [[0, 0], [2, 20], [4, 40]]


def test_an_actor_reports_restarts():
    from distrl.actor import Actor

    pool = PythonEnvironment(CountingEnvironment).make_pool(2, 2, seeds=range(2))
    replay = types.SimpleNamespace(needs_state=lambda ids, life: False, add=lambda *step: None)
    inferencer = types.SimpleNamespace(
        inference=lambda ids, timestep, life, state: Inference(np.zeros(2, np.int32), (), 0)
    )
    actor = Actor(pool, inferencer, replay)
    actor.step()
    assert actor.take_report()["env_restarts"] == 0
    pool.restarts = 2
    assert actor.take_report()["env_restarts"] == 2
    assert actor.take_report()["env_restarts"] == 0
    actor.close()


def test_returns_that_are_not_finite_have_a_mean_that_is_not():
    recent = RecentEpisodes(4)
    recent.extend([[math.inf, 1, 0], [2.0, 3, 0]])
    assert recent.mean_return == math.inf
    recent.extend([[-math.inf, 5, 0]])
    assert math.isnan(recent.mean_return)
    assert len(recent) == 3
