"""Calls between builtin nodes: results, errors, deadlines, and strangers, who have no effect."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("grpc")


@pytest.fixture(scope="module")
def told():
    script = Path(__file__).with_name("calls.py")
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return json.loads(done.stdout.splitlines()[-1])


def test_results_arrive(told):
    assert (told["early"], told["sum"], told["named"], told["echo"]) == (2, 2, 4, True)
    assert told["array"] == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_errors_arrive_as_text(told):
    assert told["error"].startswith("None: ValueError: no such unroll ä\nTraceback")
    assert told["long_error"] < 11_000
    assert "a message cannot have a object" in told["bad_result"]
    assert told["future_error"] == "ValueError: later"


def test_only_public_methods_are_served(told):
    assert told["run"].startswith("UNIMPLEMENTED")
    assert told["private"] == "UNIMPLEMENTED"


def test_futures_do_not_wait(told):
    assert told["pending"]
    assert told["future"] == "released"
    assert told["result_timeout"]


def test_calls_have_a_deadline_and_a_size(told):
    assert told["deadline"].startswith("DEADLINE_EXCEEDED: wait: deadline_exceeded")
    assert told["large"].startswith("RESOURCE_EXHAUSTED")


def test_a_deadline_may_be_far_away(told):
    assert told["patient"] == [2, 2, 2]


def test_strangers_have_no_effect(told):
    """Those without the key are turned away; bytes that are no message are refused."""
    assert told["stranger"] == ["UNAUTHENTICATED"] * 3
    assert told["garbage"] == ["INVALID_ARGUMENT", "UNAUTHENTICATED"]
    assert told["no_effect"]
    assert told["still"] == 3
    assert told["grew_kb"] < 50_000


def test_changed_answers_end_in_a_clear_error(told):
    assert told["changed_answers"] == ["CallError"]


def test_a_server_that_comes_back_is_reached(told):
    assert told["gone"] == "DEADLINE_EXCEEDED"
    assert told["again"] == 41
