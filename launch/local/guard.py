"""A small process above the program, which makes sure that no end of it passes for a success.

Code in the program's process, an environment's or a library's, may end it with status 0 at any time
(`os._exit`), or be killed. The program reports its true exit status before it ends; if it has not,
it has failed, and the guard says so, also in `result.json`.
"""

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from distrl.launch.local.robust_streams import stop_waiting_for_readers
from distrl.launch.supervision import signals
from distrl.runtime import posix, process_exit
from distrl.runtime.host_resources import killed_by, oom_kills
from distrl.runtime.memory_file import memory_file

_PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2)
_REPEAT_S = 1.0  # seconds within which another SIGINT of the same program is a repetition


def run_guarded() -> None:
    """Forks this process, which must be young, and returns in the copy.

    This process passes signals on, waits, and exits as the copy does. The copy keeps the terminal
    and the process group: Ctrl-C reaches both, and counts once.
    """
    # What the process says may be long: a pipe that is read only at the end would block it.
    facts = memory_file("distrl-guard")
    sys.stdout.flush()
    sys.stderr.flush()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    # Under nohup the end of the terminal does not end the program.
    ignored = {signal.SIGHUP} if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN else set()
    watched = {*_PASSED_ON, signal.SIGCHLD} - ignored
    parent, kills_before = os.getpid(), oom_kills()
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, watched)
    pid = os.fork()
    if pid == 0:
        posix.end_with_parent(parent, "distrl:train")
        process_exit.announce_to(facts)
        signals.take_interrupts_from_guard()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        return
    passed_on = _wait(pid, watched)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    sys.exit(_judge(code, _read(facts), passed_on, kills_before))


def _wait(pid: int, watched: set[signal.Signals]) -> list[int]:
    """Passes signals on until the process has ended; returns them."""
    passed_on: list[int] = []
    interrupts = Interrupts()
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        received = signal.sigwaitinfo(watched)
        number = received.si_signo
        if number == signal.SIGINT and not interrupts.counts(received.si_code, time.monotonic()):
            continue
        if number != signal.SIGCHLD:
            passed_on.append(number)
            os.kill(pid, signals.RELAYED_INTERRUPT if number == signal.SIGINT else number)
            os.kill(pid, signal.SIGCONT)  # it may have been suspended
    return passed_on


class Interrupts:
    """Which SIGINTs count, since the second one kills.

    `timeout` signals its child and then the whole group, and a script that has started us may pass
    on the terminal's Ctrl-C, which came here too: such a repetition does not count. Those of a
    keyboard, which the kernel sends, all do.
    """

    def __init__(self) -> None:
        self._last = float("-inf")  # when one counted

    def counts(self, code: int, now: float) -> bool:
        """Returns whether a SIGINT counts.

        Args:
          code: its `si_code`; positive from the kernel, as for a terminal.
          now: seconds, of a monotonic clock.
        """
        if code <= 0 and now - self._last < _REPEAT_S:
            return False
        self._last = now
        return True


def _read(file: int) -> dict[str, Any]:
    """Returns what the process has said, in whole lines: it may be killed while it writes one."""
    facts: dict[str, Any] = {}
    for line in os.pread(file, os.fstat(file).st_size, 0).splitlines(keepends=True):
        if line.endswith(b"\n"):
            facts |= json.loads(line)
    return facts


def _judge(code: int, facts: dict[str, Any], passed_on: list[int], kills_before: int) -> int:
    """Returns the exit status, and says and writes what the process itself has not.

    Args:
      code: the exit status that the kernel reports; negative: the signal that ended it.
      facts: what it has announced.
      passed_on: the signals that it got.
      kills_before: `oom_kills()` before it began.
    """
    from distrl.launch.supervision.result import EXIT_FAILED, RESULT_FILE, Result

    if code == -signals.RELAYED_INTERRUPT:
        code = -signal.SIGINT
    run_dir = Path(facts["run_dir"]) if "run_dir" in facts else None
    said = facts.get("code")
    if said is not None:
        if said == 0 or run_dir is None or (run_dir / RESULT_FILE).exists():
            return int(said)
        status = "stopped" if said > 128 and passed_on else "failed"
        reason = facts.get("reason", "see its last lines")
    elif -code in passed_on:  # before it could handle signals
        said, status = 128 - code, "stopped"
        reason = signals.name_of(-code)
    else:
        said, status = EXIT_FAILED, "failed"
        if code < 0:
            reason = f"its process {killed_by(signals.name_of(-code), kills_before)}"
        else:
            reason = (
                f"its process ended with exit status {code} in the middle of its work: an "
                "environment, or a library, must have ended it (os._exit)"
            )
    result = Result(status, reason, said, nodes={})
    what = ""
    if run_dir is not None:
        from distrl.checkpointing.saved import Saved

        saved = Saved.read(run_dir)
        result.saved = saved.as_dict()
        result = result.write(run_dir)
        what = f"; {saved.describe(Saved.of_list(facts['saved_before']))}"
    if "code" in facts and not facts.get("unsaid"):  # the program has said why
        return result.exit_code
    line = f"{result.status}: {result.reason} (exit status {result.exit_code}{what})"
    stop_waiting_for_readers()
    print(f"distrl: {line}", file=sys.stderr)
    return result.exit_code
