"""What the launcher shows at the end of a program."""

from pathlib import Path

import pytest

from distrl.launch.supervision.journal import Journal
from distrl.launch.supervision.result import Failure, NodeExit, Result


@pytest.mark.parametrize("fails", [False, True])
def test_nodes_of_a_lost_host_have_not_failed_while_stopping(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], fails: bool
):
    lost, bad = NodeExit("failed", error="host h3 is lost: no message"), NodeExit("killed")
    nodes = {"relay/1": lost, "actor/1": lost, "actor/2": bad, "learner/0": NodeExit("ended", 0)}
    failure = Failure("learner/0", "KeyError: 3") if fails else None
    journal = Journal(tmp_path / "supervisor.log")
    result = Result("finished", "25,000 environment steps", 0, nodes)
    journal.report(result, failure, [], journal.path, lost={"h3": ["relay/1", "actor/1"]})
    journal.close()
    said = capfd.readouterr().err.splitlines()
    named = [line for line in said if "relay/1" in line or "actor/2" in line]
    assert named == (
        []
        if fails
        else [
            "distrl: ended without host h3, which is lost: relay/1, actor/1",
            f"distrl: failed while stopping: actor/2; see {journal.path}",
        ]
    )
    assert said[-1].startswith("distrl: finished: 25,000 environment steps (exit status 0")
