"""Hosts that do not belong to the program, and traffic between those that do."""

import sys
import time
from pathlib import Path

import pytest

from tests.support.cluster.hosts import Hosts
from tests.support.cluster.program import (
    CARTPOLE,
    FOR_EVER,
    ROOT,
    Program,
    listening,
    nothing_is_left,
    served_ports,
)
from tests.support.commands import SUBSTRATES

pytestmark = [pytest.mark.timeout(600), pytest.mark.slow]
PEER = Path(__file__).with_name("unauthenticated_peer.py")


@pytest.mark.parametrize("hosts", [4], indirect=True)
@pytest.mark.parametrize("substrate", SUBSTRATES)
@pytest.mark.parametrize("light", [False, True])
def test_an_unauthenticated_peer_reaches_nothing(
    hosts: Hosts, tmp_path: Path, light: bool, substrate: str
):
    flags = (f"--light={light}", f"--substrate={substrate}")
    program = Program(hosts, tmp_path, *CARTPOLE, *FOR_EVER, *flags)
    program.wait_for_training()
    for name in ("h1", "h2", "h3"):
        (tunnel,) = [address.rpartition(":")[2] for address in listening(hosts, name)]
        ports = served_ports(hosts, name)
        assert ports or name != "h1"
        words = [sys.executable, PEER, substrate, tmp_path / "marker", hosts.address(name), tunnel]
        command = ["env", f"PYTHONPATH={ROOT}", *words, *sorted(ports)]
        said = hosts.exec("h4", command, timeout=200.0).stdout
        assert "answered" not in said and "done" in said, said
    assert not list(tmp_path.glob("marker*"))
    program.gets_on()
    program.signal(2)
    assert program.process.wait(60.0) == 130
    nothing_is_left(hosts)


def test_each_version_crosses_to_a_host_once(hosts: Hosts, tmp_path: Path):
    """16 actors on two hosts, 20 MB of parameters."""
    program = Program(
        hosts,
        tmp_path,
        *CARTPOLE,
        *FOR_EVER,
        "--config.agent.network.hidden_sizes=2200,2200",
        "--config.actors.num_actors=16",
        "--config.actors.num_envs=2",
        "--config.replay.max_size=1024",
    )
    program.wait_for_training()
    program.gets_on(200.0, updates=20)  # they are large
    time.sleep(20.0)  # for more versions
    program.signal(2)
    assert program.process.wait(120.0) == 130
    for index, name in enumerate(("h2", "h3")):
        log = (program.run_dir / "logs" / f"relay-{index}.log").read_text()
        words = log.rpartition("fetched ")[2].split()
        fetched, size = int(words[0]), int(words[3])
        assert size > 19_000_000 and fetched > 5
        assert fetched * size < hosts.bytes_in(name) < 1.1 * fetched * size + 5_000_000
    nothing_is_left(hosts)
