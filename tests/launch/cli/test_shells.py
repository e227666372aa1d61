"""Completion in bash, zsh and fish, as a person types."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from distrl.launch.commands import completion, completion_words
from tests.launch.commands.test_completion import KNOWN
from tests.support.commands import ROOT
from tests.support.selection import full
from tests.support.shells import Terminal

TYPED = {  # a line, | for Tab; the arguments of the command that runs then
    "distrl sw|": "sweep",
    "distrl sta|sw|": "stasw",
    "distrl eval runs/a|--tru|": "eval runs/a --trust",
    "distrl train --config.agent.r|0.5": "train --config.agent.rho=0.5",
    "distrl train --env=P|--topology=li|": "train --env=Pong-v5 --topology=light_env",
    "distrl train --agent=pp|--config.ag|0.2": "train --agent=ppo --config.agent.clip_ratio=0.2",
    "distrl train --experiment=ow|": "train --experiment=own.py",
    "distrl logs runs/a ac|-f|": "logs runs/a actor/0 -f",
    "distrl launch ow|": "launch own.py",
    "true; X=1 distrl sto|runs/a|": "stop runs/a",
    "distrl plot --out=ow|": "plot --out=own.py",
}
_SETUP = {
    "bash": ["bash", "--noprofile", "--norc", "-i"],
    "zsh": ["zsh", "-f", "-i"],
}


@pytest.fixture
def home(tmp_path):
    """A folder with a run and a script of one's own, and the command in its bin/."""
    (tmp_path / "runs" / "a" / "logs").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "config.json").touch()
    (tmp_path / "runs" / "a" / "logs" / "actor-0.log").touch()
    (tmp_path / "own.py").touch()
    (tmp_path / "distrl").mkdir()
    known = {**KNOWN, "fingerprint": completion_words.fingerprint()}
    (tmp_path / "distrl" / "completion.json").write_text(json.dumps(known))
    (tmp_path / "bin").mkdir()
    code = "import sys; import distrl.launch.main as m; "
    code += "sys.argv[0] = 'distrl'; code = m._run(sys.argv, None); "
    code += "assert not {'jax', 'numpy', 'absl'} & set(sys.modules), 'heavy'"
    command = tmp_path / "bin" / "distrl"
    command.write_text(
        f'#!/bin/sh\ncase "$1" in _complete) exec {sys.executable} -c "{code}" "$@";; esac\n'
        'echo "RAN[$*]"\n'
    )
    command.chmod(0o755)
    return tmp_path


def environment(home):
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "XDG_CACHE_HOME": str(home),
        "XDG_CONFIG_HOME": str(home / "config"),
        "XDG_DATA_HOME": str(home / "data"),
        "HOME": str(home),
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
        "TERM": "dumb",
    }


@pytest.mark.parametrize("shell", [full("bash"), full("zsh")])
@pytest.mark.timeout(300)
def test_what_is_typed_is_completed(home, shell):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    (home / "script").write_text(completion.SCRIPTS[shell])
    terminal = Terminal(_SETUP[shell], home, environment(home))
    try:
        if shell == "zsh":
            terminal.type("autoload -Uz compinit; compinit -D -u; ")
        terminal.type("PS1='> '; . ./script; echo rea''dy\n")
        terminal.wait_for("ready\r\n")
        for typed, ran in TYPED.items():
            terminal.output = ""
            terminal.type(f"{typed}\n".replace("|", "\t"))
            terminal.wait_for("RAN[")
            terminal.wait_for("]\r\n")
            assert terminal.output.rpartition("RAN[")[2].partition("]")[0].rstrip() == ran, typed
    finally:
        terminal.close()


@pytest.mark.full
@pytest.mark.timeout(300)
def test_fish_offers_the_same(home):
    if shutil.which("fish") is None:
        pytest.skip("fish is not installed")
    (home / "script").write_text(completion.SCRIPTS["fish"])
    lines = [
        "distrl sw", "distrl train --env=Cart", "distrl train --config.agent.r",
        "distrl train --topology=li", "distrl eval runs/", "distrl eval runs/a --tru",
        "distrl logs runs/a ac", "true; X=1 distrl sw", "distrl launch runs/a/",
        "distrl train --experiment=ow", "distrl launch ow",
    ]  # fmt: skip
    ask = "".join(f"complete -C '{line}'; echo .\n" for line in lines)
    done = subprocess.run(
        ["fish", "--no-config", "-c", f"source script\n{ask}"],
        cwd=home, env=environment(home), capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    answers = [part.split() for part in done.stdout.split(".\n")]
    assert answers[:-1] == [
        ["sweep"], ["--env=CartPole-v0", "--env=CartPole-v1"], ["--config.agent.rho="],
        ["--topology=light_env"], ["runs/a"], ["--trust"], ["actor/0"], ["sweep"],
        ["runs/a/config.json", "runs/a/logs/"], ["--experiment=own.py"],
        ["own.py"],
    ], done.stderr  # fmt: skip
