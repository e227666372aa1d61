"""The result of a program, which a launch returns and writes to `result.json`."""

import dataclasses
import pathlib
from typing import Any

from distrl.runtime.files import read_dict, write_json

RESULT_FILE = "result.json"
LAUNCHER = "the launcher"  # instead of a node's name, where no node has failed

EXIT_FINISHED = 0
EXIT_FAILED = 1
EXIT_BAD_INPUT = 2
EXIT_HOST_LOST = 75  # EX_TEMPFAIL of sysexits.h: try again
FINAL = (EXIT_FINISHED, EXIT_FAILED, EXIT_BAD_INPUT)  # the same command would end so again
NOT_STARTED = "not started"


def which_result(run_dir: pathlib.Path) -> tuple[int, int] | None:
    """Returns what identifies a folder's present `result.json`; None if there is none."""
    try:
        status = (run_dir / RESULT_FILE).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def result_since(
    run_dir: pathlib.Path, before: tuple[int, int] | None, code: int
) -> dict[str, Any]:
    """Returns the `result.json` of a program; empty if it has written none.

    A program that ends before it opens its run folder leaves that of an earlier one there.

    Args:
      run_dir: its run folder.
      before: what `which_result` returned before it started.
      code: its exit status.
    """
    result = read_dict(run_dir / RESULT_FILE) if which_result(run_dir) != before else None
    return result if result is not None and result.get("exit_code") == code else {}


@dataclasses.dataclass
class NodeExit:
    """The end of one node.

    Attributes:
      state: "not started", "running" (it does not end: see `Result.hung`), "ended" (returned, or
        exited with status 0), "failed" (an exception, another exit status, or a signal), or
        "killed" (by the supervisor: it did not stop in time, or the user pressed Ctrl-C twice).
      code: exit status of its process; None for a thread or if a signal ended it.
      signal: name of the signal that ended its process.
      error: the exception that ended it, as "Type: message".
      asked: whether it had been asked to stop when it ended.
      seconds: from its start to its end.
      causes: why its earlier lives ended, after each of which it was restarted.
    """

    state: str = NOT_STARTED
    code: int | None = None
    signal: str | None = None
    error: str | None = None
    asked: bool = False
    seconds: float = 0.0
    causes: list[str] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Failure:
    """The first failure of a program.

    Attributes:
      node: name of the node.
      cause: one line: "ValueError: message", "was killed by SIGKILL", "exited with status 3".
      traceback: the exception's traceback, if there was one.
      bad_input: whether it is a ConfigError or a SpecError: data or settings are wrong, not code.
      of_launcher: whether the launcher failed, as when it can start no process: the nodes are well,
        and have the time to save that they have without a failure.
      final: whether its one line says all, as for bad input or training that has diverged.
      host_lost: whether the node's host was lost, and with it the node.
    """

    node: str
    cause: str
    traceback: str | None = None
    bad_input: bool = False
    of_launcher: bool = False
    final: bool = False
    host_lost: bool = False


@dataclasses.dataclass
class Result:
    """The result of a program.

    Attributes:
      status: "finished" (the goal is reached), "failed", or "stopped" (by a signal).
      reason: one line.
      exit_code: 0 finished, 1 failed, 2 failed by bad input, 75 failed as a host was lost, 128 +
        the signal's number when stopped: 130 for Ctrl-C, 143 for SIGTERM.
      nodes: how each node ended, by name ("actor/0").
      failed_node: the node that failed first.
      hung: nodes that still run, because threads cannot be killed. If there are any, end the
        process with `os._exit(result.exit_code)`: an ordinary exit may wait for them.
      saved: what the run folder has at the end, as `Saved.as_dict` gives it; None where that is not
        known: the run folder is on another machine, or the program saves nothing.
    """

    status: str
    reason: str
    exit_code: int
    nodes: dict[str, NodeExit]
    failed_node: str | None = None
    hung: tuple[str, ...] = ()
    saved: dict[str, Any] | None = None

    def write(self, run_dir: pathlib.Path) -> "Result":
        """Writes `result.json` into the run folder, atomically and to disk.

        Returns:
          This result; if it could not be written, one that is no success and says so.
        """
        try:
            write_json(run_dir / RESULT_FILE, dataclasses.asdict(self))
        except OSError as error:
            return self.with_problem(f"{RESULT_FILE} could not be written: {error.strerror}")
        return self

    def with_problem(self, problem: str) -> "Result":
        """Returns this result with a problem of its end, which makes a failure of a success."""
        finished = self.status == "finished"
        return dataclasses.replace(
            self,
            status="failed" if finished else self.status,
            reason=f"{self.reason}, but {problem}",
            exit_code=self.exit_code or EXIT_FAILED,
        )
