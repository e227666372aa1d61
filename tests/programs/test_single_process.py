"""One process: however a run ends, its environments are closed."""

import csv
import dataclasses
import re
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from distrl import presets
from distrl.callbacks import Callback, EndRun
from distrl.checkpointing.resume_point import ResumePoint
from distrl.checkpointing.saved import Saved
from distrl.checkpointing.store import Checkpoints
from distrl.envs import PythonEnvironment
from distrl.errors import CallbackError, Diverged, EnvironmentFault, SaveError
from distrl.experiment import ActorsConfig, EvaluatorConfig, Experiment, LearnerConfig
from distrl.goal import Goal
from distrl.learner import Learner
from distrl.metrics.monitor import Monitor
from distrl.programs import single_process as program
from distrl.programs import single_process_parts as parts
from distrl.programs.build import Builder
from distrl.programs.running import update_wait
from distrl.programs.single_process_task import TaskRun
from distrl.replay.buffer import ReplayConfig
from distrl.testing import CheckingConfig, CountingEnvironment
from tests.support.selection import full

EVALUATOR = 2  # environments, which the actors' pool has more of


class Watched(PythonEnvironment):
    """Its pools note how many of their environments are open."""

    open = 0

    def make_pool(self, num_envs, wait_num, seeds):
        pool = super().make_pool(num_envs, wait_num, seeds)
        close = pool.close
        type(self).open += num_envs

        def counted():
            type(self).open -= num_envs
            close()

        pool.close = counted
        return pool


class Breaks(CountingEnvironment):
    """Raises in its hundredth step."""

    def step(self, action):
        if self._count == 100:
            raise RuntimeError("out of stock")
        return super().step(action)


def experiment(builder, **more):
    return Experiment(
        environment=Watched(builder, "watched"),
        agent=CheckingConfig(),
        actors=ActorsConfig(num_actors=1, num_envs=4),
        learner=LearnerConfig(batch_size=4),
        evaluator=EvaluatorConfig(num_evaluators=1, num_envs=EVALUATOR, episodes=2, interval=0.01),
        **more,
    )


@pytest.fixture(autouse=True)
def nothing_open():
    Watched.open = 0
    yield
    assert Watched.open == 0


def run(made, tmp_path, stop=None):
    return program.single_process(
        made, stop=stop or threading.Event(), run_dir=tmp_path, printer=lambda line: None
    )


def test_a_run_that_ends(tmp_path):
    reason, reached = run(experiment(CountingEnvironment, goal=Goal(max_env_steps=500)), tmp_path)
    assert reached and "environment steps" in reason
    assert (tmp_path / "params.npz").exists()


def test_a_long_wait_for_an_update_is_told(tmp_path, monkeypatch):
    """Unrolls of 20 steps in 4 environments: the line is due at each step of the actor."""
    monkeypatch.setattr(update_wait, "_WAIT_S", 0.0)
    made = experiment(CountingEnvironment, goal=Goal(max_learner_steps=2))
    lines = []
    stop = threading.Event()
    program.single_process(made, stop=stop, run_dir=tmp_path, printer=lines.append)
    told = r"acting: no update for \d+ s, 40 environment steps since the last one"
    assert any(re.fullmatch(told, line) for line in lines), lines


class Logs(Callback):
    """Notes the steps checked so far, by update."""

    def __init__(self):
        self.checked = {}

    def on_update(self, update):
        self.checked[update.learner_steps] = int(update.logs["checked"])


def test_a_row_has_the_logs_and_lags_of_its_last_update(tmp_path, monkeypatch):
    """Also when the logs are not due: reading them costs more than counting."""
    monkeypatch.setattr(program, "_LOGS_S", 1e9)
    logs = Logs()
    made = experiment(CountingEnvironment, goal=Goal(max_learner_steps=80), callbacks=[logs])
    run(made, tmp_path)
    with open(tmp_path / "metrics.csv") as file:
        rows = list(csv.DictReader(file))
    steps = [int(row["learner_steps"]) for row in rows]
    assert len(set(steps)) > 5 and steps[-1] == 80
    assert [int(float(row["checked"])) for row in rows] == [logs.checked[step] for step in steps]
    assert all(row["policy_lag_max"] for row in rows)


@pytest.mark.parametrize(
    ("goal", "few"),
    [(Goal(max_env_steps=100), True), (Goal(max_env_steps=100, max_learner_steps=999), False)],
)
def test_updates_between_steps_are_reported_with_the_next_one(tmp_path, monkeypatch, goal, few):
    """Eight updates for each step, unless a budget counts them."""
    monkeypatch.setattr(program, "_LOGS_S", 1e9)
    numbers = []
    report = Monitor.report
    monkeypatch.setattr(
        Monitor, "report", lambda self, *args: numbers.append(args[1]) or report(self, *args)
    )
    replay = ReplayConfig(
        table="uniform", unroll_length=1, samples_per_insert=8.0, min_size_to_sample=4
    )
    reason, _ = run(experiment(CountingEnvironment, goal=goal, replay=replay), tmp_path)
    assert reason == "100 environment steps"
    with open(tmp_path / "metrics.csv") as file:
        updates = int(list(csv.DictReader(file))[-1]["learner_steps"])
    assert updates == Saved.read(tmp_path).learner_steps > 150
    assert (len(numbers) < 0.5 * updates) == few


def test_what_was_reported_while_acting_is_judged_with_the_next_update():
    judged = []
    monitor = SimpleNamespace(report=lambda *args: judged.append(args[-1]), end=None)
    builder = SimpleNamespace(
        task=SimpleNamespace(goal=Goal(max_env_steps=9)),
        make_monitor=lambda *_: monitor,
        callbacks=SimpleNamespace(),
    )
    task_run = TaskRun(builder, None, 0)
    task_run._learner = SimpleNamespace(version=1, acted_elsewhere=(0, 0), counts=dict)
    task_run.report_counts({"env_steps": 1, "episodes": []}, acting=True)
    for _ in range(2):
        task_run.report_counts({"env_steps": 0, "episodes": []})
    assert judged == [False, True]


def test_a_run_that_cannot_save(tmp_path):
    (tmp_path / "params.npz").mkdir()
    with pytest.raises(SaveError, match=r"environment steps, but could not save params\.npz: Is"):
        run(experiment(CountingEnvironment, goal=Goal(max_env_steps=500)), tmp_path)
    assert Saved.read(tmp_path).checkpoint is not None


def test_a_run_that_is_stopped(tmp_path):
    stop = threading.Event()
    stop.set()
    assert run(experiment(CountingEnvironment), tmp_path, stop) is None


def test_an_environment_that_raises(tmp_path):
    with pytest.raises(EnvironmentFault, match=r"out of stock(.|\n)*Traceback"):
        run(experiment(Breaks, goal=Goal(max_env_steps=10**9)), tmp_path)
    assert (tmp_path / "metrics.csv").exists()


@pytest.mark.parametrize(
    "part",
    [
        "build.learner_kind",
        "running.acting.Actor",
        "running.evaluating.Evaluator",
        "build.pools.evaluator_pool",
    ],
)
def test_a_part_that_cannot_be_made(tmp_path, monkeypatch, part):
    def fail(*args, **kwargs):
        raise OSError(part)  # not MemoryError: CPython 3.10 may crash when one is freed

    monkeypatch.setattr(f"distrl.programs.{part}", fail)
    with pytest.raises(OSError, match=part):
        run(experiment(CountingEnvironment), tmp_path)


class Counts(CountingEnvironment):
    """Counts the steps of all its environments, without those that `PythonEnvironment` tries."""

    steps = 0

    def step(self, action):
        type(self).steps += 1
        return super().step(action)


def counted(tmp_path, goal, **more):
    """Returns environment steps, the last row of metrics, and the last line for the user."""
    environment = PythonEnvironment(Counts, "counts")
    made = dataclasses.replace(
        experiment(CountingEnvironment, goal=goal),
        environment=environment,
        evaluator=EvaluatorConfig(),
        **more,
    )
    made.environment.spec()
    Counts.steps = 0
    reason, reached = run(made, tmp_path)
    assert reached
    return Counts.steps, last_row(tmp_path), reason


def last_row(run_dir):
    with open(run_dir / "metrics.csv") as file:
        row = list(csv.DictReader(file))[-1]
    return {name: int(row[name]) for name in COUNTS}


COUNTS = ("env_steps", "trained_steps", "learner_steps", "episodes")
ON_POLICY = ReplayConfig(unroll_length=5, max_size=8)
OFF_POLICY = ReplayConfig("uniform", 5, 64, min_size_to_sample=8, samples_per_insert=2.0)


class Fails(Callback):
    def on_update(self, update):
        if update.learner_steps == 3:
            raise KeyError("loss")


class EndsAtSeven(Callback):
    def on_update(self, update):
        if update.learner_steps == 7:
            raise EndRun("seven updates are enough")


def test_a_callback_ends_the_run(tmp_path):
    made = experiment(Counts, goal=Goal(max_env_steps=10**9), callbacks=(EndsAtSeven(),))
    made = dataclasses.replace(made, evaluator=EvaluatorConfig())
    assert run(made, tmp_path) == ("seven updates are enough", True)
    checkpoint = Saved.read(tmp_path).checkpoint
    assert checkpoint is not None and Path(checkpoint).name == "000007"


class FailsAgain(Fails):
    def on_checkpoint(self, checkpoint):
        raise OSError("it cannot be copied")


def test_a_callback_that_fails_again_at_the_last_checkpoint_hides_no_failure(tmp_path):
    lines = []
    made = experiment(Counts, goal=Goal(max_env_steps=10**9), callbacks=(FailsAgain(),))
    made = dataclasses.replace(made, evaluator=EvaluatorConfig())
    made.environment.spec()
    with pytest.raises(CallbackError, match=r"^FailsAgain\.on_update: KeyError: 'loss'$"):
        program.single_process(made, stop=threading.Event(), run_dir=tmp_path, printer=lines.append)
    assert "distrl: FailsAgain.on_checkpoint: OSError: it cannot be copied" in lines


def test_what_was_done_before_a_failure_is_counted_and_saved(tmp_path):
    made = experiment(Counts, goal=Goal(max_env_steps=10**9), callbacks=(Fails(),))
    made = dataclasses.replace(made, evaluator=EvaluatorConfig())
    made.environment.spec()
    Counts.steps = 0
    with pytest.raises(CallbackError, match=r"^Fails\.on_update: KeyError: 'loss'$"):
        run(made, tmp_path)
    manifest = Checkpoints(tmp_path).latest().manifest
    row = last_row(tmp_path)
    assert Saved.read(tmp_path).env_steps == row["env_steps"] == Counts.steps > 0
    assert manifest["version"] == row["learner_steps"] == 3
    lines = (tmp_path / "episodes.csv").read_text().splitlines()
    assert manifest["monitor"]["episodes"] == row["episodes"] == len(lines) - 1 > 0


@pytest.mark.parametrize("interval", [0.0, 1e9])
def test_what_was_done_before_logs_cannot_be_read_is_counted(tmp_path, monkeypatch, interval):
    """In the report of an update, and in one while it acts."""
    take_report = Learner.take_report

    def take(learner):
        if learner.version >= 3:
            raise Diverged("not finite")
        return take_report(learner)

    monkeypatch.setattr(Learner, "take_report", take)
    monkeypatch.setattr(program, "_REPORT_S", interval)
    made = experiment(Counts, goal=Goal(max_env_steps=1000), replay=OFF_POLICY)
    made = dataclasses.replace(made, evaluator=EvaluatorConfig())
    made.environment.spec()
    Counts.steps = 0
    with pytest.raises(Diverged, match=r"^not finite$"):
        run(made, tmp_path)
    row = last_row(tmp_path)
    assert row["env_steps"] == Counts.steps > 0
    assert row["learner_steps"] >= 3


@pytest.mark.parametrize(
    ("goal", "replay", "updates"),
    [
        # 4 environments: a step of the pool is 4 rows, some of which are resets.
        full(Goal(max_env_steps=997), ON_POLICY, None),
        (Goal(max_env_steps=997), OFF_POLICY, None),
        full(Goal(max_env_steps=200), ReplayConfig("uniform", 5, 64), None),
        (Goal(max_episodes=50), ON_POLICY, None),
        full(Goal(max_trained_steps=500), OFF_POLICY, None),
        full(Goal(max_learner_steps=7), OFF_POLICY, 7),
        (Goal(mean_return=10.0, window=5), OFF_POLICY, None),  # reached before the first update
    ],
)
def test_budgets_are_exact_whatever_the_time(tmp_path, monkeypatch, goal, replay, updates):
    seen = []
    for name, interval in (("often", 0.0), ("never", 1e9)):
        monkeypatch.setattr(program, "_REPORT_S", interval)
        (tmp_path / name).mkdir()
        true, row, reason = counted(tmp_path / name, goal, replay=replay)
        assert true == row["env_steps"]
        seen.append((row, reason))
    assert seen[0] == seen[1]
    steps, episodes = goal.acting_budget
    if steps is not None:
        assert steps <= row["env_steps"] < steps + 4
        assert reason == f"{row['env_steps']:,} environment steps"
    if episodes is not None:
        assert episodes <= row["episodes"] < episodes + 4
    if goal.max_trained_steps is not None:
        assert 0 <= row["trained_steps"] - goal.max_trained_steps < 4 * 5  # a batch
    assert updates in (None, row["learner_steps"])


@pytest.mark.full
def test_what_was_acted_is_learned_from_as_far_as_the_ratio_allows(tmp_path):
    """Unrolls of 5 transitions begin every 5 steps of a stream: of n rows, (n - 1) // 5."""
    true, row, _ = counted(tmp_path, Goal(max_env_steps=997), replay=OFF_POLICY)
    rows = (true + 3) // 4 + row["episodes"] // 4  # of each stream, with resets
    inserts = 4 * ((rows - 1) // 5)
    # min_diff = 2 * 8 - error_buffer, which is a batch of 4 times the ratio.
    samples = 2 * inserts - (2 * 8 - 4 * 2)
    assert abs(row["learner_steps"] - samples // 4) <= 2  # rows is within one of a stream's


def test_the_check_of_gpus_finds_jax_started_as_the_agents_want_it(monkeypatch):
    order = []
    monkeypatch.setattr(Builder, "start_backend", lambda builder: order.append("start"))
    monkeypatch.setattr(parts, "check_gpus", lambda count, setting: order.append("check"))
    with parts.SingleProcess(experiment(CountingEnvironment), printer=lambda line: None):
        pass
    assert order[:2] == ["start", "check"]


@pytest.mark.parametrize("computes", [False, True])
def test_it_computes_on_the_core_of_the_thread_that_does_so_for_it(monkeypatch, computes):
    """There it also acts, with EnvPool's one thread."""
    monkeypatch.setattr(parts, "usable_cores", lambda: 2)
    monkeypatch.setattr(parts, "computing_threads", lambda: {2**30} if computes else set())
    cartpole = presets.experiment("CartPole-v1", "dqn")
    with parts.SingleProcess(cartpole, printer=lambda line: None) as made:
        assert made._core is not None and (2**30 in made._core._threads) == computes
        (task,) = made.tasks.values()
        assert (task.learner.while_computing is made._core) == computes
    with parts.SingleProcess(experiment(CountingEnvironment), printer=lambda line: None) as made:
        assert made._core is None  # what the environments start would be kept to it, too


@pytest.mark.full
def test_a_resumed_run_counts_from_its_checkpoint(tmp_path):
    """See tests/launch/run_dir for the folder; here, that the rest of the budget is acted."""
    _, row, _ = counted(tmp_path, Goal(max_env_steps=400))
    point = ResumePoint(checkpoint=str(Checkpoints(tmp_path).latest().path))
    made = experiment(Counts, goal=Goal(max_env_steps=1_001))
    made = dataclasses.replace(made, evaluator=EvaluatorConfig())
    Counts.steps = 0
    program.single_process(
        made,
        stop=threading.Event(),
        run_dir=tmp_path,
        printer=lambda line: None,
        resume_point=point,
    )
    assert 1_001 <= row["env_steps"] + Counts.steps < 1_001 + 4 + 1  # one to read the specs
