"""`--launcher=ray` on a real Ray cluster of virtual hosts."""

import os
import signal
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
    served_ports,
)
from tests.support.cluster.ray import PORT, Ray
from tests.support.nodes import SUBSTRATE

pytestmark = pytest.mark.timeout(400)
PEER = Path(__file__).with_name("unauthenticated_peer.py")
TUNNEL = 7420
THREE_ACTORS = "--config.actors.num_actors=3"  # else the fourth host would have no nodes


def train(hosts: Hosts, ray: Ray, folder: Path, *flags: str, **options: str | None) -> Program:
    options.setdefault("hosts_flag", None)
    return Program(hosts, folder, *CARTPOLE, *ray.flags, *flags, **options)  # type: ignore[arg-type]


def placed(program: Program) -> list[list[str]]:
    return [line.split()[:3] for line in program.output.splitlines()]


@pytest.mark.parametrize("light", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_cartpole_is_solved_on_a_cluster(hosts: Hosts, ray: Ray, tmp_path: Path, light: bool):
    program = train(hosts, ray, tmp_path, f"--light={light}")
    assert program.process.wait(SOLVE_S) == 0, program.output
    assert program.result()["status"] == "finished"
    for node, number in (("learner/0", 1), ("actor/0", 2), ("actor/1", 3)):
        assert [node, f"h{number}", f"10.77.0.{number}"] in placed(program)
    ray.nothing_is_left(hosts.names)


def test_a_node_is_lost_and_another_one_takes_its_place(hosts: Hosts, ray: Ray, tmp_path: Path):
    program = train(hosts, ray, tmp_path, *FOR_EVER, hosts_flag="a:address=10.77.0.1,b,c")
    program.wait_for_training()
    hosts.poweroff("h3")
    program.wait_for(lambda: " is lost: " in program.output, "a host named", 30.0)
    program.gets_on()
    hosts.boot("h3")
    ray.start("h3")
    log = program.run_dir / "logs" / "supervisor.log"
    program.wait_for(
        lambda: log.read_text().rpartition(" is lost: ")[2].count(" is running") == 2,
        "actor and relay",
        180.0,
    )
    program.gets_on()
    program.signal(signal.SIGINT)
    assert program.process.wait(60.0) == 128 + signal.SIGINT, program.output
    ray.nothing_is_left(hosts.names)


@pytest.mark.slow
def test_a_host_loses_its_raylet_alone(hosts: Hosts, ray: Ray, tmp_path: Path):
    program = train(hosts, ray, tmp_path, *FOR_EVER)
    program.wait_for_training()
    (raylet,) = [p.pid for p in hosts.processes("h2") if p.name == "raylet"]
    os.kill(raylet, signal.SIGKILL)
    program.wait_for(lambda: "host h2 is lost" in program.output, "h2 named", 30.0)
    program.gets_on()
    ray.start("h2")
    log = program.run_dir / "logs" / "supervisor.log"
    program.wait_for(lambda: log.read_text().count("actor/0 is running") == 2, "h2 back", 180.0)
    program.gets_on()
    program.signal(signal.SIGTERM)
    assert program.process.wait(60.0) == 128 + signal.SIGTERM
    ray.nothing_is_left(hosts.names)


def test_the_head_is_lost(hosts: Hosts, ray: Ray, tmp_path: Path):
    on = "h2:address=10.77.0.2,h3:address=10.77.0.3"
    program = train(
        hosts, ray, tmp_path, *FOR_EVER, hosts_flag=on.replace(":", ":cores=1:"), on="h2"
    )
    program.wait_for_training()
    (head,) = [p.pid for p in hosts.processes("h1") if p.name == "gcs_server"]
    os.kill(head, signal.SIGKILL)
    assert program.process.wait(90.0) == 1, program.output
    reason = "the head of the Ray cluster has not answered for 20 s"
    assert program.result()["reason"] == reason
    (line,) = [each for each in program.output.splitlines() if each.startswith("distrl: failed")]
    assert reason in line
    assert program.result()["saved"]["checkpoint"], "stopped in order"
    deadline = time.monotonic() + 30.0
    while any(ray.left(name) for name in ("h2", "h3")):
        assert time.monotonic() < deadline, [ray.left(name) for name in ("h2", "h3")]
        time.sleep(0.1)


@pytest.mark.slow
def test_nothing_outlives_a_launcher_that_is_killed(hosts: Hosts, ray: Ray, tmp_path: Path):
    program = train(hosts, ray, tmp_path, *FOR_EVER)
    program.wait_for_training()
    program.signal(signal.SIGKILL)
    program.process.wait(30.0)
    ray.nothing_is_left(hosts.names)


@pytest.mark.slow
def test_other_code_on_a_node_is_refused(tmp_path: Path):
    own = tmp_path / "own"
    own.mkdir()
    with Hosts(2, private=[own]) as hosts:
        for name in hosts.names:
            for package in ("distrl", "programs", "launch"):
                hosts.exec(name, ["cp", "-r", f"{ROOT}/{package}", own])
        hosts.exec("h2", ["sh", "-c", f"echo '# changed' >> {own}/distrl/actor.py"])
        ray = Ray(hosts)
        program = train(hosts, ray, tmp_path, f"--remote_folder={own}")
        assert program.process.wait(90.0) == 2, program.output
        assert "distrl: host h2 has different code of distrl (hash" in program.output
        ray.nothing_is_left(hosts.names)


@pytest.mark.slow
def test_an_unauthenticated_peer_reaches_nothing(hosts: Hosts, ray: Ray, tmp_path: Path):
    before = {name: listening(hosts, name) for name in hosts.names}
    on = "a:address=10.77.0.1,b:address=10.77.0.2"
    program = train(hosts, ray, tmp_path, *FOR_EVER, f"--tunnel_port={TUNNEL}", hosts_flag=on)
    program.wait_for_training()
    for name in ("h1", "h2"):
        lines = hosts.exec(name, ["ss", "-ltnpH"]).stdout.splitlines()
        new = [line for line in lines if line.split()[3] in listening(hosts, name) - before[name]]
        # Ray's workers have ports, and so has the bridge, which is on h1.
        others = [line for line in new if f":{TUNNEL} " not in line and "ray::" not in line]
        assert len(others) <= (name == "h1") * 2 and len(new) > len(others), new
        ports = sorted(served_ports(hosts, name))
        words = [sys.executable, PEER, SUBSTRATE, tmp_path / "marker", hosts.address(name), TUNNEL]
        command = ["env", f"PYTHONPATH={ROOT}", *words, *ports]
        said = hosts.exec("h3", command, timeout=200.0).stdout
        assert "answered" not in said and "done" in said, said
        look = "find /tmp /dev/shm -maxdepth 1 -type d -name distrl.* -printf %m\\n"
        assert set(hosts.exec(name, look.split()).stdout.split()) == {"700"}
    assert not list(tmp_path.glob("marker*"))
    program.gets_on()
    program.signal(signal.SIGINT)
    assert program.process.wait(60.0) == 128 + signal.SIGINT
    ray.nothing_is_left(hosts.names)


@pytest.mark.slow
def test_a_job_is_stopped(hosts: Hosts, ray: Ray, tmp_path: Path):
    """As by `ray job stop`, which needs Ray's dashboard: SIGTERM to every process of the job."""
    program = train(hosts, ray, tmp_path, *FOR_EVER)
    program.wait_for_training()
    job = [p for p in hosts.processes("h1") if "ray_relay" in p.command or "_bridge" in p.command]
    assert len(job) == 4  # of three hosts, and the bridge
    program.signal(signal.SIGTERM)
    for process in job:
        os.kill(process.pid, signal.SIGTERM)
    assert program.process.wait(60.0) == 128 + signal.SIGTERM, program.output
    assert " is lost: " not in program.output and program.result()["saved"]["checkpoint"]
    ray.nothing_is_left(hosts.names)


@pytest.mark.slow
@pytest.mark.parametrize("process", ["ray_bridge", "ray_relay", "ray::DaemonActor"])
def test_ctrl_c_while_the_program_starts(hosts: Hosts, ray: Ray, tmp_path: Path, process: str):
    program = train(hosts, ray, tmp_path, *FOR_EVER)
    program.wait_for(
        lambda: any(process in each.command for each in hosts.processes("h1")), process
    )
    program.signal(signal.SIGINT)
    assert program.process.wait(60.0) == 128 + signal.SIGINT, program.output
    assert "Traceback" not in program.output
    ray.nothing_is_left(hosts.names)


@pytest.mark.slow
def test_ctrl_c_while_the_cluster_has_no_room(hosts: Hosts, ray: Ray, tmp_path: Path):
    program = train(hosts, ray, tmp_path, THREE_ACTORS, hosts_flag="a,b,c,d")
    program.wait_for(lambda: ray.groups("h1") == "PENDING", "waiting")
    program.signal(signal.SIGINT)
    assert program.process.wait(30.0) == 128 + signal.SIGINT
    ray.nothing_is_left(hosts.names)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flags", "options", "message"),
    [
        (
            (THREE_ACTORS,),
            {"hosts_flag": "a,b,c,d"},
            "4 hosts need nodes of their own, and the cluster has 3",
        ),
        ((), {"hosts_flag": "a:cores=3"}, "host a needs 3 CPU: no node has that; h"),
        ((), {"hosts_flag": "a:gpus=1"}, "host a needs 1 CPU, 1 GPU: no node has that"),
        ((), {"hosts_flag": "a:address=10.77.0.9"}, "no node has the address 10.77.0.9; there are"),
        ((f"--ray=10.77.0.2:{PORT}",), {}, "no Ray cluster is there: Connection refused"),
    ],
)  # fmt: skip
def test_what_a_cluster_cannot_run_is_refused(
    hosts: Hosts, ray: Ray, tmp_path: Path, flags, options, message
):
    program = train(hosts, ray, tmp_path, *flags, "--ray_wait=2", **options)
    assert program.process.wait(60.0) == 2, program.output
    (line,) = [each for each in program.output.splitlines() if message in each]
    assert line.startswith("distrl: ") and "Traceback" not in program.output
    ray.nothing_is_left(hosts.names)
