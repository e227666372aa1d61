"""`distrl launch`: a Launchpad program of the user's own, with our supervision."""

import importlib
import importlib.util
import math
import os
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from absl import flags, logging

from distrl.errors import ConfigError
from distrl.launch.cli.import_file import append_to_path, import_file, made
from distrl.launch.launch_types import LAUNCH_TYPES, LOCAL_MP, TERMINALS
from distrl.launch.paths import file_and_name
from distrl.launch.run_dir.folder import open_program_folder
from distrl.launch.supervision.restart_policy import HangLimits, RestartPolicy
from distrl.launch.supervision.result import EXIT_FINISHED
from distrl.runtime.durations import check_duration
from distrl.runtime.jax_import import no_garbage_collection
from distrl.runtime.process_exit import exit_at_once
from distrl.runtime.working_folder import shown

USAGE = """usage: distrl launch FILE.py:NAME [flags] [-- flags of the program]
       distrl launch MODULE:NAME [flags] [-- flags of the program]

NAME is an lp.Program, or a function that returns one and needs no arguments; `make_program`
unless given. The program's own flags (absl) may stand among ours; after `--` all are its own.
"""
_DEFAULT_NAME = "make_program"
_RESTARTS = 100  # restarts of a node whose group is named without a number
_HELP = ("--help", "-help", "-h", "--helpfull", "--helpshort")


def launch(arguments: list[str]) -> int:
    """Runs a program.

    Args:
      arguments: the command, the program and its flags.

    Returns:
      The exit status.

    Raises:
      ConfigError, flags.Error: bad input, refused before anything is started.
    """
    values = _define_flags()
    if any(argument in _HELP for argument in arguments):
        print(f"{USAGE}\n{values.module_help(__name__)}")
        return EXIT_FINISHED
    target, program_flags = _parse(values, arguments)
    for limit in ("idle_limit", "busy_limit", "stopped_limit"):
        check_duration(f"--{limit}", values[limit].value, zero=True)
    if importlib.util.find_spec("launchpad") is None:
        raise ConfigError(
            "launch: Launchpad is not installed; it supports Python 3.10 only, and this is "
            f"{sys.version.split()[0]}"
        )
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    with no_garbage_collection():
        import launchpad as lp

        module, name = _import_target(target)
    _parse_program_flags(target, program_flags, values.lp_launch_type)
    program = _made(module, name, target)
    if not isinstance(program, lp.Program):
        raise ConfigError(
            f"launch: {name} of {target} must be an lp.Program or a function that returns one; got "
            f"{type(program).__name__}"
        )
    launch_type = values.lp_launch_type
    resources = _local_resources(module, values.local_resources, target)
    if resources and launch_type != LOCAL_MP:
        raise ConfigError(
            f"--local_resources: --lp_launch_type={launch_type} runs nodes as threads, which share "
            f"one environment; use --lp_launch_type={LOCAL_MP}"
        )
    policies = _restart_policies(values.restart, list(program.groups))
    from distrl.launch.local.debugging import Debug
    from distrl.launch.local.launch import launch as launch_program

    debug = Debug.of_flag(values.debug, launch_type)
    run_dir = open_program_folder(values.run_dir, program.name, arguments)
    print(f"distrl: {program.name}; everything is written to {shown(run_dir)}", flush=True)
    notice = flags.FLAGS.lp_termination_notice_secs
    result = launch_program(
        program,
        launch_type,
        run_dir=run_dir,
        local_resources=resources,
        terminal=values.terminal,
        stop_grace=dict.fromkeys(program.groups, math.inf if notice < 0 else float(notice)),
        restart_policies=policies,
        limits=HangLimits(
            values.idle_limit or None, values.busy_limit or None, values.stopped_limit or None
        ),
        debug=debug,
        may_return=program.groups,
        hide_gpus=False,
    )
    if launch_type != LOCAL_MP:  # threads that do not end would keep an ordinary exit waiting
        exit_at_once(result.exit_code)
    return result.exit_code


def _define_flags() -> flags.FlagValues:
    """Returns our flags, apart from the program's: both may have one of the same name."""
    values = flags.FlagValues()
    defined: dict[str, Any] = {"flag_values": values, "module_name": __name__}
    flags.DEFINE_string(
        "run_dir", None, "Folder to write logs, status and result to; a new one in runs/ unless "
        "given.", **defined,
    )  # fmt: skip
    flags.DEFINE_enum(
        "lp_launch_type", LOCAL_MP, LAUNCH_TYPES,
        "Launchpad's launch type: processes, threads, or threads for tests.", **defined,
    )  # fmt: skip
    flags.DEFINE_enum(
        "terminal", TERMINALS[0], TERMINALS,
        "Where to show the nodes' output, which is always in their log files too.", **defined,
    )  # fmt: skip
    flags.DEFINE_list(
        "restart", [], "GROUP or GROUP=N, several with commas: groups whose nodes are restarted "
        f"when they fail or hang, each at most N times ({_RESTARTS}). A failure of any other node "
        "ends the program.", **defined,
    )  # fmt: skip
    flags.DEFINE_string(
        "local_resources", None, "NAME, beside the program: a mapping from group (or node, "
        "'actor/0') to environment variables, as an lp PythonProcess or a mapping.", **defined,
    )  # fmt: skip
    limits = HangLimits()
    flags.DEFINE_float(
        "idle_limit", limits.idle, "Seconds after which a node that makes no progress and uses no "
        "CPU counts as hung; 0: never.", lower_bound=0.0, **defined,
    )  # fmt: skip
    flags.DEFINE_float(
        "busy_limit", limits.busy, "Seconds after which a node that makes no progress and uses the "
        "CPU counts as hung; 0: never.", lower_bound=0.0, **defined,
    )  # fmt: skip
    flags.DEFINE_float(
        "stopped_limit", limits.stopped, "Seconds after which a node that a signal has stopped "
        "counts as hung; 0: never.", lower_bound=0.0, **defined,
    )  # fmt: skip
    flags.DEFINE_string(
        "debug", None, "NODE (such as actor/0): run this node in the terminal, where breakpoint() "
        "and an exception open pdb. NODE:PORT: for an editor's debugpy. `all`: with threads.",
        **defined,
    )  # fmt: skip
    values.set_gnu_getopt(True)
    return values


def _parse(values: flags.FlagValues, arguments: list[str]) -> tuple[str, list[str]]:
    """Parses our flags; returns the program's file or module, and its own flags."""
    end = arguments.index("--") if "--" in arguments else len(arguments)
    rest = values(arguments[:end], known_only=True)[1:]  # without our flags and their values
    target = next((argument for argument in rest if not argument.startswith("-")), None)
    if target is None:
        raise ConfigError("launch: name a program, as in `distrl launch FILE.py:NAME`")
    rest.remove(target)
    return target, [*rest, *arguments[end + 1 :]]


def _import_target(target: str) -> tuple[ModuleType, str]:
    """Imports the file or module that a target names; returns it and the name in it."""
    where, name = file_and_name(target)
    if where.endswith(".py") or os.sep in where:
        return import_file(where, "launch"), name or _DEFAULT_NAME
    append_to_path(os.getcwd())
    try:
        return importlib.import_module(where), name or _DEFAULT_NAME
    except ModuleNotFoundError as error:
        missing = error.name or ""
        if where != missing and not where.startswith(f"{missing}."):
            raise  # one of its own imports
        raise ConfigError(f"launch: no module {missing!r}, and {where!r} is no .py file") from None


def _parse_program_flags(target: str, arguments: list[str], launch_type: str) -> None:
    """Parses the flags that the program's modules and Launchpad define, as `absl.app.run` does."""
    flags.FLAGS.set_default("lp_launch_type", launch_type)  # a program may ask for it
    left = flags.FLAGS([target, *arguments])[1:]
    if left:
        raise ConfigError(f"unexpected argument {left[0]!r}; flags are written --name=value")
    if flags.FLAGS["verbosity"].using_default_value:
        logging.set_verbosity(logging.INFO)
    logging.use_absl_handler()


def _made(module: ModuleType, name: str, target: str) -> Any:
    """Returns what `name` is in the module, or what the function of that name returns."""
    if not hasattr(module, name):
        raise ConfigError(f"launch: {target} defines no {name!r}")
    return made(getattr(module, name), f"launch: {name} of {target}")


def _local_resources(module: ModuleType, name: str | None, target: str) -> Mapping[str, Any]:
    if name is None:
        return {}
    resources = _made(module, name, target)
    if not isinstance(resources, Mapping):
        raise ConfigError(
            f"--local_resources: {name} of {target} must be a mapping from groups to environment "
            f"variables; got {type(resources).__name__}"
        )
    return resources


def _restart_policies(entries: list[str], groups: list[str]) -> dict[str, RestartPolicy]:
    """Returns the policies that --restart names."""
    policies = {}
    for entry in entries:
        group, separator, number = entry.partition("=")
        if group not in groups:
            raise ConfigError(
                f"--restart: no group {group!r}; the program's groups are {', '.join(groups)}"
            )
        if separator and not number.isdecimal():
            raise ConfigError(f"--restart={entry}: expected a number of restarts after '='")
        policies[group] = RestartPolicy(int(number) if separator else _RESTARTS)
    return policies
