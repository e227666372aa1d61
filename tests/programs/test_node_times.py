"""Every node of a program says what its time goes to."""

import json

import pytest

from tests.support.commands import CARTPOLE, Command, skip_without_reverb


@pytest.mark.full  # processes, and a Reverb server
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("topology", "backend"), [("heavy_env", "reverb"), ("light_env", "shared_memory")]
)
def test_all_nodes_account_for_their_time(tmp_path, topology, backend):
    skip_without_reverb(backend)
    command = Command(
        tmp_path,
        *CARTPOLE,
        "--agent=impala",
        f"--topology={topology}",
        f"--config.replay.backend={backend}",
        f"--config.replay.num_shards={2 if backend == 'reverb' else 1}",
        "--config.actors.num_envs=4",
        "--config.learner.batch_size=8",
        "--config.learner.num_gradient_workers=1",
        "--config.evaluator.num_evaluators=1",
        "--config.evaluator.interval=1",
    )

    def shares() -> dict[str, dict[str, float]]:
        path = command.run_dir / "progress.json"
        return json.loads(path.read_text())["nodes"] if path.exists() else {}

    try:
        command.wait_for_training()
        nodes = json.loads((command.run_dir / "status.json").read_text())["nodes"]
        command.wait_for(lambda: shares().keys() == nodes.keys(), "all nodes")
        command.interrupt()
        assert command.wait(60.0) == 130
        found = shares()
    finally:
        command.end()
    for node in found:
        assert sum(found[node].values()) == pytest.approx(1.0, abs=0.01), node
    replay = {node for node in nodes if node.startswith("replay/")}
    assert len(replay) == (2 if backend == "reverb" else 1)
    for node in (*replay, "monitor/0"):
        assert found[node].keys() <= {"serving", "idle"}, node
    assert found["gradient_worker/0"].keys() >= {"compute", "transfer", "idle"}
