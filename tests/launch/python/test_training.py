"""distrl.train, evaluate and load_run: from a script, after JAX was used, more than once."""

import dataclasses
import importlib.util
import json
import os
import pickle
import signal
import subprocess
import sys
import threading
import types

import cloudpickle
import jax
import numpy as np
import pytest

import distrl
from distrl.callbacks import Callback, EndRun
from distrl.envs import PythonEnvironment, suites
from distrl.errors import ConfigError, TrainingError
from distrl.experiment import ActorsConfig, EvaluatorConfig, Experiment, LearnerConfig
from distrl.goal import Goal
from distrl.launch.python import pickling, training, training_process
from distrl.replay.buffer import ReplayConfig
from distrl.runtime.files import write_json
from distrl.testing import CheckingConfig, CountingEnvironment
from tests.support.commands import ROOT
from tests.support.selection import full
from tests.support.waiting import until


class Notes(Callback):
    """Writes a line for each call, in the process that learns."""

    def __init__(self, path):
        self._path = path

    def on_update(self, update):
        self._note("update", update.task, update.learner_steps, update.trained_steps)
        assert float(update.logs["loss"]) == float(update.logs["loss"])

    def on_evaluation(self, scores):
        self._note("evaluation", scores.task, scores.learner_steps, scores.mean_return)

    def on_checkpoint(self, checkpoint):
        assert (checkpoint.path / "manifest.json").exists()
        self._note("checkpoint", checkpoint.task, checkpoint.learner_steps, checkpoint.mean_return)

    def _note(self, *what):
        with open(self._path, "a") as file:
            file.write(json.dumps([*what, os.getpid()]) + "\n")


def counting(max_learner_steps=20, **parts):
    return Experiment(
        PythonEnvironment(CountingEnvironment, "counting"),
        CheckingConfig(),
        ReplayConfig(unroll_length=9, max_size=64),
        ActorsConfig(num_actors=1, num_envs=4),
        learner=LearnerConfig(batch_size=4),
        goal=Goal(mean_return=None, max_learner_steps=max_learner_steps, max_env_steps=10**9),
        **parts,
    )


def _notes(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    "topology",
    [
        "single_process",
        full("heavy_env"),
    ],
)
def test_callbacks_hear_of_every_update_evaluation_and_checkpoint(tmp_path, topology):
    jax.block_until_ready(jax.numpy.ones(2) + 1)  # JAX is in use here, and nodes fork there
    interval = 0.2 if topology == "heavy_env" else 1e-3  # its few updates take less than 0.2 s
    evaluator = EvaluatorConfig(num_evaluators=1, num_envs=2, episodes=2, interval=interval)
    made = counting(evaluator=evaluator)
    notes = tmp_path / "notes"
    settings = {"goal.max_learner_steps": 3000} if topology == "heavy_env" else None
    run = distrl.train(
        made,
        topology=topology,
        callbacks=[Notes(notes)],
        run_dir=tmp_path / "run",
        config=settings,
        quiet=True,
    )
    count = 20 if settings is None else 3000
    assert run.status == "finished"
    heard = _notes(notes)
    updates = [each for each in heard if each[0] == "update"]
    assert [each[2] for each in updates] == list(range(1, count + 1))
    assert updates[-1][3] == run.rows[-1]["trained_steps"]
    assert [each[1:3] for each in heard if each[0] == "checkpoint"] == [["task", count]]
    (process,) = {each[-1] for each in heard}
    assert process != os.getpid()
    evaluations = [each[2] for each in heard if each[0] == "evaluation"]
    assert len(evaluations) == run.rows[-1]["evaluations"] > 0
    assert evaluations == sorted(evaluations)


class Ends(Callback):
    """Ends the run once it has heard of 20 updates."""

    def on_update(self, update):
        if update.learner_steps >= 20:
            raise EndRun("twenty are enough")


@pytest.mark.full
@pytest.mark.timeout(200)
@pytest.mark.parametrize("topology", ["heavy_env", "light_env"])
def test_a_callback_ends_the_run_as_a_goal_does(tmp_path, topology):
    run = distrl.train(
        counting(10**9), topology=topology, callbacks=[Ends()], run_dir=tmp_path, quiet=True
    )
    assert run.status == "finished"
    assert (run.result["reason"], run.result["exit_code"]) == ("twenty are enough", 0)
    assert run.rows[-1]["learner_steps"] >= 20


@pytest.fixture
def end_with(tmp_path, monkeypatch):
    """A function that has the next `distrl.train` end, in a folder with a result of before."""

    def end(code, *last_lines, before, writes=None):
        (tmp_path / "result.json").write_text(json.dumps(before))

        def run(*_):
            if writes is not None:
                write_json(tmp_path / "result.json", writes)
            return code, last_lines

        monkeypatch.setattr(training.training_client, "run", run)
        return distrl.train("CartPole-v1", run_dir=tmp_path, quiet=True)

    return end


STOPPED = {"status": "stopped", "reason": "SIGINT", "exit_code": 130}
FAILED = {"status": "failed", "reason": "ValueError: x", "exit_code": 1}


@pytest.mark.parametrize("before", [STOPPED, FAILED])
def test_the_reason_of_a_failure_is_not_that_of_an_earlier_program(end_with, before):
    with pytest.raises(TrainingError, match=r"^training ended with status 1: distrl: no disk; its"):
        end_with(1, "distrl: no disk", before=before)
    with pytest.raises(TrainingError, match=r"^training ended with status 1: ValueError: x; its"):
        end_with(1, "Traceback", before=before, writes=FAILED)


def test_a_closed_terminal_stops_as_ctrl_c_does(end_with, tmp_path):
    assert end_with(128 + signal.SIGHUP, before=STOPPED).path == tmp_path


class Fails(Callback):
    """Fails at the twentieth update of the first process that comes to it."""

    def __init__(self, mark):
        self._mark = mark

    def on_update(self, update):
        if update.learner_steps == 20 and not self._mark.exists():
            self._mark.touch()
            raise ConnectionError("dashboard is down")


@pytest.mark.timeout(200)
@pytest.mark.parametrize("topology", ["single_process", full("heavy_env")])
def test_an_exception_of_a_callback_ends_the_run_which_is_saved(tmp_path, topology):
    message = r"CallbackError: Fails\.on_update: ConnectionError: dashboard is down; its output"
    with pytest.raises(TrainingError, match=message):
        distrl.train(
            counting(10**9),
            topology=topology,
            callbacks=[Fails(tmp_path / "mark")],
            run_dir=tmp_path / "run",
            quiet=True,
        )
    run = distrl.load_run(tmp_path / "run")
    assert run.status == "failed"
    assert [int(each.name) for each in run.checkpoints] == [20]
    last = run.rows[-1]
    assert (last["learner_steps"], last["env_steps"]) == (20, run.result["saved"]["env_steps"])


@pytest.mark.timeout(200)
def test_a_run_is_trained_evaluated_and_loaded_again(tmp_path, capsys):
    run = distrl.train(
        "CartPole-v1",
        "ppo",
        max_env_steps=2500,
        seed=3,
        run_dir=tmp_path / "run",
        config={"agent.network.hidden_sizes": (32,)},
    )
    assert "finished: 2,5" in capsys.readouterr().out
    assert run.config["experiment"]["agent"]["network"]["hidden_sizes"] == [32]
    assert run.config["experiment"]["seed"] == 3
    policy = run.policy
    assert policy(np.zeros(4)) == policy([0.0, 0, 0, 0]) == policy(np.zeros((3, 4)))[1]
    scores = distrl.evaluate(run, episodes=20, seed=1)
    assert scores.returns.shape == (20,)
    np.testing.assert_array_equal(scores.returns, scores.lengths)  # CartPole gives 1 a step
    again = distrl.evaluate(run.checkpoints[-1], "CartPole-v1", episodes=20, seed=1)
    np.testing.assert_array_equal(scores.returns, again.returns)
    assert f"return {scores.mean:.2f} ± " in str(scores)
    loaded = distrl.load_run(tmp_path / "run")
    assert loaded.status == "finished"
    assert loaded.rows[-1]["env_steps"] >= 2500
    assert loaded.path == run.path
    pytest.importorskip("pandas")
    assert list(loaded.metrics["env_steps"]) == [row["env_steps"] for row in loaded.rows]


def test_bad_input_is_one_line_and_trains_nothing(tmp_path):
    where = {"run_dir": tmp_path / "run", "quiet": True}
    with pytest.raises(ConfigError, match=r"Did you mean: config\.learner\.batch_size"):
        distrl.train("CartPole-v1", config={"learner.batch_sizes": 3}, **where)
    with pytest.raises(ConfigError, match="an Experiment names its agent"):
        distrl.train(counting(), "ppo", **where)
    with pytest.raises(ConfigError, match=r"callbacks: each must be an object of a subclass"):
        distrl.train(counting(), callbacks=[print], **where)
    flags = ["--hosts=a,b", "--launcher=commands"]
    with pytest.raises(ConfigError, match=r"^--launcher=commands: .* --experiment=FILE\.py`$"):
        distrl.train(counting(), topology="multi_machine", flags=flags, **where)
    assert not (tmp_path / "run").exists()
    with pytest.raises(ConfigError, match="is not the folder of a run"):
        distrl.load_run(tmp_path)
    with pytest.raises(ConfigError, match="episodes must be 1 or more"):
        distrl.evaluate(tmp_path, "CartPole-v1", episodes=0)


class Breaks(CountingEnvironment):
    """Fails at its fifth step."""

    def step(self, action):
        self._steps = getattr(self, "_steps", 0) + 1
        if self._steps > 5:
            raise OSError("out of stock")
        return super().step(action)


@pytest.mark.full
def test_a_run_that_fails_says_why(tmp_path):
    made = counting()
    broken = Experiment(
        PythonEnvironment(Breaks, "breaks"), made.agent, made.replay, made.actors,
        learner=made.learner, goal=made.goal,
    )  # fmt: skip
    with pytest.raises(TrainingError, match=r"status 1: EnvironmentFault: .*; its output is in "):
        distrl.train(broken, run_dir=tmp_path / "run", quiet=True)


class Halts(CountingEnvironment):
    """Has a breakpoint at every step but the first, which an experiment takes when it is made."""

    def step(self, action):
        if hasattr(self, "_halts"):
            breakpoint()
        self._halts = True
        return super().step(action)


@pytest.mark.timeout(120)
def test_breakpoints_are_skipped_where_there_is_no_terminal(tmp_path, monkeypatch, capsys):
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    made = dataclasses.replace(counting(2), environment=PythonEnvironment(Halts, "halts"))
    with pytest.raises(ConfigError, match="--debug=all: there is no terminal for pdb here"):
        distrl.train(made, run_dir=tmp_path / "run", flags=["--debug=all"], quiet=True)
    assert not (tmp_path / "run").exists()
    assert distrl.train(made, run_dir=tmp_path / "run").status == "finished"
    assert capsys.readouterr().out.count("breakpoint() is skipped") == 1


SCRIPT = """
import distrl
from distrl.envs import PythonEnvironment, suites
from distrl.testing import CheckingConfig, CountingEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig
from distrl.goal import Goal
from distrl.launch.python import training, training_process
from distrl.replay.buffer import ReplayConfig
from tests.support.selection import full

class Mine(CountingEnvironment):
    pass

experiment = Experiment(
    PythonEnvironment(Mine, "mine"), CheckingConfig(), ReplayConfig(unroll_length=9, max_size=64),
    ActorsConfig(num_actors=1, num_envs=4), learner=LearnerConfig(batch_size=4),
    goal=Goal(mean_return=None, max_env_steps={steps}),
)
run = distrl.train(experiment, topology="{topology}", run_dir={run_dir!r})
print(run.status, distrl.train(experiment, run_dir={run_dir!r}).status)
"""


@pytest.mark.full
@pytest.mark.timeout(200)
def test_classes_of_a_script_train_in_nodes_and_a_run_that_ended_stays(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        SCRIPT.format(steps=2000, topology="heavy_env", run_dir=str(tmp_path / "run"))
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], env=environment, capture_output=True, text=True,
        timeout=150, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has already ended" in done.stdout
    assert done.stdout.splitlines()[-1] == "finished finished"


READING = """
import argparse, json
from absl import flags
from distrl import callbacks

parser = argparse.ArgumentParser()
parser.add_argument("--length", type=int, default=10)
ARGUMENTS, _ = parser.parse_known_args()
flags.DEFINE_integer("width", 10, "")
flags.DEFINE_integer("height", 10, "")

class Tells(callbacks.Callback):
    def on_checkpoint(self, checkpoint):
        read = [ARGUMENTS.length, flags.FLAGS.width, flags.FLAGS.height]
        with open("read", "w") as file:
            json.dump(read, file)
"""
SCRIPT_WITH_FLAGS = """
import distrl, reading
from absl import app
from distrl.envs import PythonEnvironment
from distrl.testing import CheckingConfig, CountingEnvironment
from distrl.experiment import ActorsConfig, Experiment, LearnerConfig

def main(_):
    experiment = Experiment(
        PythonEnvironment(CountingEnvironment), CheckingConfig(), actors=ActorsConfig(1, 4),
        learner=LearnerConfig(batch_size=4), callbacks=[reading.Tells()],
    )
    distrl.train(experiment, max_env_steps=400, quiet=True)

app.run(main, flags_parser=lambda argv: app.FLAGS(argv, known_only=True))
"""


@pytest.mark.timeout(120)
def test_modules_see_the_command_line_of_the_script(tmp_path):
    (tmp_path / "reading.py").write_text(READING)
    (tmp_path / "script.py").write_text(SCRIPT_WITH_FLAGS)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "script.py", "--length=4", "--width=3"], env=environment,
        capture_output=True, text=True, timeout=100, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((tmp_path / "read").read_text()) == [4, 3, 10]


UNGUARDED = """
import distrl
from distrl.envs import PythonEnvironment
from distrl.testing import CheckingConfig, CountingEnvironment
from distrl.experiment import Experiment

class Mine(CountingEnvironment):
    pass

experiment = Experiment(PythonEnvironment(Mine, "mine"), CheckingConfig())
distrl.train(experiment, max_env_steps=1000)
"""


@pytest.mark.parametrize(
    "command",
    [
        ["-c", "import unguarded"],
        full(["-m", "distrl", "train", "--experiment=unguarded.py", "--topology=single_process"]),
    ],
)
def test_a_module_that_trains_when_it_is_imported_is_refused(tmp_path, command):
    (tmp_path / "unguarded.py").write_text(UNGUARDED)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT), str(tmp_path)))}
    done = subprocess.run(
        [sys.executable, *command], env=environment, capture_output=True, text=True, timeout=100,
        cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode != 0
    assert done.stderr.splitlines()[-1].endswith(
        ": unguarded.py calls distrl.train while the process that trains imports it; put the call "
        'under if __name__ == "__main__":'
    )
    assert not list(tmp_path.glob("runs/*"))


@pytest.fixture
def interrupts():
    """Has SIGINT raise KeyboardInterrupt, which jobs in a shell's background ignore."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.full
@pytest.mark.timeout(200)
def test_an_interrupt_saves_and_is_raised(tmp_path, interrupts):
    run_dir = tmp_path / "run"

    def interrupt():
        try:
            until(lambda: (run_dir / "metrics.csv").exists(), "metrics", 80.0)
            until(lambda: len(distrl.load_run(run_dir).rows) > 1, "rows", 80.0)
        finally:
            os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        distrl.train(counting(max_learner_steps=10**9), run_dir=run_dir, quiet=True)
    thread.join()
    run = distrl.load_run(run_dir)
    assert run.status == "stopped"
    assert run.checkpoints
    assert run.config["experiment"]["goal"]["max_learner_steps"] == 10**9


class Alarm(Exception):
    pass


@pytest.mark.full
@pytest.mark.timeout(200)
def test_a_run_ends_and_saves_when_its_caller_fails(tmp_path):
    run_dir = tmp_path / "run"

    def alarm(number, frame):
        raise Alarm

    before = signal.signal(signal.SIGUSR1, alarm)

    def fail():
        try:
            until(lambda: (run_dir / "metrics.csv").exists(), "metrics", 80.0)
        finally:
            os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=fail)
    thread.start()
    try:
        with pytest.raises(Alarm):
            distrl.train(counting(max_learner_steps=10**9), run_dir=run_dir, quiet=True)
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    until(lambda: (run_dir / "result.json").exists(), "the result", 60.0)
    assert distrl.load_run(run_dir).status == "stopped"


@pytest.mark.full
@pytest.mark.timeout(200)
def test_a_run_ends_and_saves_when_its_caller_is_killed(tmp_path):
    script = tmp_path / "script.py"
    run_dir = tmp_path / "run"
    script.write_text(SCRIPT.format(steps=10**9, topology="single_process", run_dir=str(run_dir)))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    caller = subprocess.Popen(
        [sys.executable, str(script)], env=environment, stdout=subprocess.DEVNULL, cwd=tmp_path
    )
    until(lambda: (run_dir / "metrics.csv").exists(), "metrics", 80.0)
    until(lambda: len(distrl.load_run(run_dir).rows) > 1, "rows", 80.0)
    caller.kill()
    caller.wait(10.0)
    until(lambda: (run_dir / "result.json").exists(), "the result", 60.0)
    run = distrl.load_run(run_dir)
    assert run.status == "stopped"
    assert run.checkpoints


def test_a_folder_is_named_only_if_it_is_there(tmp_path):
    said = training._reason(tmp_path / "none", None, 1, ["NameError: no"])
    assert said == "training ended with status 1: NameError: no"
    assert training._reason(tmp_path, None, 1, ["x"]).endswith(f": x; its output is in {tmp_path}")


def test_numbers_of_numpy_become_pythons():
    given = {
        "a": np.float64(1e-3),
        "b": (np.int64(3), np.bool_(True)),
        "c": [np.arange(2)],
    }
    assert repr(training._plain(given)) == repr({"a": 0.001, "b": (3, True), "c": [[0, 1]]})


def test_a_folder_that_is_gone_is_named(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    for run_dir in (None, "run", tmp_path / "run"):
        with pytest.raises(ConfigError, match=r"^the current folder has been deleted; change to"):
            training.train("CartPole-v1", run_dir=run_dir)


def test_a_home_folder_that_is_not_known_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"run_dir: ~no_such_user/x: the home folder"):
        distrl.train("CartPole-v1", max_env_steps=1, run_dir="~no_such_user/x")
    assert not list(tmp_path.iterdir())


def test_an_environment_alone_is_no_experiment():
    with pytest.raises(ConfigError, match="expected an environment's name or an Experiment"):
        training.train(suites.make("CartPole-v1"))


class Locks(Callback):
    def __init__(self):
        self._lock = threading.Lock()


def test_what_cannot_be_pickled_is_named(tmp_path):
    where = {"run_dir": tmp_path / "run", "quiet": True}
    message = (
        r"callback Locks cannot be sent .*: TypeError: cannot pickle '_thread.lock' object; open"
    )
    with pytest.raises(ConfigError, match=message):
        training.train(counting(), callbacks=[Callback(), Locks()], **where)
    lock = threading.Lock()

    def make(seed):
        assert lock is not None
        return CountingEnvironment(seed)

    made = dataclasses.replace(counting(), environment=PythonEnvironment(make, "locks"))
    with pytest.raises(ConfigError, match=r"train: the experiment cannot be sent .*thread.lock"):
        training.train(made, **where)


def test_functions_of_a_script_keep_the_name_of_its_file(monkeypatch):
    def torso(x):
        return x

    table = cloudpickle.Pickler._dispatch_table
    reduced = table[types.CodeType]

    def without_file(code):  # as from cloudpickle 3.1.3 on
        return reduced(code.replace(co_filename="<dynamic-code>"))

    monkeypatch.setitem(table, types.CodeType, without_file)
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    try:
        known, lost = (
            pickle.loads(training_process._pickled(torso)),
            pickle.loads(cloudpickle.dumps(torso)),
        )
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert known(3) == 3
    assert known.__code__.co_filename == torso.__code__.co_filename
    assert lost.__code__.co_filename == "<dynamic-code>"


APART = """
import gymnasium

LIMIT = 3

class Apart(gymnasium.Env):
    def limit(self):
        return LIMIT
"""


@pytest.mark.parametrize("name", ["apart_of_no_path", "folder_of_no_path.apart"])
def test_classes_of_a_module_that_no_path_has_go_by_value(tmp_path, monkeypatch, name):
    # pytest's --import-mode=importlib imports tests so.
    spec = importlib.util.spec_from_file_location(name, tmp_path / "apart.py")
    (tmp_path / "apart.py").write_text(APART)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, name, module)
    spec.loader.exec_module(module)
    data = pickling.dumps(module.Apart())
    monkeypatch.delitem(sys.modules, name)
    assert pickling.loads(data).limit() == 3
    assert name not in cloudpickle.list_registry_pickle_by_value()


def test_classes_of_a_module_in_the_path_go_by_name(tmp_path, monkeypatch):
    (tmp_path / "apart_in_path.py").write_text(APART)
    monkeypatch.syspath_prepend(tmp_path)
    module = importlib.import_module("apart_in_path")
    assert type(pickling.loads(pickling.dumps(module.Apart()))) is module.Apart
    del sys.modules["apart_in_path"]


def test_callbacks_are_a_list():
    with pytest.raises(ConfigError, match="callbacks must be a list, got <"):
        training.train("CartPole-v1", callbacks=Callback())
