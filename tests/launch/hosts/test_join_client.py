"""A daemon's end of its connection to a launcher."""

import os

import pytest

from distrl.errors import ConfigError
from distrl.launch.hosts import join_client


def test_a_tunnel_that_ends_is_not_waited_for(tmp_path, monkeypatch):
    def start(*args):
        pid = os.fork()
        if pid == 0:
            os._exit(1)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        return pid, "token"

    monkeypatch.setattr(join_client, "start_tunnel_of_file", start)
    with pytest.raises(ConfigError, match=r"^--join=localhost:7: its tunnel has ended"):
        join_client.dial("localhost:7", "run.pem", tmp_path, timeout=600.0)


def test_a_launcher_that_does_not_answer_is_told(tmp_path, monkeypatch):
    ended = []
    monkeypatch.setattr(join_client, "start_tunnel_of_file", lambda *args: (7, "token"))
    monkeypatch.setattr(join_client, "has_ended", lambda pid: False)
    monkeypatch.setattr(join_client, "end_tunnel", ended.append)
    with pytest.raises(ConfigError, match="no launcher answered within -1 s"):
        join_client.dial("localhost:7", "run.pem", tmp_path, timeout=-1.0)
    assert ended == [7]
