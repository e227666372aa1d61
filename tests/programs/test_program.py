"""Programs, before they are launched."""

import dataclasses
import math

import pytest

from distrl import presets
from distrl.config import SupervisionConfig
from distrl.programs.groups import INFERENCER, MONITOR, learner_name
from distrl.programs.light_env import light_env
from distrl.programs.program import ExperimentProgram
from distrl.programs.substrate import AUTO, BUILTIN
from distrl.runtime.durations import LONGEST_WAIT_S
from tests.support.experiments import agents, tasks


@pytest.mark.parametrize("substrate", [AUTO, BUILTIN])
def test_the_deadline_of_calls_is_one_that_calls_can_have(tmp_path, substrate):
    made = presets.experiment("CartPole-v1", "impala")
    patient = dataclasses.replace(made, supervision=SupervisionConfig(call_timeout=math.inf))
    program = ExperimentProgram(patient, str(tmp_path), None, substrate)
    assert program.add_call_node(MONITOR, object).timeout == LONGEST_WAIT_S
    assert program.add_call_node(MONITOR, object, call_timeout=7.0).timeout == 7.0


def test_inferencers_of_several_policies_report_by_the_names_of_their_nodes(tmp_path):
    made = agents.experiment(backend="served")  # "outer" and "inner", each acts
    for on_one_host in (True, False):
        program = light_env(made, str(tmp_path), on_one_host=on_one_host, substrate=BUILTIN)
        nodes = program.groups[INFERENCER.name]
        given = [[arg for arg in node._args if isinstance(arg, str)] for node in nodes]
        for index, (node_given, task) in enumerate(zip(given, ("outer", "inner"), strict=True)):
            assert node_given[:2] == [task, f"inferencer/{index}"]


def test_learners_have_the_names_of_their_nodes():
    assert [learner_name(agents.experiment(), task) for task in ("outer", "inner")] == [
        "learner/0",
        "learner/1",
    ]
    assert {learner_name(tasks.sharing(), task) for task in ("main", "aux")} == {"learner/0"}
