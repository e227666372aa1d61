"""The launcher's own messages, on the terminal and in its log file."""

import pathlib
import sys
import time
from collections.abc import Mapping, Sequence

from distrl.launch.supervision.log_file import LogFile
from distrl.launch.supervision.node_logs import Stream
from distrl.launch.supervision.result import Failure, Result
from distrl.runtime.traceback_text import fold
from distrl.runtime.working_folder import shown

NAME = "distrl"
LOG_FILE = "supervisor.log"
ALL_FRAMES = f"all in {LOG_FILE}"


class Journal:
    """The supervisor's log, `logs/supervisor.log`, and its lines on the terminal.

    Nodes' output goes to stdout, the launcher's own messages to stderr.

    Args:
      path: the log file, which is appended to.
      limit: limit of the file's size; see `LogFile`.
    """

    def __init__(self, path: pathlib.Path, limit: int | None = None) -> None:
        self.path = path
        self.out = Stream(sys.stdout)
        self.err = Stream(sys.stderr)
        if self.err.same_as(self.out):
            self.err = self.out
        self._file = LogFile(path, limit)
        self._start = time.monotonic()
        self._broken = ""  # why the file could not be written, as it was shown

    def fds(self) -> list[int]:
        """Returns the descriptors that a forked child has to close."""
        return self._file.fds()

    def note(self, line: str) -> None:
        """Writes a line to the log file only."""
        date = time.strftime("%Y-%m-%d %H:%M:%S")
        stamp = f"{date} {time.monotonic() - self._start:9.3f}"
        self._file.write(f"{stamp} {line}\n".encode(errors="replace"))
        broken = "" if self._file.broken is None else str(self._file.broken.strerror)
        if broken and broken != self._broken:  # a full disk must not take the supervisor down
            self.err.write(f"{NAME}: {self.path}: {broken}\n", force=True)
        self._broken = broken

    def say(self, line: str) -> None:
        """Writes a line to the log file and to the terminal."""
        self.note(line)
        self.err.write(f"{NAME}: {line}\n", force=True)

    def waiting(self) -> bool:
        """Returns whether output for the terminal is left to be flushed."""
        return self.out.waiting() or self.err.waiting()

    def flush(self, timeout: float = 0.0) -> None:
        """Writes what the terminal takes now, or within `timeout` seconds for each stream."""
        self.out.flush(timeout)
        self.err.flush(timeout)

    def report(
        self,
        result: Result,
        failure: Failure | None,
        tail: list[str],
        log: pathlib.Path,
        saved: str = "",
        lost: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """Shows the first failure, if there was one, and the line that sums up.

        Args:
          result: how the program ended.
          failure: what failed first.
          tail: the last lines of that node's output.
          log: that node's log file.
          saved: what was saved, for the last line; "": not known.
          lost: by host that is lost, its nodes, which have not failed themselves.
        """
        self.flush(timeout=1.0)
        lines = []
        if failure is not None and not failure.final:
            lines = [f"---- {failure.node} failed first: {failure.cause}"]
            if failure.traceback:
                lines += fold(failure.traceback, ALL_FRAMES).rstrip("\n").split("\n")
            elif tail:
                lines += [f"its last {len(tail)} lines:", *(f"    {line}" for line in tail)]
            lines += [f"log: {shown(log)}", "----"]
        lost = lost or {}
        excused = {result.failed_node, *(name for names in lost.values() for name in names)}
        ended_badly = [
            name
            for name, exit_ in result.nodes.items()
            if exit_.state in ("failed", "killed") and name not in excused
        ]
        if failure is None:  # after a failure that is to be expected
            for host, names in lost.items():
                lines.append(
                    f"{NAME}: ended without host {host}, which is lost: {', '.join(names)}"
                )
            if ended_badly:
                names = ", ".join(ended_badly)
                lines.append(f"{NAME}: failed while stopping: {names}; see {shown(self.path)}")
        if result.hung:
            lines.append(f"{NAME}: still running: {', '.join(result.hung)}")
        lines.append(
            f"{NAME}: {result.status}: {result.reason} (exit status {result.exit_code}; "
            f"logs in {shown(self.path.parent)}{saved and '; '}{saved})"
        )
        for line in lines:
            self.note(line)
        self.err.write("".join(line + "\n" for line in lines), force=True)
        self.flush(timeout=1.0)

    def close(self) -> None:
        self._file.close()
