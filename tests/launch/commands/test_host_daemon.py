"""`distrl host-daemon`: what it says of itself to its launcher."""

import os
from typing import Any

import pytest

from distrl.launch.commands import host_daemon

COMMAND = ["host-daemon", "--join=h1:7421", "--credentials=c.pem"]


@pytest.fixture
def hello(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Makes the daemon one that only notes here what it would say first."""
    said: dict[str, Any] = {}

    class Daemon:
        def __init__(self, reader: int, writer: int, folder: Any, tunnel: int, hello, *rest):
            said.update(hello)
            for descriptor in (reader, writer):
                os.close(descriptor)
            folder.rmdir()

        def run(self) -> None:
            """Ends at once."""

    monkeypatch.setattr(host_daemon, "dial", lambda *_: (os.open(os.devnull, os.O_RDWR), 0, "t"))
    monkeypatch.setattr(host_daemon, "HostDaemon", Daemon)
    for name in host_daemon._RANKS:
        monkeypatch.delenv(name, raising=False)
    return said


@pytest.mark.parametrize("variable", ["OMPI_COMM_WORLD_RANK", "PMI_RANK"])
def test_mpi_in_a_slurm_job_says_which_host_a_daemon_is(hello, monkeypatch, variable):
    """The first process of each of mpirun's steps has Slurm's number 0."""
    monkeypatch.setenv("SLURM_PROCID", "0")
    monkeypatch.setenv(variable, "2")
    host_daemon.host_daemon(COMMAND)
    assert (hello["rank"], hello["name"]) == (2, None)


@pytest.mark.parametrize("variable", ["SLURM_PROCID", "JOB_COMPLETION_INDEX"])
def test_a_daemon_by_its_rank_alone(hello, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    host_daemon.host_daemon(COMMAND)
    assert (hello["rank"], hello["name"]) == (1, None)


def test_a_daemon_without_a_rank_has_a_name(hello):
    host_daemon.host_daemon([*COMMAND, "--name=h2"])
    assert (hello["rank"], hello["name"]) == (None, "h2")
