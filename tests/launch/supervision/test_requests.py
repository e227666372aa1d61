"""Requests to a running program, and what else is found in their file."""

import pytest

from distrl.launch.supervision.requests import Requests, is_pending, send_requests


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
