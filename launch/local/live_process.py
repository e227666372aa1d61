"""The status of a program without nodes: in `status.json`, and in its own terminal."""

import io
import os
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from distrl.launch.live.view import View
from distrl.launch.supervision.node_logs import Stream
from distrl.launch.supervision.result import NodeExit
from distrl.launch.supervision.status_file import FILE_NAME, StatusFile
from distrl.launch.supervision.usage import Usage, process_usage
from distrl.metrics.progress_line import is_progress_line
from distrl.runtime.heartbeat import Heartbeat
from distrl.runtime.working_folder import shown

_TICK_S = 1.0
_NAME = "single_process"


class _ThisProcess:
    """This process as `status_file.Node`."""

    def __init__(self) -> None:
        self.name, self.host, self.alive = _NAME, "", True
        self.started, self.pid = time.monotonic(), os.getpid()
        self.unavailable_reason: str | None = None
        self.heartbeat, self.exit = Heartbeat(), NodeExit()
        self.heartbeat.begin(0)

    def usage(self) -> Usage | None:
        """See `SupervisedNode.usage`."""
        return process_usage(self.pid)


class _Lines(io.TextIOBase):
    """A text stream whose whole lines go to a `Stream`."""

    def __init__(self, stream: Stream, old: Any):
        self._stream, self._old, self._rest = stream, old, ""
        self._lock = threading.Lock()

    def write(self, text: str) -> int:
        """See `io.TextIOBase`."""
        with self._lock:
            lines, newline, rest = (self._rest + text).rpartition("\n")
            self._rest = rest
            visible = [line for line in lines.split("\n") if not is_progress_line(line)]
            if newline and visible:
                self._stream.write("\n".join(visible) + "\n")
        return len(text)

    def end(self) -> None:
        """Writes a line that was not ended."""
        if self._rest:
            self.write("\n")

    def fileno(self) -> int:
        """See `io.TextIOBase`."""
        return int(self._old.fileno())

    @property
    def buffer(self) -> Any:
        """What takes bytes, without regard to the status."""
        return self._old.buffer

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """See `io.TextIOBase`."""
        return str(self._old.encoding)


class LiveProcess:
    """While entered, keeps `status.json` and the live status of this process up to date.

    Args:
      run_dir: the run folder; None: nothing is written or shown.
      live: whether to show the status below all that is printed, if stdout is a terminal.
    """

    def __init__(self, run_dir: Path | None, live: bool) -> None:
        self._run_dir = run_dir
        self._stream: Stream | None = None
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        if live and run_dir is not None:
            stream = Stream(sys.stdout)
            self._stream = stream if stream.is_terminal else None

    def __enter__(self) -> "LiveProcess":
        if self._run_dir is None:
            return self
        self._old = sys.stdout, sys.stderr
        if self._stream is not None:
            sys.stdout = _Lines(self._stream, sys.stdout)
            if Stream(sys.stderr).same_as(self._stream):
                sys.stderr = _Lines(self._stream, sys.stderr)
        self._thread = threading.Thread(target=self._run, name="status", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Removes the status from the terminal, and writes what has not been written yet."""
        if self._thread is None:
            return
        self._ended.set()
        self._thread.join()
        ours = sys.stdout, sys.stderr
        sys.stdout, sys.stderr = self._old
        for lines in ours:
            if isinstance(lines, _Lines):
                lines.end()
        if self._stream is not None:
            self._stream.show_footer(())
            self._stream.flush(1.0)

    def _run(self) -> None:
        assert self._run_dir is not None
        file, this = StatusFile(self._run_dir / FILE_NAME), _ThisProcess()
        view, broken = View(self._run_dir), False
        while True:
            try:
                if file.is_due:
                    file.write([this])
                    broken = False
            except OSError as error:  # a full disk; training does not depend on it
                if not broken:
                    print(
                        f"distrl: {shown(self._run_dir / FILE_NAME)}: {error.strerror}", flush=True
                    )
                broken = True
            if self._stream is not None:
                size = self._stream.footer_size
                self._stream.show_footer(view.lines(file.current(), *size))
            if self._ended.wait(_TICK_S):
                return
