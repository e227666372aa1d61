"""The caller's side of the process that trains: its order, its output, its exit status."""

import codecs
import collections
import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from typing import IO, Any

from absl.flags import FLAGS

from distrl.experiment import Experiment
from distrl.launch.paths import python_command
from distrl.launch.python import training_process
from distrl.launch.supervision.result import EXIT_FAILED
from distrl.runtime.working_folder import absolute

_LAST_LINES = 30  # lines of the output that an error may need
_POLL_S = 0.2  # between two looks at whether the process has ended
_REST_S = 1.0  # for the rest of the output, which others may be writing to


def run(arguments: list[str], experiment: Experiment | None, quiet: bool) -> tuple[int, list[str]]:
    """Trains in a separate process; returns its exit status and its last lines.

    Its output goes to `sys.stdout`, which in a notebook is the cell's. An interrupt is passed on,
    and raised again when the run has saved.

    Args:
      arguments: flags of `distrl train`.
      experiment: what to train; None: the flags name it.
      quiet: leave out the output.
    """
    output, interrupted = _Output(quiet), False
    with contextlib.ExitStack() as opened:
        order = training_process.order(arguments, experiment, sys.argv, _given_flags())
        process, ours = start(subprocess.PIPE)
        opened.enter_context(ours)
        assert process.stdout is not None
        opened.callback(process.stdout.close)
        try:
            give(ours, order)
            while True:
                try:
                    _pass_on(process, output)
                    process.wait()
                    break
                except KeyboardInterrupt:
                    interrupted = True
                    process.send_signal(signal.SIGINT)
        except BaseException:  # such as the caller's own alarm: the run saves, and ends
            process.terminate()
            raise
        code = _exit_status(process, ours)
    if interrupted:
        raise KeyboardInterrupt
    return code, list(output.last_lines)


def start(
    output: int | IO[bytes], environment: Mapping[str, str] | None = None
) -> "tuple[subprocess.Popen[bytes], socket.socket]":
    """Starts a process that trains, and waits for its order.

    Args:
      output: where stdout and stderr go, see `Popen`.
      environment: its environment variables; None: this process's.

    Returns:
      The process, and the socket that takes its order and gives its exit status.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        try:
            process = subprocess.Popen(
                python_command(training_process.__name__),
                stdin=theirs.fileno(),
                stdout=output,
                stderr=subprocess.STDOUT,
                env=environment,
                cwd=absolute("."),
                start_new_session=True,  # Ctrl-C of a terminal comes here alone
            )
        except BaseException:
            ours.close()
            raise
    return process, ours


def give(ours: socket.socket, order: bytes) -> None:
    """Sends a process its order. Args: ours: see `start`."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        ours.sendall(order)  # else it has ended: its output says why
        ours.shutdown(socket.SHUT_WR)


def _given_flags() -> dict[str, Any]:
    """Returns the absl flags that this process's command line gave, with their values."""
    return {name: FLAGS[name].value for name in FLAGS if FLAGS[name].present}


def _pass_on(process: "subprocess.Popen[bytes]", output: "_Output") -> None:
    """Passes on what the process prints, until it has ended.

    What it has started, such as a simulator, may outlive it and keep the pipe open.
    """
    assert process.stdout is not None
    pipe, deadline = process.stdout.fileno(), float("inf")
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while time.monotonic() < deadline:
        ended = process.poll() is not None  # what it has printed until now is in the pipe
        if ended and deadline == float("inf"):
            deadline = time.monotonic() + _REST_S
        if poll.poll(0 if ended else _POLL_S * 1000):
            data = os.read(pipe, 1 << 16)
            output.add(data)
            ended = not data
        if ended:
            break
    output.end()


def _exit_status(process: "subprocess.Popen[bytes]", sender: socket.socket) -> int:
    """Returns the exit status as the process has sent it: the kernel's may be lost.

    Where the caller ignores SIGCHLD, that of every process is 0 to Python.
    """
    sender.setblocking(False)
    with contextlib.suppress(BlockingIOError, ConnectionResetError):  # it was killed
        sent = sender.recv(16)
        if sent:
            return int(sent)
    return process.returncode or EXIT_FAILED


class _Output:
    """Passes lines on to `sys.stdout`, which may be unable to take them.

    Attributes:
      last_lines: the newest lines, without their ends.
    """

    def __init__(self, quiet: bool) -> None:
        """Args: quiet: pass nothing on."""
        self.last_lines: collections.deque[str] = collections.deque(maxlen=_LAST_LINES)
        self._quiet = quiet
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._begun = ""  # a line that lacks its end

    def add(self, data: bytes) -> None:
        """Adds output."""
        *lines, self._begun = (self._begun + self._decoder.decode(data)).split("\n")
        for line in lines:
            self.last_lines.append(line)
            self._write(line + "\n")

    def end(self) -> None:
        """Passes on a last line without an end."""
        text, self._begun = self._begun + self._decoder.decode(b"", final=True), ""
        if text:
            self.last_lines.append(text)
            self._write(text)

    def _write(self, text: str) -> None:
        stream = sys.stdout
        if self._quiet or stream is None:
            return
        # Its reader may be gone, its disk full, or it may be closed: training continues, as that of
        # the command does.
        with contextlib.suppress(OSError, ValueError):
            try:
                stream.write(text)
            except UnicodeEncodeError as error:
                escaped = text.encode(error.encoding, "backslashreplace")
                stream.write(escaped.decode(error.encoding))
            stream.flush()
