"""The command line: `distrl train --env=CartPole-v1 --topology=light_env`.

Nothing heavy is imported before the arguments are read, so that bad input is told at once.
"""

import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

_USAGE = """usage: distrl train --env=NAME [--agent=NAME] [--topology=NAME] [flags]
       distrl train --experiment=FILE.py[:NAME] [--topology=NAME] [flags]
       distrl train --help    every flag, and every setting of the experiment (--config.*)
       distrl status RUN      how the nodes of a running program are
       distrl actors RUN N    have N actors act, of those that `actors.max_actors` makes room for
       distrl stacks RUN      where in their code its nodes are now
       distrl tables [NAME]   how the replay tables of running programs on this machine stand
       distrl tables NAME --set SETTING=VALUE    change a table while its program runs
       distrl agent --join=HOST:PORT --credentials=FILE    a host's part of a program"""
_COMMANDS = ("train", "status", "actors", "stacks", "tables", "agent")


def main(argv: Sequence[str] | None = None) -> None:
    """Runs a command and exits: 0 done, 1 failed, 2 bad input, 130 stopped by Ctrl-C."""
    signal.signal(signal.SIGINT, _on_interrupt)
    code = _run(list(sys.argv if argv is None else argv))
    sys.stdout.flush()
    sys.stderr.flush()
    sys.exit(code)


def _on_interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Ends this process on Ctrl-C while nothing is started yet.

    Not by KeyboardInterrupt: an extension module's import makes an ImportError of it, and one that
    is raised in a callback (of the garbage collector) is printed and forgotten.
    """
    with contextlib.suppress(OSError):  # stderr is closed
        os.write(2, b"distrl: stopped by Ctrl-C\n")
    os._exit(128 + number)


def _run(arguments: list[str]) -> int:
    command = arguments[1] if len(arguments) > 1 else ""
    if command in ("", "-h", "--help", "help"):
        print(_USAGE)
        return 0 if command else 2
    if command not in _COMMANDS:
        known = ", ".join(_COMMANDS)
        print(f"distrl: no command {command!r}; there is: {known}", file=sys.stderr)
        return 2
    # absl's errors, without importing the rest of the program for them.
    from absl import flags

    from distrl.errors import ConfigError, SpecError

    try:
        own = [f"{arguments[0]} {command}", *arguments[2:]]
        if command == "tables":
            from distrl.launch.cli import tables

            return tables.tables(own)
        if command == "status":
            from distrl.launch.cli import status

            return status.status(own)
        if command == "actors":
            from distrl.launch.cli import actors

            return actors.actors(own)
        if command == "agent":
            from distrl.launch.cli import agent

            return agent.agent(own)
        if command == "stacks":
            from distrl.launch.cli import stacks

            return stacks.stacks(own)
        from distrl.runtime.jax_import import import_jax

        import_jax()
        from distrl.launch.cli import train

        return train.train(own)
    except (ConfigError, SpecError, flags.Error) as error:
        print(f"distrl: {' '.join(str(error).split())}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    main()
