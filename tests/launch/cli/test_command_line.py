"""The command line: bad input is refused in one line; the version and the help."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from distrl.launch.command_table import A_RUN, COMMANDS, Command
from distrl.launch.commands import completion, train
from distrl.presets import AGENTS
from distrl.programs import placement
from distrl.version import __version__
from tests.support.commands import EXPERIMENTS, ROOT, distrl

BREAKING = EXPERIMENTS / "breaking.py"

BAD = {
    "command": (
        ["trian"],
        "unknown command 'trian'; choose from: train, launch, doctor, list, status, top, logs, "
        "stop, eval, play, video, report, plot, compare, sweep, graph, actors, stacks, profile, "
        "tables, completion, host-daemon",
    ),
    "environment": (
        ["train", "--env=CartPol-v1"],
        "environment: there is no 'CartPol-v1'; did you mean CartPole-v1",
    ),
    "agent": (["train", "--agent=impalla"], "agent: no 'impalla'; did you mean impala?"),
    "table": (
        ["tables", "nothing"],
        "tables: no table 'nothing' on this machine; existing tables: ",
    ),
    "table's setting": (
        ["tables", "nothing", "--set", "error_bufer=3"],
        "replay has no setting 'error_bufer'; did you mean error_buffer?",
    ),
    "table's value": (
        ["tables", "nothing", "--set=error_buffer=much"],
        "error_buffer: expected float or None, got 'much'",
    ),
    "table's size": (
        ["tables", "nothing", "--set=max_size=7"],
        "replay.max_size of a live table is fixed; these can be changed: table, ",
    ),
    "backend": (
        ["train", "--config.replay.backend=reverv"],
        "replay.backend: expected one of auto, shared_memory, served, reverb; got 'reverv'; "
        "did you mean reverb?",
    ),
    "topology": (
        ["train", "--topology=ligth_env"],
        "topology: unknown name 'ligth_env'; did you mean light_env?",
    ),
    "flag": (
        ["train", "--topologi=single_process"],
        "Unknown command line flag 'topologi'. Did you mean: topology ?",
    ),
    "setting": (
        ["train", "--config.learner.batchsize=3"],
        "Unknown command line flag 'config.learner.batchsize'. Did you mean: "
        "config.learner.batch_size ?",
    ),
    "type": (
        ["train", "--config.learner.batch_size=x"],
        "flag --config.learner.batch_size=x: expected int, got 'x'",
    ),
    "budget": (
        ["train", "--max_env_steps=0.5"],
        "flag --max_env_steps=0.5: expected int, got '0.5'",
    ),
    "range": (
        ["train", "--config.learner.batch_size=0"],
        "learner.batch_size must be a whole number, 1 or more; got 0",
    ),
    "queue": (
        ["train", "--config.learner.batch_size=512", "--config.replay.max_size=128"],
        "replay.max_size=128 unrolls can never hold a batch of 512: replay.max_size must be at "
        "least 512",
    ),
    "observation": (
        ["train", f"--experiment={BREAKING}:at_once"],
        "broken: first observation: expected float32[4], got float32[3]",
    ),
    "agent of a file": (
        ["train", f"--experiment={BREAKING}:at_once", "--agent=dqn"],
        "--agent and --experiment exclude each other: the file names its agent",
    ),
    "open ports": (
        ["train", "--coordinator_address=10.0.0.1:4000", "--num_processes=2", "--process_id=0"],
        "--coordinator_address=10.0.0.1:4000: the ports of JAX and gloo or NCCL have no encryption",
    ),
    "policies of several processes": (
        [
            "train",
            f"--experiment={EXPERIMENTS / 'population.py'}",
            "--num_processes=2",
            "--coordinator_address=10.0.0.1:4000",
            "--process_id=0",
            "--open_learner_ports",
        ],
        "--num_processes=2: an experiment with `policies` learns in one process; leave out "
        "--coordinator_address, --num_processes, --process_id",
    ),
    "no folder": (
        ["train", "--run_dir="],
        "--run_dir: empty; name a folder, or leave it out for a new one in runs/",
    ),
    "no folder of a sweep": (
        ["sweep", "--dir=", "--grid", "config.agent.discount=0.9,0.99"],
        "--dir: empty; name a folder, or leave it out for a new one in runs/",
    ),
    "file at home": (
        ["train", "--config_file=~/no_such.json"],
        f"--config_file: {Path.home()}/no_such.json",
    ),
    "no home": (
        ["train", "--run_dir=~no_such_user/x"],
        "--run_dir: ~no_such_user/x: the home folder ~no_such_user is not known; give the path",
    ),
    "folder": (
        ["train", "--topology=single_process", f"--run_dir={__file__}"],
        f"--run_dir: {__file__} cannot be a folder: ",
    ),
}


def bad_arguments(case: str) -> list[str]:
    arguments, _ = BAD[case]
    if arguments[0] == "train":  # the same for all topologies; this one needs no Launchpad
        return [*arguments[:1], "--topology=single_process", *arguments[1:]]
    return arguments


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(status_of, tmp_path, capsys, case):
    assert status_of(*bad_arguments(case)) == 2
    out, err = capsys.readouterr()
    assert err.startswith(f"distrl: {BAD[case][1]}")
    assert err.count("\n") == 1
    assert out == ""
    assert not list(tmp_path.iterdir())  # no run folder


@pytest.mark.parametrize("case", ["command", "range"])
def test_bad_input_ends_the_process_with_status_2(tmp_path, case):
    done = distrl(tmp_path, *bad_arguments(case))
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(f"distrl: {BAD[case][1]}")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
    assert not list(tmp_path.iterdir())


@pytest.mark.full
def test_what_cannot_be_forked_is_refused_in_one_line(tmp_path):
    experiment = tmp_path / "devices.py"
    experiment.write_text(
        "import jax\n"
        "from distrl import presets\n"
        "jax.devices()\n"
        "experiment = presets.experiment('CartPole-v1')\n"
    )
    done = distrl(tmp_path, "train", f"--experiment={experiment}", "--topology=heavy_env")
    assert done.returncode == 2, done.stderr
    assert done.stderr.startswith(
        "distrl: local_mp forks this process, and JAX has already created its"
    )
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("arguments", [["-m", "distrl"], ["-m", "distrl.launch.main"]])
def test_version(tmp_path, arguments):
    done = subprocess.run(
        [sys.executable, *arguments, "--version"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60.0,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, f"distrl {__version__}\n", "")


def test_help_lists_the_settings(tmp_path):
    done = distrl(tmp_path, "train", "--help")
    assert done.returncode == 0
    assert done.stderr == ""
    for flag in ("--topology", "--lp_launch_type", "--config.learner.batch_size"):
        assert flag in done.stdout
    assert "--config.agent." in done.stdout
    assert "(default: '64')" in done.stdout
    assert "pdb_post_mortem" not in done.stdout  # absl's own
    assert f"Algorithm name: {', '.join(AGENTS)}; impala" in " ".join(done.stdout.split())


@pytest.mark.parametrize("what", ["raise SystemExit(0)", "raise KeyboardInterrupt"])
def test_an_experiment_that_ends_the_command_is_a_failure(status_of, tmp_path, capfd, what):
    (tmp_path / "breaking.py").write_text(f"{what}\n")
    assert status_of("train", "--experiment=breaking.py", "--topology=single_process") == 1
    err = capfd.readouterr().err
    assert "breaking.py" in err and "distrl: failed: " in err


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_its_function(command):
    row = COMMANDS[command]
    path = ROOT / "launch" / f"{row.module.replace('.', '/')}.py"
    assert f"\ndef {row.function}(" in path.read_text()


def test_the_help_of_every_command(status_of, capsys):
    assert status_of("help") == 0
    together = capsys.readouterr().out
    for name, row in COMMANDS.items():
        usage = f"distrl {name}"
        assert usage in together and row.help.startswith(f"usage: {usage}")
        assert status_of(name, "--help") == 0
        told = capsys.readouterr().out
        assert usage in told and (name in ("train", "launch") or told == row.help + "\n")


def test_a_command_keeps_its_old_name_unlisted(status_of, capsys):
    assert status_of("agent", "--help") == status_of("help") == 0
    daemon, listed = capsys.readouterr().out.split("usage: distrl train", 1)
    assert daemon.startswith("usage: distrl host-daemon --join=HOST:PORT")
    assert "distrl agent" not in listed and "distrl host-daemon" in listed
    assert status_of("agent") == 2
    assert capsys.readouterr().err.startswith("distrl: host-daemon: give --join=HOST:PORT")


def test_a_row_is_all_that_a_command_takes(status_of, tmp_path, capsys, monkeypatch):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "config.json").touch()
    monkeypatch.chdir(tmp_path)
    text = "usage: distrl names FOLDER\n           List the runs in a folder."
    row = Command("commands.list_runs", "list_runs", text, completes=A_RUN)
    monkeypatch.setitem(COMMANDS, "names", row)
    assert status_of("help") == 0 and "distrl names FOLDER" in capsys.readouterr().out
    assert status_of("names", "--help") == 0 and capsys.readouterr().out == text + "\n"
    assert status_of("names", "runs") == 0 and "a" in capsys.readouterr().out
    assert completion.candidates(["na"], {}) == ["names"]
    assert completion.candidates(["names", "runs/"], {}) == ["runs/a"]


def test_a_folder_that_is_gone_is_named(status_of, tmp_path, capsys, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert status_of("list") == 2
    message = "distrl: the current folder has been deleted; change to another\n"
    assert capsys.readouterr().err == message


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), "CartPole-v1 (--env names another)"),
        (("--env=CartPole-v1",), "CartPole-v1"),
        (("--experiment=of_a_user.py",), "CartPole-v1"),
    ],
)
def test_env_is_named_where_it_can_be_given(status_of, tmp_path, monkeypatch, flags, said):
    lines = "from distrl import presets\nexperiment = presets.experiment('CartPole-v1')\n"
    (tmp_path / "of_a_user.py").write_text(lines)
    names = []

    def take(experiment, arguments, values, process_group, chosen, name):
        names.append(name)
        return 0

    monkeypatch.setattr(train, "_train_in_one_process", take)
    assert status_of("train", "--topology=single_process", *flags) == 0
    assert names == [said]


def test_help_names_everything_that_hosts_takes(tmp_path):
    text = " ".join(distrl(tmp_path, "train", "--help").stdout.split())
    settings = text[text.index("--hosts:") : text.index("--image:")]
    assert [name for name in placement.HOST_SETTINGS if f"{name}: " not in settings] == []
