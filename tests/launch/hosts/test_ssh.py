"""The command that starts a host's daemon by SSH; the rest is in tests/cluster."""

import shutil
import subprocess

import pytest

from distrl.launch.hosts.ssh import ssh
from distrl.programs.placement import Host


@pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH is not installed")
def test_an_option_of_the_user_replaces_the_default():
    program, *words = ssh(Host("h2"), ["-F", "none", "-o", "ConnectTimeout=30"], ["daemon", "a b"])
    done = subprocess.run([program, "-G", *words], capture_output=True, text=True, check=True)
    settings = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    assert settings["connecttimeout"] == "30"
    assert (settings["batchmode"], settings["serveraliveinterval"]) == ("yes", "2")
    assert words[-2:] == ["h2", "daemon 'a b'"]


@pytest.mark.parametrize("host", [Host("localhost"), Host("a", address="127.0.0.1")])
def test_a_daemon_here_needs_no_ssh(host: Host):
    assert ssh(host, [], ["daemon", "a b"]) == ["daemon", "a b"]
