"""Requests to a running program, and what else is found in their file."""

import os
import tempfile
import threading
from pathlib import Path

import pytest

from distrl.errors import ConfigError
from distrl.launch.supervision.launch_options import LaunchOptions
from distrl.launch.supervision.requests import Requests, is_pending, send_requests
from distrl.launch.supervision.session import Session
from distrl.programs.substrate.builtin import CallNode, Program
from distrl.runtime import files
from tests.support.other_user import as_another_user


def take(run_dir):
    said = []
    return list(Requests(run_dir, said.append).take()), said


def test_each_request_is_taken_once(tmp_path):
    assert take(tmp_path) == ([], [])
    send_requests(tmp_path, {"actor": 3, "stacks": ["learner/0"]})
    assert is_pending(tmp_path)
    assert take(tmp_path) == ([("actor", 3), ("stacks", ["learner/0"])], [])
    assert not is_pending(tmp_path)
    assert take(tmp_path) == ([], [])


@pytest.mark.parametrize("content", [b"", b"{", b"3", b"\xff\xfe", b"[]", b"null"])
def test_a_damaged_file_is_ignored_once(tmp_path, content):
    (tmp_path / "requests.json").write_bytes(content)
    requests, said = take(tmp_path)
    assert requests == [] and len(said) == 1 and "requests.json holds no requests" in said[0]
    assert take(tmp_path) == ([], [])


def test_what_is_no_request_is_named_and_the_others_are_taken(tmp_path):
    send_requests(tmp_path, {"actor": "five", "learner": -1, "stacks": 3, "evaluator": 1})
    requests, said = take(tmp_path)
    assert requests == [("evaluator", 1)]
    assert [line.partition("ignored ")[2] for line in said] == [
        "actor='five', which is no request",
        "learner=-1, which is no request",
        "stacks=3, which is no request",
    ]


def test_requests_that_come_before_the_launcher_looks_are_all_taken(tmp_path):
    send_requests(tmp_path, {"actor": 3})
    send_requests(tmp_path, {"stacks": ["learner/0"]})
    send_requests(tmp_path, {"actor": 2, "stacks": ["actor/1"]})
    assert take(tmp_path) == ([("actor", 2), ("stacks", ["learner/0", "actor/1"])], [])


def test_a_request_that_comes_while_others_are_taken_is_not_lost(tmp_path, monkeypatch):
    send_requests(tmp_path, {"actor": 3})
    sender = threading.Thread(target=send_requests, args=(tmp_path, {"actor": 5}))
    read = Path.read_bytes

    def read_while_another_sends(path):
        if sender.ident is None:
            sender.start()
            sender.join(0.3)
            assert sender.is_alive()  # it waits for the launcher's lock
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_while_another_sends)
    assert take(tmp_path) == ([("actor", 3)], [])
    sender.join(30)
    assert take(tmp_path) == ([("actor", 5)], [])


def test_requests_are_not_taken_twice_while_another_is_added_to_them(tmp_path, monkeypatch):
    send_requests(tmp_path, {"stacks": ["learner/0"]})
    write, taken = files.write_json, []

    def write_late(path, data):
        taken.extend(take(tmp_path)[0])
        write(path, data)

    monkeypatch.setattr(files, "write_json", write_late)
    send_requests(tmp_path, {"actor": 3})
    assert taken + take(tmp_path)[0] == [("stacks", ["learner/0"]), ("actor", 3)]


def test_what_cannot_be_removed_is_taken_later(tmp_path, monkeypatch):
    send_requests(tmp_path, {"actor": 3})
    with monkeypatch.context() as refused:
        refused.setattr(Path, "unlink", lambda path: (_ for _ in ()).throw(PermissionError(path)))
        with pytest.raises(PermissionError):
            take(tmp_path)
    assert take(tmp_path) == ([("actor", 3)], [])


def test_what_was_asked_of_the_program_before_is_dropped(tmp_path):
    send_requests(tmp_path, {"actor": 1})
    program = Program("next")
    with program.group("actor"):
        program.add_node(CallNode(object))
    with Session(program, LaunchOptions(tmp_path)):
        assert take(tmp_path) == ([], [])
        send_requests(tmp_path, {"actor": 2})
        assert take(tmp_path) == ([("actor", 2)], [])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_users_program_is_not_asked():
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)

        def ask():
            with pytest.raises(ConfigError) as refused:
                send_requests(Path(name), {"actor": 1})
            return refused.value

        assert as_another_user(ask) == (
            f"{name} is root's, and its program cannot be asked: Permission denied"
        )
