"""Command lines of the documentation: taken by the real command line until it would start."""

import contextlib
import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from distrl.launch.cli import auto, multi_machine
from distrl.launch.command_table import COMMANDS
from distrl.launch.commands import completion, host_daemon, tables, train
from distrl.launch.commands import launch as launch_command
from distrl.launch.graph import graph
from distrl.launch.sweep import sweep
from tests.support.commands import ROOT

OTHERS = {
    "docker": "needs Docker",
    "eval": "is the shell's",
    "git": "needs a repository on a server",
    "kubectl": "needs a Kubernetes cluster",
    "pip": "installs packages",
    "pre-commit": "is not installed",
    "pyenv": "installs a Python",
    "python3.10": "creates an environment",
    "python3.12": "creates an environment",
    "ulimit": "changes the shell's limits",
    "uv": "installs packages",
}
"""Programs whose lines cannot run in a test, and why."""

# Words of a form such as `distrl actors RUN N`, and what stands for them.
_FORMS = {
    "N": "3",
    "COMMAND": "list",
    "FOLDER": "runs",
    "--experiment=FILE.py": "--experiment=my_experiment.py",
}


class Started(Exception):
    """The command line has taken everything, and would start now."""


def stop_where_programs_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes each command raise `Started` in the place of its work, on a machine with two GPUs."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("JAX_PLATFORMS", "cuda,cpu")

    def start(*_: Any, **__: Any) -> NoReturn:
        raise Started

    for module, name in (
        (train, "_open_run"),
        (auto, "measure_in_fork"),
        (train, "run_single_process"),
        (train, "_import_topology"),
        (multi_machine, "_submit"),
        (multi_machine.ray_cluster, "cluster_address"),
        (launch_command, "_import_target"),
        (host_daemon, "dial"),
        (sweep, "Runner"),
        (sweep, "_show"),
        (graph, "draw"),
        (tables.segment, "existing"),
        (completion, "_read_words"),
    ):
        assert hasattr(module, name)
        monkeypatch.setattr(module, name, start)
    for command in COMMANDS.values():
        module = importlib.import_module(f"distrl.launch.{command.module}")
        for name in ("Player", "load_run", "read_status", "run_with_snapshot"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, start)


def check(words: list[str], run: Callable[..., int]) -> str:
    """Checks a command line.

    Args:
      words: the command line.
      run: runs a command of `distrl` in this process, and returns its exit status.

    Returns:
      Why it was not run; "" if it was taken.

    Raises:
      AssertionError: it is refused.
    """
    while re.fullmatch(r"\w+=\S*", words[0]):  # a variable
        words = words[1:]
    program, *rest = words
    program = Path(program).name
    if program == "distrl" or (program == "python" and rest[:2] == ["-m", "distrl"]):
        _check_distrl(rest if program == "distrl" else rest[2:], run)
    elif program == "make":
        _check_make(rest)
    elif program == "python" and rest[0].endswith(".py"):
        _check_script(rest)
    elif program == "python" and rest[:2] == ["-m", "pytest"]:
        return "runs the tests"
    else:
        assert program in OTHERS, f"no test knows the program {program}"
        return OTHERS[program]
    return ""


def _check_distrl(arguments: list[str], run: Callable[..., int]) -> None:
    arguments = [_FORMS.get(word, word) for word in arguments if not word.endswith("...")]
    if len(arguments) == 1 and arguments[0] in COMMANDS:
        return  # only its name
    with contextlib.suppress(Started):
        assert run(*arguments) == 0


def _check_make(arguments: list[str]) -> None:
    text = (ROOT / "Makefile").read_text("utf-8")
    targets = set(re.findall(r"^([\w-]+):", text, re.MULTILINE))
    variables = set(re.findall(r"^(?:export )?(\w+) \?=", text, re.MULTILINE))
    for word in arguments:
        name, equals, _ = word.partition("=")
        assert name in (variables if equals else targets) or word == "...", f"make {word}"


def _check_script(arguments: list[str]) -> None:
    """A script of this project exists, and defines the flags."""
    path, *flags = arguments
    text = (ROOT / path).read_text("utf-8")
    for flag in flags:
        name = flag.partition("=")[0]
        assert not name.startswith("--") or f'"{name}"' in text, f"{path} has no {name}"
