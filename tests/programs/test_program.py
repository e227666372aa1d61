"""Programs, before they are launched."""

import dataclasses
import math

import pytest

from distrl import presets
from distrl.config import SupervisionConfig
from distrl.programs.groups import MONITOR
from distrl.programs.program import ExperimentProgram
from distrl.programs.substrate import AUTO, BUILTIN
from distrl.runtime.durations import LONGEST_WAIT_S


@pytest.mark.parametrize("substrate", [AUTO, BUILTIN])
def test_the_deadline_of_calls_is_one_that_calls_can_have(tmp_path, substrate):
    made = presets.experiment("CartPole-v1", "impala")
    patient = dataclasses.replace(made, supervision=SupervisionConfig(call_timeout=math.inf))
    program = ExperimentProgram(patient, str(tmp_path), None, substrate)
    assert program.add_call_node(MONITOR, object).timeout == LONGEST_WAIT_S
    assert program.add_call_node(MONITOR, object, call_timeout=7.0).timeout == 7.0
