"""What several tasks, agents and policies cannot be: one line, and exit status 2."""

from pathlib import Path

import pytest

from tests.support import experiments

FILE = Path(experiments.__file__).with_name("refused.py")
SAID = {
    "memory_on_another_clock": "policy 'other' learns from 'main' and has memory; recurrent state",
    "acts_for_no_agent": "policies ['q'] act for no agent",
    "no_such_policy": "policy_of['agent_2'] is 'r'; the policies are ['p', 'q']",
    "table_of_another": "its table cannot be filled from there",
    "on_policy_from_another": "PPOConfig learns from its own policy's actions only",
    "more_workers_than_unrolls": "learner.num_gradient_workers=9 is more than learner.batch_size=8",
    "shared_with_nobody": "['third'] are no policies that learn",
    "several_updates_summed": "makes several updates from a batch",
}


@pytest.mark.parametrize("name", SAID)
def test_an_experiment_that_cannot_be_is_refused_in_one_line(status_of, tmp_path, capsys, name):
    command = ("train", "--topology=single_process", f"--experiment={FILE}:{name}")
    assert status_of(*command) == 2
    out, err = capsys.readouterr()
    assert err.startswith("distrl: ") and err.count("\n") == 1
    assert SAID[name] in err
    assert out == ""
    assert not list(tmp_path.iterdir())  # no run folder
