"""The program as a host's daemon has it."""

import base64
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import cloudpickle
import pytest

from distrl import presets
from distrl.launch.hosts.host_program import HostProgram
from distrl.launch.network import loopback
from distrl.launch.network.private_folder import NAME_ROOM, PATH_LIMIT
from distrl.programs.multi_machine import multi_machine, over_network
from distrl.programs.placement import parse_hosts, place
from distrl.runtime.heartbeat import ABSENT, DOWN, GONE, UP, Heartbeat

SUBSTRATE = "builtin"


@pytest.fixture
def program(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostProgram]:
    """That of the learner's host, with an actor and its relay on the other."""
    monkeypatch.setattr(loopback, "SOCKETS", {})
    made = presets.experiment("CartPole-v1", "impala")
    actors = dataclasses.replace(made.actors, num_actors=1, num_envs=4)
    experiment = over_network(dataclasses.replace(made, actors=actors), SUBSTRATE)
    placement = place(experiment, parse_hosts("h1,h2"), light=False)
    run_dir = str(tmp_path / "run")
    built = multi_machine(experiment, run_dir, placement=placement, substrate=SUBSTRATE)
    payload = base64.b64encode(cloudpickle.dumps((built, experiment, "heavy_env", True, run_dir)))
    host = HostProgram(payload.decode(), placement.on("h1"), tmp_path)
    yield host
    host._endpoints.close()


def heartbeats(program: HostProgram) -> dict[str, Heartbeat]:
    return {node.name: heartbeat for node, heartbeat, _ in program.own_nodes()}


def test_a_wired_program_reaches_servers_wherever_they_are_now(program: HostProgram):
    assert set(program.ports) == set(heartbeats(program)) == {"replay/0", "monitor/0", "learner/0"}
    program.wire(lambda name: lambda: None)
    own = [port for ports in program.ports.values() for port in ports]
    assert sorted(program.open_ports) == sorted(own)

    def forwards(host: str, tunnel_port: int, port: int) -> dict[str, tuple[str, int, int]]:
        some = range(port, port + 9)  # at least as many as a node has addresses
        at = [(host, tunnel_port, each) for each in some]
        return program.forwards({"relay/0": at, "actor/0": at})

    before, after = forwards("h2", 1, 20), forwards("h9", 5, 60)
    names = {Path(path).name for path in before}
    assert names == {"0-relay-0", "1-actor-0"}
    assert {path: ("h9", 5, port + 40) for path, (_, _, port) in before.items()} == after


def test_names_of_sockets_are_cut_to_the_room_that_their_folder_leaves(
    program: HostProgram, monkeypatch: pytest.MonkeyPatch
):
    length = PATH_LIMIT - NAME_ROOM - 1
    monkeypatch.setattr(program, "_folder", Path("/".ljust(length, "f")))
    program.wire(lambda name: lambda: None)
    at = [("h2", 1, port) for port in range(20, 29)]
    names = {path[length:] for path in program.forwards({"relay/0": at, "actor/0": at})}
    assert names == {"/0-relay-", "/1-actor-"}


def test_the_launcher_tells_of_nodes_elsewhere_only(program: HostProgram):
    row = heartbeats(program)["learner/0"]
    program.mirror({"actor/0": [DOWN, 3, 70], "learner/0": [DOWN, 3, 70], "other/0": [DOWN, 3, 70]})
    actor = row.table.of("actor/0") if row.table is not None else None
    assert actor is not None and (actor.status, actor.life, actor.acted) == (DOWN, 3, 70)
    assert (row.status, row.life, row.acted) == (0, 0, 0)


def test_a_node_of_this_host_is_to_be_restarted_until_the_launcher_says_no(program: HostProgram):
    row = heartbeats(program)["learner/0"]

    def told(status: int, life: int) -> int:
        program.mirror({"learner/0": [status, life, 0]})
        return row.status

    assert told(GONE, 2) == ABSENT  # as of a daemon that has come back
    row.begin(3)
    assert told(UP, 3) == told(GONE, 2) == UP
    row.end(True)
    assert told(GONE, 2) == told(DOWN, 3) == DOWN
    assert told(GONE, 3) == GONE
