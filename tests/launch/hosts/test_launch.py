"""The launcher's wait for the hosts."""

import types
from typing import Any

import pytest

pytest.importorskip("cryptography")

from distrl.errors import ConfigError
from distrl.launch.hosts import launch
from distrl.launch.hosts.remote_host import HostState
from distrl.launch.supervision.result import Result


def wait(
    patch: pytest.MonkeyPatch,
    up_at: float,
    joined_at: float = 10.0,
    unreachable: dict[str, str] | None = None,
) -> float:
    """Waits at most 100 s for a host to join, in simulated time; returns when the wait ended."""
    now = 0.0

    def tick() -> None:
        nonlocal now
        now += 1.0
        if now >= joined_at:
            host.state = HostState.STARTING
        if now >= up_at:
            host.state = HostState.UP

    host: Any = types.SimpleNamespace(
        state=HostState.AWAY,
        refused=None,
        unreachable=unreachable or {},
        host=types.SimpleNamespace(name="h2"),
        why_late=lambda: host.state.value,
    )
    session: Any = types.SimpleNamespace(
        tick=tick,
        supervisor=types.SimpleNamespace(selector=None),
        housekeeping=types.SimpleNamespace(attempt=lambda what, task: 0),
        signals=types.SimpleNamespace(pending=list),
        journal=types.SimpleNamespace(flush=lambda: None),
    )
    patch.setattr(launch, "time", types.SimpleNamespace(monotonic=lambda: now))
    assert launch._wait_for_hosts(session, [host], 100.0) is None
    return now


def test_a_host_that_has_joined_may_take_longer_to_start(monkeypatch: pytest.MonkeyPatch):
    assert wait(monkeypatch, up_at=400.0) == 400.0


@pytest.mark.parametrize(
    ("exit_code", "kept"),
    [(0, False), (1, False), (2, False), (130, True), (143, True), (75, True)],
)
def test_daemons_are_kept_where_the_same_command_resumes(exit_code: int, kept: bool):
    hosts: list[Any] = [types.SimpleNamespace(), types.SimpleNamespace()]
    launch._keep(hosts, True, Result("", "", exit_code, {}))
    assert [host.kept for host in hosts] == [kept, kept]
    launch._keep(hosts, False, Result("", "", exit_code, {}))
    assert [host.kept for host in hosts] == [False, False]


def test_hosts_hear_where_one_that_is_back_is_now():
    wired: dict[str, Any] = {}

    def host(name: str, state: HostState, port: int) -> Any:
        made = types.SimpleNamespace(
            state=state, address=name, tunnel_port=port, ports={f"actor/{name}": [port + 1]}
        )
        made.wire = lambda addresses: wired.update({name: addresses})
        return made

    hosts = [
        host("h1", HostState.UP, 100),
        host("h2", HostState.READY, 200),
        host("h3", HostState.AWAY, 300),
        host("h4", HostState.STARTING, 400),
    ]
    launch._wire_hosts(hosts)
    others = {f"actor/h{i}": [(f"h{i}", 100 * i, 100 * i + 1)] for i in range(1, 5)}
    assert wired == {
        name: {actor: at for actor, at in others.items() if actor != f"actor/{name}"}
        for name in ("h1", "h2")
    }
    wired.clear()
    hosts[3].ports = {}  # it has not been ready yet
    launch._wire_hosts(hosts)
    assert not wired


def test_that_wait_ends_too(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="not all hosts joined in time: h2: starting"):
        wait(monkeypatch, up_at=800.0)


def test_a_host_that_has_not_joined_in_time_is_named(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(ConfigError, match="in time: h2: away; --join_wait gives them longer"):
        wait(monkeypatch, up_at=102.0, joined_at=102.0)


def test_a_host_that_cannot_reach_another_one_has_no_longer_to_start(
    monkeypatch: pytest.MonkeyPatch,
):
    with pytest.raises(ConfigError, match="not all hosts joined in time: h2: starting"):
        wait(monkeypatch, up_at=102.0, unreachable={"h1:7420": "no answer"})
