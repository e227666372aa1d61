"""Flags of several machines are refused where they would be ignored."""

import copy
import json

import pytest
from absl import flags

from distrl.launch.cli import machine_flags
from distrl.launch.cli.auto import without_measuring
from distrl.launch.cli.read_command import read_command
from distrl.programs import AUTO

ON_MACHINES = ["--topology=multi_machine", "--hosts=a,b"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["--topology=heavy_env", "--hosts=a,b"],
            "--hosts is for several machines, and would be ignored with --topology=heavy_env; use "
            "--topology=multi_machine, or leave it out",
        ),
        (["--topology=heavy_env", "--launcher=slurm"], "--launcher is for several machines"),
        (["--topology=single_process", "--join_wait=0"], "--join_wait is for several machines"),
        (["--topology=light_env", "--light"], "--light is for several machines"),
        (["--light"], "--light is for several machines, and would be ignored with --topology=auto"),
        (
            [*ON_MACHINES, "--launcher=commands", "--ray=h:1"],
            "--ray would be ignored with --launcher=commands; use --launcher=ray, or leave it out",
        ),
        (
            ["--hosts=a,b", "--image=x"],
            "--image would be ignored with --launcher=ssh; use --launcher=kubernetes, or",
        ),
        (
            [*ON_MACHINES, "--credentials=x"],
            "--credentials would be ignored with --launcher=ssh; use --launcher=join or commands",
        ),
    ],
)
def test_what_would_be_ignored_is_refused(status_of, tmp_path, capsys, words, message):
    run_dir = tmp_path / "run"
    assert status_of("train", "--env=CartPole-v1", *words, f"--run_dir={run_dir}") == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"distrl: {message}")
    assert not run_dir.exists()


def read(*words):
    values = copy.deepcopy(flags.FLAGS)
    for name in values:
        values[name].unparse()
    return read_command(["distrl train", "--env=CartPole-v1", *words], values), values


def test_hosts_say_that_there_are_several_machines_also_where_nothing_is_measured():
    """As `distrl graph` and sweeps choose a topology."""
    command, values = read("--hosts=a,b")
    assert command.topology == AUTO
    assert without_measuring(command.experiment, values) == "multi_machine"


def test_what_turns_something_off_is_taken():
    command, _ = read("--topology=heavy_env", "--light=False", "--nokeep_daemons")
    assert command.topology == "heavy_env"


def test_settings_of_a_run_on_machines_are_taken_on_one(tmp_path):
    config = tmp_path / "config.json"
    words = ["distrl train", "--agent=dqn", "--hosts=a,b", "--launcher=commands", "--light"]
    config.write_text(json.dumps({"command": words, "topology": "multi_machine", "experiment": {}}))
    command, values = read(f"--config_file={config}", "--topology=heavy_env")
    assert not {"--hosts=a,b", "--launcher=commands", "--light"} & set(command.arguments)
    assert "--agent=dqn" in command.arguments
    assert (values.hosts, values.launcher, values.light) == (None, "ssh", False)


def test_flags_of_a_runs_launcher_are_left_out_with_another(tmp_path):
    config = tmp_path / "config.json"
    words = ["distrl train", "--hosts=a,b", "--launcher=commands", "--join_address=a"]
    config.write_text(json.dumps({"command": words, "topology": "multi_machine", "experiment": {}}))
    _, values = read(f"--config_file={config}", "--launcher=ssh")
    assert (values.hosts, values.join_address) == ("a,b", None)
    _, values = read(f"--config_file={config}")
    assert (values.launcher, values.join_address) == ("commands", "a")


def test_the_help_of_a_flag_says_which_launchers_take_it():
    for name, launchers in machine_flags._FOR.items():
        assert set(launchers) <= set(machine_flags.LAUNCHERS)
        assert flags.FLAGS[name].help.startswith(f"--launcher={', '.join(launchers)}: ")
