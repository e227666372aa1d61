"""What Weights & Biases is told of a run, and what becomes of its errors."""

import sys
import types

import pytest

from distrl.config import MetricsConfig
from distrl.errors import ConfigError
from distrl.goal import Goal
from distrl.metrics.monitor import Monitor
from distrl.metrics.sinks import make_writer


class Fake(types.SimpleNamespace):
    """The package, with the arguments of its `init`, and the rows of all runs."""

    class Error(Exception):
        pass

    def __init__(self):
        super().__init__(begun=[], logged=[], finished=0, error=None)

    def init(self, **arguments):
        self.fail()
        self.begun.append(arguments)
        return self

    def fail(self):
        if self.error is not None:
            raise self.error

    def log(self, row, step):
        self.fail()
        self.logged.append((step, row["loss"]))

    def finish(self):
        self.fail()
        self.finished += 1


@pytest.fixture
def fake(monkeypatch):
    fake = Fake()
    monkeypatch.setitem(sys.modules, "wandb", fake)
    for name in ("WANDB_RUN_GROUP", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    return fake


def make_monitor(folder, printer=print):
    config = MetricsConfig(wandb=True, episodes=False)
    writer = make_writer(config, folder, printer, {"seed": 0}, None)
    return Monitor(Goal(mean_return=None), lambda *_: None, writer, 1e9, printer)


def train(monitor):
    monitor.report("learner/0", 0, [{"learner_steps": 1, "trained_steps": 10, "loss": 0.5}])
    monitor.report("actor/0", 0, [{"env_steps": 500, "episodes": []}])
    monitor.close()


def test_it_gets_the_same_rows(tmp_path, fake):
    train(make_monitor(tmp_path / "mine"))
    assert fake.logged == [(500, 0.5), (500, 0.5)]
    assert fake.finished == 1
    (begun,) = fake.begun
    assert begun["name"] == "mine" and begun["group"] is None
    assert begun["resume"] == "allow" and begun["config"] == {"seed": 0}


def test_the_project_is_that_of_the_environment(tmp_path, fake, monkeypatch):
    make_monitor(tmp_path / "one")
    monkeypatch.setenv("WANDB_PROJECT", "robots")
    make_monitor(tmp_path / "two")
    assert [begun["project"] for begun in fake.begun] == ["distrl", "robots"]


def test_each_folder_has_a_run_which_resuming_continues(tmp_path, fake, monkeypatch):
    make_monitor(tmp_path / "a" / "000-seed-0")
    monkeypatch.setenv("WANDB_RUN_GROUP", "b")
    make_monitor(tmp_path / "b" / "000-seed-0")
    monkeypatch.delenv("WANDB_RUN_GROUP")
    make_monitor(tmp_path / "b" / "000-seed-0")
    one, two, again = fake.begun
    assert one["id"] != two["id"] and two == again
    assert (one["name"], one["group"]) == ("000-seed-0", None)
    assert (two["name"], two["group"]) == ("000-seed-0", "b")


@pytest.mark.parametrize("damaged", ["", "{}", '{"id": "x"', "[]"])
def test_a_damaged_file_begins_another_run(tmp_path, fake, damaged):
    make_monitor(tmp_path / "run")
    (tmp_path / "run" / "wandb.json").write_text(damaged)
    make_monitor(tmp_path / "run")
    make_monitor(tmp_path / "run")
    first, second, third = fake.begun
    assert first["id"] != second["id"] and second == third


def test_the_tasks_of_a_run_are_a_group_of_runs_in_one_process(tmp_path, fake):
    for task in ("x", "y"):
        make_monitor(tmp_path / "run:1" / "tasks" / task)
    names = [(each["name"], each["group"], each["reinit"]) for each in fake.begun]
    assert names == [("run:1/x", "run:1", "create_new"), ("run:1/y", "run:1", "create_new")]
    assert all(each["id"].isalnum() for each in fake.begun)


def test_what_it_refuses_is_bad_input(tmp_path, fake):
    fake.error = Fake.Error("No API key configured.\nUse `wandb login` to log in.")
    with pytest.raises(ConfigError, match=r"^metrics\.wandb: No API key configured\. Use `wandb"):
        make_monitor(tmp_path / "run")


def test_what_cannot_be_logged_is_reported_once(tmp_path, fake):
    lines = []
    monitor = make_monitor(tmp_path / "run", lines.append)
    fake.error = Fake.Error("the service has ended")
    train(monitor)
    told = [line for line in lines if "Weights" in line]
    assert told == ["distrl: Weights & Biases: the service has ended: points will be missing"]
