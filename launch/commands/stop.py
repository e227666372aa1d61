"""`distrl stop RUN`: makes a run save and end, as Ctrl-C does."""

import contextlib
import os
import signal
import sys
import time

from distrl.launch.runs.arguments import Parser
from distrl.launch.runs.run import load_run
from distrl.launch.supervision.launcher_process import is_running, local_launcher
from distrl.launch.supervision.result import EXIT_FAILED
from distrl.runtime.durations import check_duration

_POLL_S = 0.1


def stop(arguments: list[str]) -> int:
    """Stops a running program and waits until it has ended.

    Args:
      arguments: the command, the run folder, `--timeout=SECONDS`.

    Returns:
      The exit status: 1 if it has not ended in time. It is left alone then.

    Raises:
      ConfigError: nothing runs there, or not on this machine.
    """
    parser = Parser("stop").add("run").add("--timeout", type=float, default=120.0)
    values = parser.parse_args(arguments[1:])
    check_duration("--timeout", values.timeout, zero=True)
    run = load_run(values.run, command="stop")
    pid = local_launcher(run.path, "stop").pid
    with contextlib.suppress(ProcessLookupError):  # it has ended by itself, just now
        os.kill(pid, signal.SIGCONT)  # it may have been suspended
        os.kill(pid, signal.SIGINT)
    deadline = time.monotonic() + values.timeout
    while is_running(run.path):
        if time.monotonic() > deadline:
            print(
                f"distrl: stop: process {pid} in {run.path} was asked to stop and has not ended "
                f"within {values.timeout:g} s",
                file=sys.stderr,
            )
            return EXIT_FAILED
        time.sleep(_POLL_S)
    result = run.result
    how = f"{run.status}: {result.get('reason', '')}" if result else "ended, without a result"
    print(f"{run.path.name}: {how}")
    return 0
