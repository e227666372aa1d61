"""Runs an experiment in this process, without Launchpad, with signals and `result.json`."""

import faulthandler
import functools
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from distrl.checkpointing.resume_point import ResumePoint
from distrl.checkpointing.saved import Saved
from distrl.errors import ConfigError, Diverged, SaveError, SpecError
from distrl.experiment import Experiment
from distrl.launch.launch_types import LIVE
from distrl.launch.local.debugging import explain_quit, post_mortem
from distrl.launch.local.live_process import LiveProcess
from distrl.launch.local.stop_on_signals import StopOnSignals
from distrl.launch.supervision.result import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_FINISHED,
    Result,
)
from distrl.runtime import posix
from distrl.runtime.process_exit import exit_at_once
from distrl.runtime.traceback_text import describe_error, fold, one_line

if TYPE_CHECKING:
    from distrl.programs.learner_processes import ProcessGroupSpec

TRACEBACK = "traceback.txt"
"""Name of the file in the run folder that has the traceback of a failure."""
_LEAVE_S = 5.0  # seconds beyond the grace period for the program to end by itself


def run_single_process(
    experiment: Experiment,
    run_dir: Path | None,
    start: ResumePoint,
    debug: bool = False,
    process_group: "ProcessGroupSpec | None" = None,
    terminal: str = LIVE,
) -> int:
    """Trains until the goal is reached or a signal arrives.

    Args:
      experiment: what to train.
      run_dir: the run folder; None: nothing is written.
      start: the checkpoint to resume from.
      debug: whether an exception opens pdb.
      process_group: which process of a learner this is; None where the learner has one process.
      terminal: LIVE shows the status below what is printed, if stdout is a terminal.

    Returns:
      The exit status, which `result.json` has too.
    """
    import jax

    from distrl.learner_group.group import LearnerGroup, SingleProcessGroup
    from distrl.programs.single_process import single_process

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    faulthandler.enable(file=2)  # a SIGSEGV shows a traceback
    posix.allow_any_tracer()  # py-spy, of `distrl profile`, is no ancestor
    stop = threading.Event()
    join: Callable[[], LearnerGroup] = SingleProcessGroup
    if process_group is not None:
        from distrl.programs import learner_processes

        join = functools.partial(process_group.join, learner_processes.about(experiment))
        experiment = learner_processes.share_of(experiment, process_group)

    ending = _Ending(run_dir)

    def leave(number: int) -> NoReturn:
        """Ends the process when its main thread does not, after everything was saved."""
        exit_at_once(ending.stopped(number))

    signals = StopOnSignals(stop, experiment.checkpoint.grace + _LEAVE_S, leave)
    try:
        with signals, LiveProcess(run_dir, terminal == LIVE and not debug):
            outcome = single_process(
                experiment,
                stop=stop,
                run_dir=run_dir,
                printer=lambda line: print(line, flush=True),
                resume_point=start,
                give_up=lambda: leave(signals.caught[0]),
                join=join,
            )
    except BaseException as error:  # an environment may raise SystemExit and KeyboardInterrupt too
        if debug and not isinstance(error, (SaveError, Diverged)):
            post_mortem(error)
        code = ending.raised(error, signals.caught)
        if isinstance(error, (ConfigError, SpecError)):
            if process_group is None:
                raise
            print(f"distrl: {one_line(error)}", file=sys.stderr)
    else:
        return ending.returned(outcome, signals.caught)
    if process_group is not None:
        # JAX's exit handlers would wait for processes that have ended, and then abort.
        exit_at_once(code)
    return code


def _reason(error: BaseException) -> str:
    """Returns "Type: message", and says who raised what usually is a signal's."""
    line = describe_error(error)
    if isinstance(error, (SystemExit, KeyboardInterrupt)):
        line += " (raised by the environment, the agent, or a library of theirs)"
    return line + explain_quit(error)


class _Ending:
    """Writes `result.json` and the last line.

    Args:
      run_dir: the run folder; None: nothing is written.
    """

    def __init__(self, run_dir: Path | None) -> None:
        self._run_dir = run_dir
        self._saved_before = Saved() if run_dir is None else Saved.read(run_dir)

    def show(self, error: BaseException) -> None:
        """Prints the traceback; where frames are folded, the run folder gets all of it."""
        text = "".join(traceback.format_exception(error))
        folded = text if self._run_dir is None else fold(text, f"all in {TRACEBACK}")
        if self._run_dir is not None and folded != text:
            try:
                (self._run_dir / TRACEBACK).write_text(text, errors="backslashreplace")
            except OSError:  # a full disk: all of it is printed then
                folded = text
        sys.stderr.write(folded)

    def returned(self, outcome: tuple[str, bool] | None, caught: Sequence[int]) -> int:
        """Ends a program that has returned; see `end`.

        Args:
          outcome: why it ended, and whether it reached its goal; None: it was ended.
          caught: the signals that have arrived.
        """
        if outcome is not None:
            reason, reached = outcome
            if reached:
                return self.end("finished", reason, EXIT_FINISHED)
            return self.end("failed", reason, EXIT_FAILED)
        if caught:
            return self.stopped(caught[0])
        reason = "another learner process has ended the run"
        if self._run_dir is None:
            return self.end("finished", reason, EXIT_FINISHED)
        # Only the process with the run folder judges the goal: the other one was stopped.
        return self.end("stopped", reason, 128 + signal.SIGTERM)

    def raised(self, error: BaseException, caught: Sequence[int]) -> int:
        """Ends a program that has raised; see `end`. Args: caught: the signals that arrived."""
        if isinstance(error, (ConfigError, SpecError)):
            return self.end("failed", _reason(error), EXIT_BAD_INPUT)
        if not isinstance(error, (SaveError, Diverged)):  # whose one line says all
            self.show(error)
        reason = str(error) if isinstance(error, SaveError) else _reason(error)
        # A simulator, say, may have got the terminal's Ctrl-C, too, which is no failure of the run.
        if caught and not isinstance(error, Diverged):
            return self.stopped(caught[0], reason)
        return self.end("failed", reason, EXIT_FAILED)

    def stopped(self, number: int, problem: str = "") -> int:
        """Ends a program that a signal has stopped; see `end`."""
        name = signal.Signals(number).name
        return self.end("stopped", name + (problem and f", but {problem}"), 128 + number)

    def end(self, status: str, reason: str, code: int) -> int:
        """Returns the exit status; it is not 0 if `result.json` could not be written.

        Args:
          status, reason, code: see `Result`.
        """
        result = Result(status, reason, code, nodes={})
        what = ""
        if self._run_dir is not None:
            saved = Saved.read(self._run_dir)
            result.saved = saved.as_dict()
            result = result.write(self._run_dir)
            what = f"; {saved.describe(self._saved_before)}"
        if code != EXIT_BAD_INPUT:  # `main` prints its one line
            line = f"{result.status}: {result.reason} (exit status {result.exit_code}{what})"
            print(f"distrl: {line}", flush=True)
        return result.exit_code
