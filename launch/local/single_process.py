"""Runs an experiment in this process, without Launchpad, with signals and `result.json`."""

import functools
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from distrl.checkpointing.resume_point import ResumePoint
from distrl.errors import ConfigError, SpecError
from distrl.experiment import Experiment
from distrl.launch.local.stop_on_signals import StopOnSignals
from distrl.launch.supervision.result import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_FINISHED,
    write_result,
)
from distrl.runtime.process_exit import exit_at_once

if TYPE_CHECKING:
    from distrl.programs.learner_processes import ProcessGroupSpec

_LEAVE_S = 5.0  # seconds beyond the grace period for the program to end by itself


def run_single_process(
    experiment: Experiment,
    run_dir: Path | None,
    start: ResumePoint,
    debug: bool = False,
    process_group: "ProcessGroupSpec | None" = None,
) -> int:
    """Trains until the goal is reached or a signal arrives.

    Args:
      experiment: what to train.
      run_dir: the run folder; None: nothing is written.
      start: the checkpoint to resume from.
      debug: whether an exception opens pdb.
      process_group: which process of a learner this is; None where the learner has one process.

    Returns:
      The exit status, which `result.json` has too.
    """
    import jax

    from distrl.learner_group.group import LearnerGroup, SingleProcessGroup
    from distrl.programs.single_process import single_process

    jax.config.update("jax_cpu_enable_async_dispatch", False)
    stop = threading.Event()
    join: Callable[[], LearnerGroup] = SingleProcessGroup
    if process_group is not None:
        from distrl.programs import learner_processes

        join = functools.partial(process_group.join, learner_processes.about(experiment))
        experiment = learner_processes.share_of(experiment, process_group)

    def leave(number: int) -> NoReturn:
        """Ends the process when its main thread does not, after everything was saved."""
        exit_at_once(_stopped(run_dir, number))

    signals = StopOnSignals(stop, experiment.checkpoint.grace + _LEAVE_S, leave)
    try:
        with signals:
            ending = single_process(
                experiment,
                stop=stop,
                run_dir=run_dir,
                printer=lambda line: print(line, flush=True),
                resume_point=start,
                give_up=lambda: leave(signals.caught[0]),
                join=join,
            )
    except Exception as error:
        if debug:
            from distrl.launch.local.debugging import post_mortem

            post_mortem(error)
        code = EXIT_BAD_INPUT if isinstance(error, (ConfigError, SpecError)) else EXIT_FAILED
        reason = f"{type(error).__name__}: {error}".partition("\n")[0]
        _finish(run_dir, "failed", reason, code)
        if process_group is not None:
            # JAX's exit handlers would wait for processes that have ended, and then abort.
            _print_error(error, code)
            exit_at_once(code)
        raise
    if ending is not None:
        reason, reached = ending
        if reached:
            return _finish(run_dir, "finished", reason, EXIT_FINISHED)
        return _finish(run_dir, "failed", reason, EXIT_FAILED)
    if signals.caught:
        return _stopped(run_dir, signals.caught[0])
    return _finish(run_dir, "finished", "another learner process has ended the run", EXIT_FINISHED)


def _print_error(error: Exception, code: int) -> None:
    if code == EXIT_BAD_INPUT:
        print(f"distrl: {' '.join(str(error).split())}", file=sys.stderr)
    else:
        traceback.print_exception(error)


def _stopped(run_dir: Path | None, number: int) -> int:
    return _finish(run_dir, "stopped", signal.Signals(number).name, 128 + number)


def _finish(run_dir: Path | None, status: str, reason: str, code: int) -> int:
    """Writes `result.json`, prints the last line and returns the exit status."""
    if run_dir is not None:
        write_result(run_dir, status, reason, code)
    if code != EXIT_BAD_INPUT:  # `main` prints its one line
        print(f"distrl: {status}: {reason} (exit status {code})", flush=True)
    return code
