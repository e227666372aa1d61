"""Several processes that are one learner: the command line, with real processes on loopback."""

import contextlib
import csv
import dataclasses
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from distrl import presets
from distrl.annealing import annealed_agent
from distrl.checkpointing.store import Checkpoints
from distrl.config import ActorsConfig, InferenceConfig
from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import Experiment, LearnerConfig
from distrl.goal import Goal
from distrl.learner_group.group import Agreement, SingleProcessGroup
from distrl.programs.learner_processes import ProcessGroupSpec, about, share_of
from distrl.programs.single_process import single_process
from distrl.replay.config import ReplayConfig
from distrl.testing import CheckingConfig, CountingEnvironment

ROOT = Path(__file__).resolve().parents[3]
EXPERIMENT = presets.experiment("CartPole-v1")


class Process:
    """`distrl train` as one process of a learner, with what it prints in a file."""

    def __init__(self, folder, address, index, *flags, count=2):
        self._log = folder / f"log-{index}"
        command = [
            sys.executable, "-m", "distrl", "train", "--topology=single_process",
            "--env=CartPole-v1", f"--coordinator_address={address}", f"--num_processes={count}",
            "--open_learner_ports", f"--process_id={index}", f"--run_dir={folder / 'run'}", *flags,
        ]  # fmt: skip
        with open(self._log, "wb") as log:
            self.popen = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    @property
    def said(self):
        return self._log.read_text(errors="replace")

    def wait_for(self, text, timeout=200.0):
        deadline = time.monotonic() + timeout
        while text not in self.said:
            assert time.monotonic() < deadline and self.popen.poll() is None, self.said
            time.sleep(0.05)

    def ends(self, timeout):
        """Its exit status."""
        try:
            return self.popen.wait(timeout)
        except subprocess.TimeoutExpired:
            pytest.fail(f"it goes on: {self.said}")


@pytest.fixture
def start(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    with contextlib.ExitStack() as opened:

        def run(index, *flags):
            process = Process(tmp_path, address, index, *flags)
            opened.callback(process.popen.wait, 10.0)
            opened.callback(process.popen.kill)
            return process

        yield run


def test_what_one_process_does():
    first, second = (share_of(EXPERIMENT, ProcessGroupSpec("h:1", 2, index)) for index in (0, 1))
    for share in (first, second):
        assert (share.actors.num_actors, share.learner.batch_size) == (1, 32)
        assert share.replay.max_size == EXPERIMENT.replay.max_size // 2
    assert first.seed == EXPERIMENT.seed != second.seed
    assert first.goal == EXPERIMENT.goal
    assert second.only_task.resolved_goal().mean_return is None


def test_settings_of_nodes_do_not_hinder_a_share():
    experiment = dataclasses.replace(
        EXPERIMENT,
        actors=ActorsConfig(4, 16, min_actors=4, round_grace=1.0, late_data="drop"),
        inference=InferenceConfig(num_inferencers=4, num_gpus=3),
    )
    share = share_of(experiment, ProcessGroupSpec("h:1", 2, 1))
    assert share.actors == ActorsConfig(2, 16)
    assert share.inference == InferenceConfig()


@pytest.mark.parametrize(
    ("change", "place", "message"),
    [
        ({}, (3, 0), "actors.num_actors=2 does not split over 3 learner processes: 2 / 3 = 0.7"),
        (
            {"learner": LearnerConfig(batch_size=63)},
            (2, 1),
            "learner.batch_size=63 does not split over 2 learner processes: 63 / 2 = 31.5",
        ),
        ({"lockstep": True}, (2, 1), "lockstep: several learner processes use what arrives first"),
    ],
)
def test_what_does_not_split_is_refused(change, place, message):
    experiment = dataclasses.replace(EXPERIMENT, **change)
    with pytest.raises(ConfigError) as caught:
        share_of(experiment, ProcessGroupSpec("h:1", *place))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (("nowhere", 2, 0), "expected HOST:PORT, got 'nowhere'"),
        (("h:1", 2, 2), "process_id must lie between 0 and num_processes - 1 = 1, got 2"),
        (("h:1", 0, 0), "num_processes must be 1 or more, got 0"),
    ],
)
def test_a_place_that_cannot_be(place, message):
    with pytest.raises(ConfigError) as caught:
        ProcessGroupSpec(*place).check()
    assert message in str(caught.value)


class TwinGroup(SingleProcessGroup):
    """Process 0 of two that do the same."""

    count = 2

    def agree(self, proceed, numbers=()):
        return Agreement(proceed, [2 * number for number in numbers])


def test_steps_and_episodes_are_those_of_all_processes(tmp_path):
    ended = []

    class Environment(CountingEnvironment):
        def step(self, action):
            step = super().step(action)
            ended.extend([None] if step.last() else [])
            return step

    experiment = Experiment(
        PythonEnvironment(Environment, "counting"),
        CheckingConfig(),
        replay=ReplayConfig("queue", 5, 64),
        learner=LearnerConfig(batch_size=4),
        actors=ActorsConfig(num_actors=1, num_envs=4),
        goal=Goal(max_episodes=40),
    )
    experiment.environment.spec()  # which tries steps
    ended.clear()
    single_process(experiment, stop=threading.Event(), run_dir=tmp_path, join=TwinGroup)
    with open(tmp_path / "metrics.csv") as file:
        row = list(csv.DictReader(file))[-1]
    episodes = int(row["episodes"])
    assert len(ended) < 40 <= episodes <= 2 * len(ended)  # the other's as of the last update
    counts = Checkpoints(tmp_path).latest().manifest["monitor"]
    assert (counts["env_steps_acted"], counts["episodes"]) == (int(row["env_steps"]), episodes)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_two_processes_solve_cartpole(start, tmp_path):
    second = start(1, "--config.goal.max_env_steps=2000000", "--config.goal.mean_return=475")
    first = start(0, "--config.goal.max_env_steps=2000000", "--config.goal.mean_return=475")
    assert first.ends(1000.0) == 0, first.said
    assert second.ends(60.0) == 0, second.said
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert result["status"] == "finished"
    assert "another learner process has ended the run" in second.said
    with open(tmp_path / "run" / "metrics.csv") as file:
        last = list(csv.DictReader(file))[-1]
    # All processes' steps are counted, those acted and those trained on.
    assert int(last["trained_steps"]) <= int(last["env_steps"])


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_they_end_together_and_go_on(start, tmp_path):
    flags = "--config.goal.mean_return=None", "--config.goal.max_learner_steps=5"
    both = [start(index, *flags) for index in (0, 1)]
    assert [process.ends(200.0) for process in both] == [0, 0], both[0].said + both[1].said
    flags = *flags[:1], "--config.goal.max_learner_steps=8"
    both = [start(index, *flags) for index in (0, 1)]
    assert [process.ends(200.0) for process in both] == [0, 0], both[0].said + both[1].said
    assert "8 updates" in both[0].said
    resumed = json.loads((tmp_path / "run" / "resumed.json").read_text())
    assert resumed["learner"]["version"] == 5


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("stopped", [0, 1])
def test_a_signal_to_one_ends_all_in_order(start, stopped):
    both = [start(index, "--config.goal.mean_return=None") for index in (0, 1)]
    both[0].wait_for("first learner step")
    both[stopped].popen.send_signal(signal.SIGTERM)
    other = 0 if stopped == 0 else 128 + signal.SIGTERM  # process 0 has been stopped in any case
    assert both[stopped].ends(60.0) == 128 + signal.SIGTERM, both[stopped].said
    assert both[1 - stopped].ends(60.0) == other, both[1 - stopped].said
    assert "another learner process has ended the run" in both[1 - stopped].said
    start(0, "--config.goal.mean_return=None").wait_for("resuming from checkpoint")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("dies", [0, 1])
def test_a_process_whose_partner_dies_ends_and_names_it(start, dies):
    both = [start(index, "--config.goal.mean_return=None") for index in (0, 1)]
    both[0].wait_for("first learner step")
    other = both[1 - dies]
    began = time.monotonic()
    both[dies].popen.kill()
    assert other.ends(40.0) == 1
    assert time.monotonic() < began + 30.0
    assert f"PeerError: learner process {dies} (127.0.0.1:" in other.said


def test_rates_and_starts_are_those_of_the_whole():
    agent = dataclasses.replace(presets.experiment("CartPole-v1", "dqn").agent)
    whole = dataclasses.replace(
        presets.experiment("CartPole-v1", "dqn"),
        agent=dataclasses.replace(agent, anneal_over_budget=True),
        goal=Goal(max_env_steps=8_000),
    )
    updates = annealed_agent(whole.only_task).anneal_updates
    shares = [share_of(whole, ProcessGroupSpec("h:1", 2, index)) for index in (0, 1)]
    assert [annealed_agent(share.only_task).anneal_updates for share in shares] == [updates] * 2
    assert shares[0].agent == shares[1].agent
    learner = dataclasses.replace(whole.learner, every_steps=16)
    whole = dataclasses.replace(whole, learner=learner)
    assert share_of(whole, ProcessGroupSpec("h:1", 2, 1)).learner.every_steps == 8


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("replay", {"samples_per_insert": 1.0}),
        ("actors", {"num_envs": 2}),
        ("learner", {"every_steps": 16}),
        ("goal", {"max_env_steps": 7}),
    ],
)
def test_all_settings_must_be_the_same(part, change):
    one = presets.experiment("CartPole-v1", "dqn")
    other = dataclasses.replace(one, **{part: dataclasses.replace(getattr(one, part), **change)})
    (setting,) = change
    differing = {name for name, text in about(one).items() if about(other)[name] != text}
    assert differing == {f"{part}.{setting}"}


def test_agents_of_two_kinds_differ_in_one_setting():
    dqn, impala = (presets.experiment("CartPole-v1", name) for name in ("dqn", "impala"))
    impala = dataclasses.replace(dqn, agent=impala.agent)
    one, other = about(dqn), about(impala)
    assert one.keys() == other.keys()
    assert {name for name, text in one.items() if other[name] != text} == {"agent"}
