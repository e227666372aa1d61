"""Set-up of the process or thread that a node runs in."""

import threading
from typing import NoReturn

import jax

from distrl.programs.build import print_line
from distrl.runtime.heartbeat import current_heartbeat
from distrl.runtime.jax_settings import use_own_settings
from distrl.runtime.process_exit import exit_at_once
from distrl.shared_memory.process import Process


def configure_jax(asynchronous: bool = False) -> None:
    """Applies settings that must come before the node's first computation.

    Args: asynchronous: whether calls on the CPU return before their results are there. A dispatch
      to another thread costs more than a small network's whole step.
    """
    use_own_settings()
    jax.config.update("jax_cpu_enable_async_dispatch", asynchronous)


def has_own_process() -> bool:
    """Returns whether the calling node is a process, not a thread of its launcher's."""
    return threading.current_thread() is threading.main_thread()


def owner_of_files() -> Process:
    """Returns the process with which files in shared memory end: they outlive the node's own."""
    return Process.parent() if has_own_process() else Process.this()


def stops_in_order() -> bool:
    """Returns whether nodes are stopped in order, so that those that the learner asks outlive it.

    Launchpad's own launchers stop all at once, and kill what is left after ten seconds.
    """
    return current_heartbeat().table is not None


def leave() -> NoReturn:
    """Ends the process of a node that has been saved and does not return from its work."""
    print_line("saved; ending before its work is done")
    exit_at_once(0)
