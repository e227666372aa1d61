"""What stays below the lines of a terminal, on a terminal of the test's own."""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time

import pytest

from distrl.launch.launch_types import LIVE
from distrl.launch.live.footer import Footer
from distrl.launch.local.live_process import _Lines
from distrl.launch.supervision.launch_options import LaunchOptions
from distrl.launch.supervision.node_logs import Stream
from distrl.launch.supervision.session import Session
from distrl.metrics.progress_line import FILE_NAME
from distrl.programs.substrate.builtin import CallNode, Program
from distrl.runtime.files import write_json


class Screen:
    """The rows that a terminal would show, for the sequences that a footer uses."""

    def __init__(self, columns):
        self.rows, self.row, self.columns = [""], 0, columns

    def feed(self, text):
        i = 0
        while i < len(text):
            if text[i] == "\x1b":
                end = next(j for j in range(i + 2, len(text)) if text[j].isalpha())
                code, i = text[i + 2 : end + 1], end + 1
                if code.endswith("A"):
                    self.row -= int(code[:-1])
                elif code == "J":
                    self.rows = [*self.rows[: self.row], ""]
                continue
            if text[i] == "\n":
                self.row += 1
                if self.row == len(self.rows):
                    self.rows.append("")
            elif text[i] != "\r":
                if len(self.rows[self.row]) == self.columns:
                    self.feed("\n")
                self.rows[self.row] += text[i]
            i += 1


def resize(terminal, rows, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


@pytest.fixture
def terminal():
    master, slave = pty.openpty()
    resize(slave, 24, 40)
    yield master, slave
    os.close(master)
    os.close(slave)


def read_until(master: int, end: bytes) -> bytes:
    """What a terminal was given before `end`: the kernel passes it on in pieces."""
    read = b""
    while end not in read:
        assert select.select([master], [], [], 30.0)[0], f"only this has come: {read!r}"
        read += os.read(master, 100_000)
    return read.partition(end)[0]


def test_lines_go_above_the_footer_and_none_is_lost(terminal):
    footer, screen = Footer(terminal[1]), Screen(40)
    assert footer.size == (39, 22)
    assert footer.around("one\n") == "one\n"  # without a footer nothing is added
    screen.feed("one\n")
    screen.feed(footer.replaced(["\x1b[1mfirst\x1b[0m", "second"]))
    assert screen.rows == ["one", "first", "second", ""]
    screen.feed(footer.around("two\n" + "3" * 50 + "\n"))
    assert screen.rows == ["one", "two", "3" * 40, "3" * 10, "first", "second", ""]
    screen.feed(footer.replaced(["other"]))
    assert screen.rows[-3:] == ["3" * 10, "other", ""]
    screen.feed(footer.replaced([]))
    screen.feed(footer.around("end\n"))
    assert screen.rows == ["one", "two", "3" * 40, "3" * 10, "end", ""]


def test_a_footer_that_a_narrower_terminal_has_wrapped_is_removed_as_a_whole(terminal):
    footer = Footer(terminal[1])
    screen = Screen(20)
    screen.feed("one\n" + footer.replaced(["x" * 39]))  # as wide as it was
    resize(terminal[1], 24, 20)
    screen.feed(footer.around("two\n").replace("x" * 39, "x"))
    assert screen.rows == ["one", "two", "x", ""]


def test_what_is_printed_reaches_the_terminal_in_whole_lines(terminal, monkeypatch):
    master, slave = terminal
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(os.dup(slave), "w") as file:
        stream = Stream(file)
        assert stream.is_terminal
        out = _Lines(stream, sys.stdout)
        stream.show_footer(["status"])
        print("a half", end="", file=out)
        print(" and the rest", file=out)
        print("  12.1 s  env steps        100 (10/s)", file=out)  # the status has it
        print("no end", end="", file=out)
        out.end()
        stream.show_footer([])
        file.write("\0")
    screen = Screen(40)
    screen.feed(read_until(master, b"\0").decode().replace("\r\n", "\n"))
    assert screen.rows == ["a half and the rest", "no end", ""]


def test_lines_of_progress_are_shown_while_the_status_lacks_them(terminal, monkeypatch, tmp_path):
    """As on several hosts without a shared folder, where no `progress.json` is seen here."""
    master, slave = terminal
    monkeypatch.setenv("TERM", "xterm")
    program = Program("program")
    with program.group("actor"):
        program.add_node(CallNode(object))
    metrics = dict.fromkeys(("seconds", "env_steps", "learner_steps", "episodes", "mean_return"), 0)
    progress = {"monotonic": time.monotonic(), "metrics": metrics, "rates": metrics, "progress": []}
    with os.fdopen(os.dup(slave), "w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        with Session(program, LaunchOptions(tmp_path, terminal=LIVE)) as session:
            (log,) = session.logs.values()
            for seconds in range(4):
                if seconds == 2:
                    write_json(tmp_path / FILE_NAME, {**progress, "nodes": {}, "bottleneck": None})
                session._on_tick(())
                log.feed(f"  {seconds}.0 s  env steps  100 (10/s)\n".encode())
            session.journal.out.show_footer(())
        file.write("\0")
    shown = re.findall(r"(\d\.0) s  env steps", read_until(master, b"\0").decode())
    assert shown == ["0.0", "1.0"]


def test_a_file_is_no_terminal(tmp_path):
    with open(tmp_path / "out", "w") as file:
        assert not Stream(file).is_terminal
