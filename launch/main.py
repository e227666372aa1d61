"""The command line: `distrl train --env=CartPole-v1 --agent=impala`.

Nothing heavy is imported before the arguments are read, so that bad input is refused at once.
"""

import contextlib
import importlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NoReturn

from distrl.launch.command_table import ALIASES, COMMANDS, PATH_FLAGS
from distrl.runtime import working_folder

_VERSION_HELP = """       distrl --version
           Print the version.
       distrl COMMAND --help
           Print the help of a command."""
_HELP_FLAGS = {"-h", "-help", "--help"}


def main(
    argv: Sequence[str] | None = None,
    load: Callable[[], Any] | None = None,
    own_process: bool = False,
) -> None:
    """Runs a command and exits: 0 done, 1 failed, 2 bad input, 75 lost a host, 130 Ctrl-C.

    Args:
      argv: the command line; None: this process's own.
      load: returns the experiment that `train` trains; None: the flags name one.
      own_process: whether this process is young and has nothing to do but this command, as with
        its own command line.
    """
    with working_folder.kept():
        _main(list(sys.argv if argv is None else argv), load, argv is None or own_process)


def _main(arguments: list[str], load: Callable[[], Any] | None, own_process: bool) -> NoReturn:
    """See `main`. Args: own_process: whether the process has nothing else to do."""
    signal.signal(signal.SIGINT, _on_interrupt)
    if own_process:
        # Its caller may block the signals that stop it, and processes inherit that.
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        from distrl.launch.local import robust_streams

        robust_streams.open_closed_streams()
        command = COMMANDS.get(_command(arguments))
        if command is not None and command.ignores_closed_output:
            robust_streams.install_robust_streams()
        else:
            robust_streams.escape_what_has_no_encoding()
    if arguments[1:2] == ["train"] and own_process:
        from distrl.launch.local.guard import run_guarded
        from distrl.launch.supervision.signals import interrupt_number

        run_guarded()
        signal.signal(interrupt_number(), _on_interrupt)
    from distrl.runtime.process_exit import announce

    try:
        code = _run(arguments, load)
        sys.stdout.flush()
        sys.stderr.flush()
    except (SystemExit, KeyboardInterrupt) as error:  # ours never raise it
        traceback.print_exception(error)
        reason = f"{type(error).__name__} was raised by the experiment or its environment"
        print(f"distrl: failed: {reason} (exit status 1)", file=sys.stderr)
        announce(reason=reason)
        code = 1
    except BaseException as error:
        from distrl.launch.local.robust_streams import drop_unread_output
        from distrl.runtime.traceback_text import describe_error

        if not (isinstance(error, BrokenPipeError) and own_process and drop_unread_output()):
            announce(code=1, reason=describe_error(error))
            raise
        code = 128 + signal.SIGPIPE  # as a command in C ends that `| head` does not read to its end
    announce(code=code)
    ahead = sys.modules.get("distrl.learning.compile_ahead")
    if ahead is not None and ahead.is_compiling() and own_process:
        from distrl.runtime.process_exit import exit_at_once

        exit_at_once(code)  # XLA may crash where it compiles while Python ends
    sys.exit(code)


def _on_interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Ends this process on Ctrl-C while nothing has been started yet.

    KeyboardInterrupt would not do: an extension module's import turns it into an ImportError, and
    one that is raised in a callback of the garbage collector is printed and dropped.
    """
    from distrl.runtime.process_exit import announce

    with contextlib.suppress(OSError):  # stderr is closed
        os.write(2, b"distrl: stopped by Ctrl-C\n")
    announce(code=128 + signal.SIGINT, reason=signal.Signals.SIGINT.name)
    os._exit(128 + signal.SIGINT)


def _run(argv: list[str], load: Callable[[], Any] | None) -> int:
    command = _command(argv)
    if command in ("", "-h", "--help", "help"):
        parts = [each.help.removeprefix("usage: ") for each in COMMANDS.values()]
        print("usage: " + "\n       ".join(parts) + "\n" + _VERSION_HELP)
        return 0 if command else 2
    if command == "--version":
        from distrl.version import __version__

        print(f"distrl {__version__}")
        return 0
    if command == "_complete" and len(argv) == 3:  # the scripts of `distrl completion`
        from distrl.launch.commands.completion import complete

        return complete(argv[2])
    if command not in COMMANDS:
        print(
            f"distrl: unknown command {command!r}; choose from: {', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    if command not in ("train", "launch") and _HELP_FLAGS & set(argv[2:]):
        print(COMMANDS[command].help)
        return 0
    # absl's errors, without importing the rest of the program for them.
    from absl import flags

    from distrl.errors import ConfigError, SpecError
    from distrl.runtime.process_exit import announce
    from distrl.runtime.traceback_text import one_line

    try:
        working_folder.check_exists()
        return _call(command, [f"{argv[0]} {command}", *map(_with_home, argv[2:])], load)
    except (ConfigError, SpecError, flags.Error) as error:
        if isinstance(error, flags.UnrecognizedFlagError):
            from distrl.launch.cli.unknown_flags import with_suggestions

            error = with_suggestions(error, flags.FLAGS)
        reason = one_line(error)
        print(f"distrl: {reason}", file=sys.stderr)
        announce(reason=reason)
        return 2


def _command(argv: Sequence[str]) -> str:
    """Returns the name of the command; "" if there is none."""
    name = argv[1] if len(argv) > 1 else ""
    return ALIASES.get(name, name)


def _with_home(word: str) -> str:
    """Expands ~ in a flag that names a file or folder, which shells leave alone after a "=".

    Raises ConfigError: there is no such home folder.
    """
    flag, equals, value = word.partition("=")
    if equals and value.startswith("~") and flag.lstrip("-") in PATH_FLAGS:
        from distrl.runtime import home

        return f"{flag}={home.expanded(value, flag)}"
    return word


def _call(command: str, arguments: list[str], load: Callable[[], Any] | None) -> int:
    """Imports a command's module and returns its exit status."""
    row = COMMANDS[command]
    if row.with_jax:
        from distrl.runtime.compilation_cache import use_compilation_cache

        use_compilation_cache()
        from distrl.runtime.jax_settings import use_own_settings

        use_own_settings()
    function = getattr(importlib.import_module(f"distrl.launch.{row.module}"), row.function)
    return int(function(arguments, load) if command == "train" else function(arguments))


if __name__ == "__main__":
    main()
