"""Who runs in a folder, on this host or on another one that shares the folder."""

import fcntl
import json
import os
import shutil
from pathlib import Path

import pytest

from distrl.errors import ConfigError
from distrl.launch.commands import stop
from distrl.launch.commands.actors import actors
from distrl.launch.commands.stacks import stacks
from distrl.launch.supervision.launcher_process import (
    LOCK,
    LauncherProcess,
    is_running,
    launcher_of,
    local_launcher,
    lock_text,
)
from distrl.launch.supervision.status_file import StatusFile, read_status, suspension
from distrl.runtime.files import owner

OTHER_CLOCK = -1e6  # seconds since another host's boot
HERE = LauncherProcess.this()
ELSEWHERE = {
    "another host": HERE._replace(host="h2", boot="another boot"),
    "another container": HERE._replace(host="h2", namespace=HERE.namespace + 1),
}


@pytest.fixture
def locked(tmp_path):
    """A run's folder whose lock is held; a function that sets whom the lock names."""
    (tmp_path / "config.json").write_text(json.dumps({"topology": "heavy_env"}))
    with open(tmp_path / LOCK, "w+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)

        def held_by(launcher):
            text = launcher if isinstance(launcher, bytes) else lock_text(launcher)
            (tmp_path / LOCK).write_bytes(text)
            return tmp_path

        yield held_by


def test_a_process_is_found_again(locked):
    assert launcher_of(locked(HERE)) == HERE
    assert HERE.pid == os.getpid() and HERE.lives and not HERE.is_elsewhere
    assert local_launcher(locked(HERE), "stop") == HERE


def test_a_lock_of_an_older_version_has_the_number_only(locked):
    run = locked(f"{os.getpid()}\n".encode())
    assert local_launcher(run, "stop") == LauncherProcess(os.getpid())
    for text in (b"", b"{", b"[1]", b'{"pid": 7}'):
        assert launcher_of(locked(text)) is None


@pytest.mark.parametrize("launcher", ELSEWHERE.values(), ids=ELSEWHERE)
def test_a_process_of_another_host_with_a_number_of_this_one_is_left_alone(
    locked, launcher, monkeypatch
):
    monkeypatch.setattr(os, "kill", lambda *arguments: pytest.fail(f"kill{arguments}"))
    run = locked(launcher)
    with pytest.raises(ConfigError) as refused:
        stop.stop(["distrl stop", str(run)])
    assert str(refused.value) == (
        f"stop: the program in {run} runs as process {os.getpid()} on host h2; stop it there"
    )


def test_a_process_that_has_the_number_of_one_that_has_ended_is_left_alone(locked, monkeypatch):
    monkeypatch.setattr(os, "kill", lambda *arguments: pytest.fail(f"kill{arguments}"))
    run = locked(HERE._replace(start=HERE.start - 1))
    with pytest.raises(ConfigError, match=f"was process {HERE.pid} on host .*, which has ended"):
        stop.stop(["distrl stop", str(run)])


def may_not_signal(pid, number):
    assert (pid, number) == (HERE.pid, 0)
    raise PermissionError(1, "Operation not permitted")


def test_a_program_of_another_user_runs_and_is_left_alone(locked, monkeypatch):
    run = locked(HERE)
    opened = os.open

    def open_to_read(path, flags, *more, **named):
        if os.fspath(path) == str(run / LOCK) and flags & (os.O_RDWR | os.O_WRONLY):
            raise PermissionError(13, "Permission denied", str(path))
        return opened(path, flags, *more, **named)

    monkeypatch.setattr(os, "open", open_to_read)
    monkeypatch.setattr(os, "kill", may_not_signal)
    assert is_running(run)
    user = owner(Path("/proc/self/stat"))
    with pytest.raises(ConfigError) as refused:
        stop.stop(["distrl stop", str(run)])
    assert str(refused.value) == (
        f"stop: the program in {run} is {user}'s ({HERE.name}); only {user} or root can stop it"
    )


@pytest.mark.parametrize("error", [FileNotFoundError, PermissionError])  # hidepid=2, hidepid=1
def test_a_program_that_proc_hides_runs(locked, monkeypatch, error):
    run = locked(HERE)
    write_status(run, HERE, node_host="")
    read, name_of_owner = Path.read_bytes, Path.owner

    def read_if_shown(path):
        if path == Path(f"/proc/{HERE.pid}/stat"):
            raise error
        return read(path)

    def owner_if_shown(path):
        if path == Path(f"/proc/{HERE.pid}"):
            raise FileNotFoundError
        return name_of_owner(path)

    monkeypatch.setattr(Path, "read_bytes", read_if_shown)
    monkeypatch.setattr(Path, "owner", owner_if_shown)
    monkeypatch.setattr(os, "kill", may_not_signal)
    status = read_status(str(run), "status")
    assert status["nodes"] and suspension(status) is None
    with pytest.raises(ConfigError) as refused:
        stop.stop(["distrl stop", str(run)])
    assert str(refused.value) == (
        f"stop: the program in {run} is another user's ({HERE.name}); only that user or root can "
        "stop it"
    )


def test_two_who_look_at_a_folder_at_once_do_not_see_each_other(tmp_path):
    (tmp_path / LOCK).touch()
    with open(tmp_path / LOCK) as looked_at:
        fcntl.flock(looked_at, fcntl.LOCK_SH)
        assert not is_running(tmp_path)


def write_status(run, launcher, node_host):
    StatusFile(run / "status.json").write([])
    data = json.loads((run / "status.json").read_text())
    assert data["launched_as"] == HERE._asdict()
    nodes = {"actor/0": {"host": node_host, "pid": os.getpid()}}
    data.update(launched_as=launcher._asdict(), nodes=nodes, monotonic=OTHER_CLOCK)
    (run / "status.json").write_text(json.dumps(data))


@pytest.mark.parametrize("launcher", ELSEWHERE.values(), ids=ELSEWHERE)
def test_the_status_of_a_program_on_another_host(locked, launcher):
    launcher = launcher._replace(pid=1 << 30)  # of no process here
    run = locked(launcher)
    write_status(run, launcher, node_host="")
    status = read_status(str(run), "status")
    assert status["monotonic"] != OTHER_CLOCK
    assert suspension(status) is None
    with pytest.raises(ConfigError, match=r"^stacks: .* runs as process \d+ on host h2; ask there"):
        stacks(["distrl stacks", str(run)])


def test_a_program_of_another_host_has_ended_when_its_lock_is_free(tmp_path):
    (tmp_path / LOCK).write_bytes(lock_text(ELSEWHERE["another host"]))
    write_status(tmp_path, ELSEWHERE["another host"], node_host="h2")
    with pytest.raises(ConfigError, match=r"its program, process \d+ on host h2, has ended"):
        read_status(str(tmp_path), "status")


BEFORE = HERE._replace(pid=1 << 30)  # of no process here


@pytest.mark.parametrize("before", [None, BEFORE, *ELSEWHERE.values(), LauncherProcess(1 << 30)])
def test_a_program_that_starts_has_no_status_of_its_own(locked, before):
    """It holds the lock; its result is not there, and the status is of the program before."""
    run = locked(HERE)
    if before is not None:
        write_status(run, before, node_host="")
    starting = f"{run}: its program, {HERE.name}, is starting; it has no nodes yet"
    for read in (
        lambda: read_status(str(run), "status"),
        lambda: stacks(["distrl stacks", str(run)]),
        lambda: actors(["distrl actors", str(run), "1"]),
    ):
        with pytest.raises(ConfigError) as refused:
            read()
        assert str(refused.value) == starting
    write_status(run, HERE, node_host="")
    assert read_status(str(run), "status")["nodes"]


def test_a_lock_that_names_nobody_yet_is_that_of_a_program_that_starts(locked):
    run = locked(b"")
    with pytest.raises(ConfigError, match=r"its program is starting; it has no nodes yet$"):
        read_status(str(run), "status")
    locked(f"{os.getpid()}\n".encode())  # of an older version
    write_status(run, HERE, node_host="")
    assert read_status(str(run), "status")["nodes"]


def test_a_folder_that_no_program_runs_in_needs_a_status(tmp_path):
    (tmp_path / LOCK).touch()
    with pytest.raises(ConfigError, match=r"no status\.json there; name the folder of a run$"):
        read_status(str(tmp_path), "status")


def test_a_copy_of_the_folder_of_a_running_program_is_not_running(locked, tmp_path_factory):
    run, copy = locked(HERE), tmp_path_factory.mktemp("other") / "copy"
    write_status(run, HERE, node_host="")
    shutil.copytree(run, copy)
    assert read_status(str(run), "status")["nodes"]
    wanted = (
        f"{copy}: nothing runs there: its program, {HERE.name}, runs in the folder it is a copy of"
    )
    for read in (
        lambda: read_status(str(copy), "status"),
        lambda: stacks(["distrl stacks", str(copy)]),
        lambda: actors(["distrl actors", str(copy), "1"]),
    ):
        with pytest.raises(ConfigError) as refused:
            read()
        assert str(refused.value) == wanted
    assert {path.name for path in copy.iterdir()} == {path.name for path in run.iterdir()}
    (copy / "result.json").write_text('{"status": "stopped", "reason": "so", "exit_code": 130}')
    with pytest.raises(ConfigError, match=r"copy: stopped: so \(exit status 130\)"):
        read_status(str(copy), "status")


def test_a_folder_without_a_lock_has_the_status_of_its_launcher(tmp_path):
    """`distrl.launch.local.launch` locks nothing; another user's lock cannot be asked."""
    write_status(tmp_path, HERE, node_host="")
    assert read_status(str(tmp_path), "status")["nodes"]
