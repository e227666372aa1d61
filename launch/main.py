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

from distrl.runtime import working_folder

_HELP = {
    "train": """usage: distrl train --env=NAME [--agent=NAME] [--topology=NAME] [flags]
       distrl train --experiment=FILE.py[:NAME] [--topology=NAME] [flags]
           Train an experiment.
       distrl train --help
           List all flags, including every setting of the experiment (--config.*).""",
    "launch": """usage: distrl launch FILE.py:NAME [flags]
           Run a Launchpad program of your own.
       distrl launch --help
           List its flags.""",
    "doctor": """usage: distrl doctor
           Show what is installed, what works here, and what to do about what does not.""",
    "list": """usage: distrl list [FOLDER]
           List the runs in a folder, runs/ unless given.""",
    "status": """usage: distrl status RUN
           Show the status of a run's nodes, what their time goes to, and the bottleneck.""",
    "top": """usage: distrl top RUN
           Watch a running program; Ctrl-C ends the watching only.""",
    "logs": """usage: distrl logs RUN NODE [-f]
           Print a node's log; -f: also what it prints from now on.""",
    "stop": """usage: distrl stop RUN [--timeout=SECONDS]
           Have a run save and end, as Ctrl-C does.""",
    "eval": """usage: distrl eval RUN [--which=latest|best] [--episodes=N] [--max_steps=N]
                   [--seed=N] [--sample] [--task=NAME] [--trust]
                   [--env=NAME | --experiment=FILE.py[:NAME]] [--code=current|snapshot]
           Play episodes with a run's policy, and print their mean return. --sample: as actors
           do, not greedily; --task: one of several policies; --trust: run code that its files
           have or name; --code=snapshot: with the code that the run was made with.""",
    "play": """usage: distrl play RUN [--watch] [flags of distrl eval]
           Play episodes one after the other, and print each; --watch: in a window or the
           terminal.""",
    "video": """usage: distrl video RUN [--out=FILE.mp4] [--fps=N] [flags of distrl eval]
           Write a film of an episode, or of several: .mp4, .gif, or .png for pictures;
           RUN/video.mp4 unless given.""",
    "report": """usage: distrl report RUN [--out=FILE.html] [--video=FILE.mp4]
           Write a page about a run: curves, throughput, faults, settings, code, video;
           RUN/report.html unless given.""",
    "plot": """usage: distrl plot RUN ... [--out=FILE.png] [--x=env_steps] [--y=mean_return]
           Draw learning curves; runs that differ in their seed only are one, with its spread.""",
    "compare": """usage: distrl compare RUN RUN ...
           Print the settings that differ, and how far each run came.""",
    "sweep": """usage: distrl sweep [flags of train] [--grid NAME=VALUE,VALUE,...] ...
                    [--random NAME=KIND:LOW:HIGH] ... [--trials=N] [--seeds=N] [--jobs=N|auto]
                    [--dir=DIR] [--by=COLUMN]
           Train with each combination of settings and seeds; the same command resumes. NAME is a
           flag of train, such as config.agent.learning_rate or agent. KIND is uniform, log, int
           or logint; --random NAME=VALUE,VALUE,... chooses one. Each of --trials draws is tried
           with all of the grid. --seeds: their number, or the seeds themselves with commas.
           --jobs: trials at a time, 1 unless given; auto: as many as fit on this machine.
           --by ranks by a column of metrics.csv, mean_return unless given; -COLUMN: least first.
       distrl sweep --dir=DIR
           Resume a sweep.
       distrl sweep --show DIR [--by=COLUMN]
           Print the table of a sweep, with mean and standard deviation over seeds, ranked.""",
    "graph": """usage: distrl graph [RUN | FILE.py:NAME] [flags of train]
                    [--out=FILE.svg|.png|.pdf|.dot|.txt]
           Draw the program of a run or of an experiment; without --out print it as text.""",
    "actors": """usage: distrl actors RUN N
           Scale to N actors (at most `actors.max_actors`).""",
    "stacks": """usage: distrl stacks RUN [NODE ...]
           Print the Python stacks of a run's nodes.""",
    "profile": """usage: distrl profile RUN NODE [--seconds=5] [--out=FOLDER]
           Write a flame graph (py-spy) and a JAX trace of a running node; without NODE of a
           single_process.""",
    "tables": """usage: distrl tables [NAME|RUN ...]
           Show the replay tables of the programs running on this machine.
       distrl tables NAME|RUN --set SETTING=VALUE
           Change a setting of a replay table while its program runs.""",
    "completion": """usage: distrl completion bash|zsh|fish
           Print a script that completes commands, flags, settings, environments and runs.""",
    "agent": """usage: distrl agent --join=HOST:PORT --credentials=FILE
           Run this host's nodes for the launcher at HOST:PORT.""",
}
_VERSION_HELP = """       distrl --version
           Print the version.
       distrl COMMAND --help
           Print the help of a command."""
# The module and the function of each; imported when it is called.
_FUNCTIONS = {
    "train": ("cli.train", "train"),
    "launch": ("cli.launch", "launch"),
    "doctor": ("cli.doctor", "doctor"),
    "list": ("runs.list_runs", "list_runs"),
    "status": ("cli.status", "status"),
    "top": ("runs.top", "top"),
    "logs": ("runs.logs", "logs"),
    "stop": ("runs.stop", "stop"),
    "eval": ("runs.evaluate", "evaluate_run"),
    "play": ("runs.play", "play_run"),
    "video": ("runs.video", "video"),
    "report": ("runs.report", "report"),
    "plot": ("runs.plot", "plot"),
    "compare": ("runs.compare", "compare"),
    "sweep": ("sweep.sweep", "sweep"),
    "graph": ("graph.graph", "graph"),
    "actors": ("cli.actors", "actors"),
    "stacks": ("cli.stacks", "stacks"),
    "profile": ("runs.profile", "profile"),
    "tables": ("runs.tables", "tables"),
    "completion": ("cli.completion", "completion"),
    "agent": ("cli.agent", "agent"),
}
_COMMANDS = tuple(_FUNCTIONS)
_WITH_JAX = (
    "train", "sweep", "graph", "eval", "play", "video", "report", "plot", "compare", "list", "logs",
    "stop", "profile",
)  # fmt: skip
_RUNNING = ("train", "launch", "sweep")  # these go on when nobody reads what they print
_HELP_FLAGS = {"-h", "-help", "--help"}
_PATH_FLAGS = {
    "config_file", "credentials", "dir", "experiment", "out", "run_dir", "show", "video",
}  # fmt: skip


def main(
    argv: Sequence[str] | None = None,
    load: Callable[[], Any] | None = None,
    is_worker: bool = False,
) -> None:
    """Runs a command and exits: 0 done, 1 failed, 2 bad input, 130 stopped by Ctrl-C.

    Args:
      argv: the command line; None: this process's own.
      load: returns the experiment that `train` trains; None: the flags name one.
      is_worker: whether this is a young process with nothing to do but this command.
    """
    with working_folder.kept():
        _main(list(sys.argv if argv is None else argv), load, argv is None or is_worker)


def _main(arguments: list[str], load: Callable[[], Any] | None, own_process: bool) -> NoReturn:
    """See `main`. Args: own_process: whether the process has nothing else to do."""
    signal.signal(signal.SIGINT, _on_interrupt)
    if own_process:
        from distrl.launch.local import robust_streams

        if arguments[1:2] and arguments[1] in _RUNNING:
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

        if not (isinstance(error, BrokenPipeError) and own_process and drop_unread_output()):
            announce(code=1, reason=f"{type(error).__name__}: {error}".partition("\n")[0])
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
    command = argv[1] if len(argv) > 1 else ""
    if command in ("", "-h", "--help", "help"):
        parts = [_HELP[name].removeprefix("usage: ") for name in _COMMANDS]
        print("usage: " + "\n       ".join(parts) + "\n" + _VERSION_HELP)
        return 0 if command else 2
    if command == "--version":
        from distrl.version import __version__

        print(f"distrl {__version__}")
        return 0
    if command == "_complete" and len(argv) == 3:  # of the scripts of `distrl completion`
        from distrl.launch.cli.completion import complete

        return complete(argv[2], _HELP)
    if command not in _COMMANDS:
        print(
            f"distrl: unknown command {command!r}; choose from: {', '.join(_COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    if command not in ("train", "launch") and _HELP_FLAGS & set(argv[2:]):
        print(_HELP[command])
        return 0
    # absl's errors, without importing the rest of the program for them.
    from absl import flags

    from distrl.errors import ConfigError, SpecError
    from distrl.runtime.process_exit import announce

    try:
        _check_folder()
        return _call(command, [f"{argv[0]} {command}", *map(_with_home, argv[2:])], load)
    except (ConfigError, SpecError, flags.Error) as error:
        if isinstance(error, flags.UnrecognizedFlagError):
            from distrl.launch.cli.unknown_flags import with_suggestions

            error = with_suggestions(error, flags.FLAGS)
        reason = " ".join(str(error).split())
        print(f"distrl: {reason}", file=sys.stderr)
        announce(reason=reason)
        return 2


def _check_folder() -> None:
    """Raises ConfigError if the current folder is gone, which libraries end the process for."""
    from distrl.errors import ConfigError

    try:
        os.getcwd()
    except FileNotFoundError:
        raise ConfigError("the current folder has been deleted; change to another") from None


def _with_home(word: str) -> str:
    """Expands ~ in a flag that names a file or folder, which shells leave alone after a "="."""
    flag, equals, value = word.partition("=")
    if equals and value.startswith("~") and flag.lstrip("-") in _PATH_FLAGS:
        return f"{flag}={os.path.expanduser(value)}"
    return word


def _call(command: str, arguments: list[str], load: Callable[[], Any] | None) -> int:
    """Imports a command's module and returns its exit status."""
    if command in _WITH_JAX:
        from distrl.runtime.compilation_cache import use_compilation_cache

        use_compilation_cache()
    module, name = _FUNCTIONS[command]
    function = getattr(importlib.import_module(f"distrl.launch.{module}"), name)
    return int(function(arguments, load) if command == "train" else function(arguments))


if __name__ == "__main__":
    main()
