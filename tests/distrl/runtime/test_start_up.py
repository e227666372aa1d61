"""The line about what the start-up was spent on."""

import itertools

import pytest

from distrl.runtime import start_up
from distrl.runtime.start_up import StartUp, seconds_since_start

TRACED, LOWERED, COMPILED = start_up._PHASES


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    """Each look at the clock is a second after the one before."""
    seconds = itertools.count(100.0)
    monkeypatch.setattr(start_up.time, "monotonic", lambda: next(seconds))


def test_the_line():
    record = StartUp(5.0)
    record.mark("imports")
    record.mark("environments")
    record.on_duration(TRACED, 0.25)
    record.on_duration(LOWERED, 0.25)
    record.on_duration(COMPILED, 1.5)
    record.on_duration(COMPILED, 0.5)
    record.on_duration("/jax/another", 9.0)
    record.on_event(start_up._CACHED)
    assert record.line("first update") == (
        "start-up: 8.0 s: imports 6.0 s, environments 1.0 s, first update 1.0 s; in these, tracing "
        "0.5 s and compilation 2.0 s of 2 functions, 1 of them from the cache"
    )


def test_it_is_taken_once(monkeypatch):
    monkeypatch.setattr(start_up, "_current", None)
    start_up.mark("nothing")
    assert start_up.take_line("update") is None
    record = start_up.begin("imports")
    assert start_up.take_line("update").startswith("start-up: ")
    assert start_up.take_line("update") is None
    record.mark("later")
    assert "later" not in record.line("update")


def test_the_age_of_a_process(tmp_path):
    (tmp_path / "7").mkdir()
    fields = " ".join(["S", *["0"] * 18, str(200 * start_up.os.sysconf("SC_CLK_TCK")), "0"])
    (tmp_path / "7" / "stat").write_text(f"7 (a (b) c) {fields}\n")
    (tmp_path / "uptime").write_text("230.50 1000.0\n")
    assert seconds_since_start(7, tmp_path) == 30.5
    assert seconds_since_start(8, tmp_path) == 0.0
