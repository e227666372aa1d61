"""The monitor's counts and budgets, when actors end or their hosts are lost."""

import json

import pytest

from distrl.checkpointing.resume_point import ResumePoint
from distrl.config import ActorsConfig, EvaluatorConfig, LearnerConfig
from distrl.envs import PythonEnvironment
from distrl.experiment import Experiment
from distrl.goal import Goal
from distrl.metrics.reports import first_number
from distrl.programs.nodes.monitor import MonitorNode
from distrl.programs.substrate import node_context
from distrl.replay.config import ReplayConfig
from distrl.runtime.heartbeat import HeartbeatTable, install_heartbeat_lookup
from distrl.testing import CheckingConfig, CountingEnvironment

BUDGET, STEP = 1000, 4


class Program:
    """A monitor, and the heartbeats as it sees them."""

    def __init__(self, folder):
        experiment = Experiment(
            PythonEnvironment(CountingEnvironment, "counting"),
            CheckingConfig(),
            replay=ReplayConfig(unroll_length=20, max_size=128),
            actors=ActorsConfig(num_actors=2, num_envs=STEP),
            learner=LearnerConfig(batch_size=64),
            evaluator=EvaluatorConfig(num_evaluators=0),
            goal=Goal(max_env_steps=BUDGET),
        )
        self.table = HeartbeatTable(["monitor/0", "actor/0", "actor/1"])
        for name in ("monitor/0", "actor/0", "actor/1"):
            self.table.of(name).begin(0)
        node_context.new_manager()
        node_context.enter(lambda **_: None)
        install_heartbeat_lookup(lambda: (self.table.of("monitor/0"), True))
        (self.task,) = experiment.tasks
        self.node = MonitorNode(experiment, str(folder), ResumePoint())

    def report(self, actor, life, number, steps):
        report = {"env_steps": steps, "episodes": []}
        self.node.report(self.task, actor, first_number(life) + number, [report])

    def lease(self, actor, life, acted):
        return self.node.lease(self.task, actor, life, (acted, 0), STEP, 10**6)

    def play_on(self, actor, life, acted):
        """Acts within leases until there is no more; returns the steps of all its lives."""
        while not (lease := self.lease(actor, life, acted))[2] and lease[0] >= acted + STEP:
            acted = lease[0]
        return acted

    def counts(self):
        monitor = self.node._monitors[self.task]
        row = monitor.snapshot()
        assert json.loads(self.node.state(self.task))["env_steps_acted"] == row["env_steps"]
        return row["env_steps"], row["env_steps_unreported"]


@pytest.fixture
def program(tmp_path):
    yield Program(tmp_path)
    install_heartbeat_lookup(lambda: None)
    node_context._here.__dict__.clear()


@pytest.mark.parametrize(
    ("told", "known"),
    [
        (0, 248),  # its host was lost: only what the monitor has heard is known
        (230, 248),  # the launcher has heard less than the monitor
        (260, 260),  # and more: this is all if the host was not lost
    ],
)
def test_a_life_goes_on_from_all_that_is_known_of_those_before(program, told, known):
    assert program.lease("actor/0", 0, 0)[0] == 250
    program.report("actor/0", 0, 0, 200)
    assert program.lease("actor/0", 0, 248)[0] == 248 + 188
    assert program.counts() == (200, 0)
    for _ in range(2):  # a call may arrive twice
        assert program.node.begin_life("actor/0", 1, told) == known
    assert program.counts() == (known, known - 200)
    program.report("actor/0", 0, 1, 48)  # late, and counted already
    assert program.counts() == (known, known - 200)
    program.report("actor/0", 1, 0, 12)
    assert program.counts() == (known + 12, known - 200)
    acted = {"actor/0": known + 12, "actor/1": 0}
    for actor, life in (("actor/0", 1), ("actor/1", 0)) * 2:
        acted[actor] = program.play_on(actor, life, acted[actor])
    assert program.lease("actor/0", 1, acted["actor/0"])[2]
    assert BUDGET <= sum(acted.values()) < BUDGET + STEP


def test_the_lease_of_a_lost_host_is_for_the_others_and_not_for_its_next_life(program):
    row = program.table.of("actor/0")
    assert program.lease("actor/0", 0, 0)[0] == 250
    program.report("actor/0", 0, 0, 40)
    row.end(True)  # restarted where it was: it goes on with its lease
    others = program.play_on("actor/1", 0, 0)
    assert BUDGET - 250 <= others < BUDGET - 250 + STEP
    row.end(True, host_lost=True)
    row.mirror_acted(44)  # as the launcher has heard
    assert program.node.acting_over(program.task) == (False, 0)  # the learner asks all the time
    others = program.play_on("actor/1", 0, others)
    assert BUDGET - 44 <= others < BUDGET - 44 + STEP
    program.node.finish("actor/1", 0)
    assert program.node.acting_over(program.task) == (True, 0)
    row.begin(1)
    assert program.node.begin_life("actor/0", 1, 44) == 44
    assert program.play_on("actor/0", 1, 44) == 44
    assert program.lease("actor/0", 1, 44)[2]


def test_a_checkpoint_while_a_life_begins_does_not_close_its_books(program):
    row = program.table.of("actor/0")
    program.report("actor/0", 0, 0, 40)
    row.acted = 44
    row.end(True)
    row.tick = program.counts  # the launcher has written the life, and not yet its status
    row.begin(1)
    assert program.node.begin_life("actor/0", 1, 44) == 44
    program.report("actor/0", 1, 0, 12)
    row.acted = 60
    assert program.counts() == (56, 4)
    row.end(False)
    program.node.state(program.task)
    assert program.counts() == (60, 8)
