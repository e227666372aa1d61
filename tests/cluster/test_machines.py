"""Programs on several machines, started by SSH: they train, recover, end, and leave nothing."""

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.support.cluster.hosts import Hosts
from tests.support.cluster.program import (
    CARTPOLE,
    FOR_EVER,
    ROOT,
    SOLVE_S,
    Program,
    listening,
    nothing_is_left,
)
from tests.support.commands import SUBSTRATES, needs_launchpad
from tests.support.selection import slow

pytestmark = pytest.mark.timeout(400)


@pytest.mark.parametrize(
    ("light", "substrate"),
    [(False, "builtin"), slow(False, "auto"), slow(True, "builtin"), slow(True, "auto")],
)
def test_cartpole_is_solved_on_three_hosts(
    hosts: Hosts, tmp_path: Path, light: bool, substrate: str
):
    program = Program(hosts, tmp_path, *CARTPOLE, f"--light={light}", f"--substrate={substrate}")
    assert program.process.wait(SOLVE_S) == 0, program.output
    assert program.result()["status"] == "finished"
    placed = [line.split()[:2] for line in program.output.splitlines()]
    for node, host in (("learner/0", "h1"), ("actor/0", "h2"), ("actor/1", "h3")):
        assert [node, host] in placed
    nothing_is_left(hosts)


@pytest.mark.slow
@pytest.mark.parametrize("substrate", SUBSTRATES)
def test_a_host_is_lost_and_comes_back(hosts: Hosts, tmp_path: Path, substrate: str):
    program = Program(hosts, tmp_path, *CARTPOLE, *FOR_EVER, f"--substrate={substrate}")
    program.wait_for_training()
    for name in hosts.names:
        addresses = listening(hosts, name)
        assert len(addresses) == 1, addresses  # the tunnel
    look = ["env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "distrl"]
    status = hosts.exec("h1", [*look, "status", program.run_dir]).stdout.splitlines()
    assert [line.split()[:2] for line in status if "actor/0" in line] == [["actor/0", "h2"]]

    def stacks() -> str:
        return hosts.exec("h1", [*look, "stacks", program.run_dir, "actor/1"]).stdout

    named = "==== actor/1, on host h3"
    program.wait_for(lambda: named in stacks(), "actor/1's process", 30.0)
    assert named in (text := stacks()) and "programs/nodes/actor.py" in text
    hosts.cut("h2")
    cut = time.monotonic()
    program.wait_for(lambda: "host h2 is lost" in program.output, "h2 named", 20.0)
    program.gets_on()
    while hosts.processes("h2"):
        assert time.monotonic() < cut + 30.0, hosts.processes("h2")
        time.sleep(0.1)
    hosts.heal("h2")
    log = program.run_dir / "logs" / "supervisor.log"
    program.wait_for(lambda: log.read_text().count("actor/0 is running") == 2, "h2 back", 90.0)
    program.gets_on()
    hosts.poweroff("h3")
    program.wait_for(lambda: "host h3 is lost" in program.output, "h3 named", 20.0)
    program.gets_on()
    program.signal(signal.SIGINT)
    assert program.process.wait(60.0) == 128 + signal.SIGINT
    nothing_is_left(hosts)


@pytest.mark.slow
@pytest.mark.parametrize(
    "substrates",
    [("builtin", "builtin"), pytest.param(("launchpad", "builtin"), marks=needs_launchpad)],
)
def test_a_program_resumes_from_its_checkpoint(
    hosts: Hosts, tmp_path: Path, substrates: tuple[str, str]
):
    for steps, substrate in zip((40_000, 80_000), substrates):
        program = Program(
            hosts, tmp_path, "--env=CartPole-v1", "--agent=dqn", f"--max_env_steps={steps}",
            f"--substrate={substrate}", "--config.goal.mean_return=None",
            "--config.checkpoint.replay=True",
        )  # fmt: skip
        assert program.process.wait(SOLVE_S) == 0, program.output
        nothing_is_left(hosts)
    assert program.output.count("resuming from checkpoint") == 1
    same = substrates[0] == substrates[1]
    assert ("the replay starts empty" in program.output) != same, program.output


def test_nothing_outlives_a_launcher_that_is_killed(hosts: Hosts, tmp_path: Path):
    program = Program(hosts, tmp_path, *CARTPOLE, *FOR_EVER)
    program.wait_for_training()
    program.signal(signal.SIGKILL)
    nothing_is_left(hosts)


@pytest.mark.slow
def test_the_learners_host_is_lost(hosts: Hosts, tmp_path: Path):
    program = Program(hosts, tmp_path, *CARTPOLE, *FOR_EVER, on="h3")
    program.wait_for_training()
    hosts.poweroff("h1")
    assert program.process.wait(60.0) == 75
    assert "host h1 is lost" in program.result()["reason"]
    nothing_is_left(hosts)


@pytest.mark.slow
@pytest.mark.parametrize("substrate", SUBSTRATES)
def test_shards_of_the_replay_on_two_hosts(hosts: Hosts, tmp_path: Path, substrate: str):
    backend = {"builtin": "served", "launchpad": "reverb"}[substrate]
    program = Program(
        hosts, tmp_path, *CARTPOLE, *FOR_EVER, "--config.replay.num_shards=2",
        f"--substrate={substrate}", f"--config.replay.backend={backend}",
        "--config.checkpoint.replay=False",
        hosts_flag="h1,h2:replay=1,h3:replay=1",
    )  # fmt: skip
    program.wait_for_training()
    placed = [line.split()[:2] for line in program.output.splitlines()]
    assert ["replay/0", "h2"] in placed and ["replay/1", "h3"] in placed
    program.gets_on()
    status = [sys.executable, "-m", "distrl", "status", program.run_dir]
    said = hosts.exec("h1", ["env", f"PYTHONPATH={ROOT}", *status]).stdout.splitlines()
    assert [line.split()[:2] for line in said if "replay/" in line] == [
        ["replay/0", "h2"],
        ["replay/1", "h3"],
    ]
    again = "replay/1 was killed by SIGKILL: restarting"
    (shard,) = [each.pid for each in hosts.processes("h3") if each.name == "distrl:replay/1"]
    os.kill(shard, signal.SIGKILL)
    program.wait_for(lambda: again in program.output, again, 30.0)
    program.gets_on()
    hosts.poweroff("h3")
    assert program.process.wait(60.0) == 75
    assert "host h3 is lost" in program.result()["reason"]
    nothing_is_left(hosts)


@pytest.mark.slow
def test_a_node_waits_for_one_of_its_own_host_that_is_restarted(hosts: Hosts, tmp_path: Path):
    program = Program(
        hosts, tmp_path, *CARTPOLE, *FOR_EVER, "--light", "--substrate=builtin",
        "--config.actors.num_actors=1",
        hosts_flag="h1",
    )  # fmt: skip
    program.wait_for_training()
    (service,) = [each.pid for each in hosts.processes("h1") if each.name == "distrl:infere/0"]
    os.kill(service, signal.SIGKILL)
    program.wait_for(lambda: "SIGKILL: restarting" in program.output, "restarting", 30.0)
    program.gets_on()
    assert "inferencer/0 has ended" not in program.output
    program.signal(signal.SIGINT)
    assert program.process.wait(60.0) == 128 + signal.SIGINT
    nothing_is_left(hosts)


def test_other_code_is_refused(tmp_path: Path):
    own = tmp_path / "own"
    own.mkdir()
    with Hosts(2, private=[own]) as hosts:
        for name in hosts.names:
            for package in ("distrl", "programs", "launch"):
                there = f"{own}/{package}"
                hosts.exec(name, ["cp", "-r", f"{ROOT}/{package}", there])
        hosts.exec("h2", ["sh", "-c", f"echo '# changed' >> {own}/distrl/actor.py"])
        program = Program(hosts, tmp_path, *CARTPOLE, f"--remote_folder={own}", hosts_flag="h1,h2")
        assert program.process.wait(90.0) == 2
        assert "distrl: host h2 has different code of distrl (hash" in program.output
        nothing_is_left(hosts)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["loses 30 % of its packets", "has 10 Mbit/s"])
def test_a_host_with_a_bad_connection_continues(hosts: Hosts, tmp_path: Path, fault: str):
    program = Program(hosts, tmp_path, *CARTPOLE, *FOR_EVER)
    program.wait_for_training()
    if "loses" in fault:
        hosts.loss("h2", 0.3)
    else:
        hosts.rate("h2", "10mbit")
    time.sleep(30.0)  # long enough to be taken for lost
    program.gets_on()
    hosts.loss("h2", 0.0)
    hosts.rate("h2", None)
    program.gets_on()
    program.signal(signal.SIGTERM)
    assert program.process.wait(60.0) == 128 + signal.SIGTERM
    nothing_is_left(hosts)


TAKE_PORTS = """
import resource, socket, sys, time
ports = range(15000, 32000, 2)
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 20000), hard))
taken = [socket.create_server(("", port)) for port in ports]
print(len(taken), flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_a_port_that_is_closed_between_the_hosts_is_named(hosts: Hosts, tmp_path: Path):
    """The launcher, on a third host, reaches both."""
    hosts.close_ports("h1")
    program = Program(hosts, tmp_path, *CARTPOLE, *FOR_EVER, on="h3", hosts_flag="h1,h2")
    named = re.compile(r"h2 cannot reach h1:\d+ \(Connection refused\): open that port")
    program.wait_for(lambda: named.search(program.output) is not None, "port named")
    hosts.loss("h1", 0.0)
    program.wait_for_training()
    assert re.search(r"h2 reaches h1:\d+\n", program.output)
    program.signal(signal.SIGINT)
    assert program.process.wait(60.0) == 128 + signal.SIGINT
    nothing_is_left(hosts)


@pytest.mark.slow
def test_a_host_comes_late_and_half_of_the_ports_are_taken(hosts: Hosts, tmp_path: Path):
    hosts.poweroff("h2")
    pipe = subprocess.PIPE
    takers = [
        hosts.popen(name, [sys.executable, "-c", TAKE_PORTS], stdin=pipe, stdout=pipe)
        for name in ("h1", "h3")
    ]
    for taker in takers:
        assert taker.stdout is not None and taker.stdout.readline() == b"8500\n"
    program = Program(hosts, tmp_path, *CARTPOLE)
    time.sleep(30.0)  # what is tested
    hosts.boot("h2")
    assert program.process.wait(SOLVE_S) == 0, program.output
    for taker in takers:
        taker.communicate(timeout=10.0)
    nothing_is_left(hosts)
