"""The command line: what it refuses, in one line, and how it parses settings."""

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from absl import flags
from dm_env import specs as dm_specs

from distrl import specs
from distrl.errors import ConfigError
from distrl.launch.cli import config_flags
from distrl.launch.run_dir.config_dict import as_dict
from distrl.replay.buffer import ReplayConfig
from distrl.replay.shared.announce import announced
from distrl.replay.shared.table import SharedTable
from distrl.version import __version__
from tests.support.commands import EXPERIMENTS, ROOT, needs_launchpad

BREAKING = EXPERIMENTS / "breaking.py"
BUSY_S = 60.0  # some 3 s on an idle machine


def distrl(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess:
    paths = filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))
    return subprocess.run(
        [sys.executable, "-m", "distrl", *arguments],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
        timeout=BUSY_S,
        check=False,
    )


BAD = {
    "command": (
        ["trian"],
        "unknown command 'trian'; choose from: train, status, actors, stacks, tables, agent",
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
        "replay has no setting 'error_bufer'; did you mean 'error_buffer'?",
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
        "replay.backend: no 'reverv'; did you mean 'reverb'?",
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
    "range": (
        ["train", "--config.learner.batch_size=0"],
        "learner.batch_size must be 1 or more, got 0",
    ),
    "queue": (
        ["train", "--config.learner.batch_size=512"],
        "replay.max_size=128 unrolls can never hold a batch of 512: replay.max_size must be at "
        "least 512",
    ),
    "observation": (
        ["train", f"--experiment={BREAKING}:at_once"],
        "broken: first observation: expected float32[4], got float32[3]",
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


@needs_launchpad
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
        timeout=BUSY_S,
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


@dataclasses.dataclass(frozen=True)
class Inner:
    """Sizes.

    Attributes:
      size: Number of things,
        1 or more.
      rate, widths: Two others.

    Nothing more.
    """

    size: int = 3
    rate: float = 0.5
    widths: tuple[int, ...] = (64, 64)

    def __post_init__(self):
        if self.size < 1:
            raise ConfigError(f"inner.size must be 1 or more, got {self.size}")


@dataclasses.dataclass(frozen=True)
class Settings:
    inner: Inner = Inner()
    limit: int | None = None
    goal: float | str | None = "auto"
    name: str = "task"
    on: bool = False
    function: object = print  # no setting of a command line


@pytest.fixture
def values():
    """absl's flags, without those of the settings afterwards: absl knows one set of flags."""
    before = set(flags.FLAGS)
    config_flags.define_flags(Settings())
    made = flags.FLAGS
    yield made
    for name in set(flags.FLAGS) - before:
        delattr(flags.FLAGS, name)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("inner.size", "Number of things, 1 or more."),
        ("inner.rate", "Two others."),
        ("inner.widths", "Two others."),
        ("limit", "int or None"),  # not described
    ],
)
def test_a_setting_is_described_by_its_docstring(values, name, text):
    assert values[f"config.{name}"].help == text


@pytest.mark.parametrize(
    ("argument", "path", "value"),
    [
        ("--config.inner.size=7", "inner.size", 7),
        ("--config.inner.size=1e6", "inner.size", 1_000_000),
        ("--config.inner.rate=2", "inner.rate", 2.0),
        ("--config.inner.rate=1e-3", "inner.rate", 0.001),
        ("--config.inner.widths=(32, 16)", "inner.widths", (32, 16)),
        ("--config.inner.widths=[32]", "inner.widths", (32,)),
        ("--config.inner.widths=32", "inner.widths", (32,)),
        ("--config.limit=5", "limit", 5),
        ("--config.limit=None", "limit", None),
        ("--config.goal=None", "goal", None),
        ("--config.goal=475", "goal", 475.0),
        ("--config.goal=auto", "goal", "auto"),
        ("--config.name=3", "name", "3"),
        ("--config.on=true", "on", True),
        ("--config.on=False", "on", False),
    ],
)
def test_settings_are_read_by_their_type(values, argument, path, value):
    values(["distrl", argument])
    old = Settings()
    new = config_flags.apply_flags(old, values)
    found = new
    for part in path.split("."):
        found = getattr(found, part)
    assert found == value
    assert type(found) is type(value)
    untouched = "inner" if "." not in path else "goal"
    assert getattr(new, untouched) == getattr(old, untouched)


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("--config.inner.size=1.5", "expected int, got '1.5'"),
        ("--config.inner.size=None", "expected int, got 'None'"),
        ("--config.inner.size=True", "expected int, got 'True'"),
        ("--config.inner.rate=fast", "expected float, got 'fast'"),
        ("--config.limit=x", "expected int or None, got 'x'"),
        ("--config.on=3", "expected bool, got '3'"),
        ("--config.function=print", "Unknown command line flag 'config.function'"),
    ],
)
def test_settings_of_another_type_are_refused(values, argument, message):
    with pytest.raises(flags.Error, match=message):
        values(["distrl", argument])


def test_nothing_given_changes_nothing(values):
    values(["distrl"])
    settings = Settings()
    assert config_flags.apply_flags(settings, values) is settings


def test_a_dataclass_checks_what_is_given(values):
    values(["distrl", "--config.inner.size=0"])
    with pytest.raises(ConfigError, match="size must be 1 or more, got 0"):
        config_flags.apply_flags(Settings(), values)


def test_settings_as_a_file_has_them():
    written = as_dict(Settings())
    assert written["inner"] == {"size": 3, "rate": 0.5, "widths": (64, 64)}
    assert written["limit"] is None
    assert written["function"] == "print"


def test_tables_shows_how_a_table_stands(tmp_path):
    struct = specs.trajectory_struct(
        specs.EnvironmentSpec(
            dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(2, np.int32)
        ),
        (),
        (),
    )
    config = ReplayConfig("prioritized", 4, max_size=8)
    name = f"shown-{os.getpid()}"
    table = SharedTable.create(struct, config, 2, name)
    try:
        done = distrl(tmp_path, "tables", name)
        changes = ("--set", "table=uniform", "--set=samples_per_insert=4")
        changed = distrl(tmp_path, "tables", name, *changes)
        assert (table.info().limits.samples_per_insert, table.config.table) == (4.0, "uniform")
        refused = distrl(tmp_path, "tables", name, "--set", "error_buffer=1")
    finally:
        table.close()
    assert done.returncode == 0, done.stderr
    assert changed.returncode == 0, changed.stderr
    assert "inserts * 4 - samples" in changed.stdout
    assert refused.returncode == 2
    assert "error_buffer=1.0 must be at least max(1, samples_per_insert) = 4" in refused.stderr
    counts, contents = done.stdout.splitlines()
    assert counts.startswith(f"table '{name}': size 0 of 8, 0 inserts, 0 samples; ")
    assert counts.endswith(f"made by process {os.getpid()}")
    assert contents.startswith("  0.0 MB of ")


def test_tables_finds_reverb_servers(tmp_path):
    reverb = pytest.importorskip("reverb", reason="dm-reverb is not installed")
    from distrl.replay.reverb.server import about_tables, reverb_tables

    struct = specs.trajectory_struct(
        specs.EnvironmentSpec(
            dm_specs.Array((4,), np.float32), dm_specs.DiscreteArray(2, np.int32)
        ),
        (),
        (),
    )
    config = ReplayConfig("uniform", 4, max_size=8)
    name = f"served-{os.getpid()}"
    server = reverb.Server(reverb_tables(config, struct, 2, name))
    about = about_tables(config, struct, f"127.0.0.1:{server.port}")
    try:
        with announced(name, about):
            shown = distrl(tmp_path, "tables", name)
            refused = distrl(tmp_path, "tables", name, "--set=min_size_to_sample=2")
    finally:
        server.stop()
    gone = distrl(tmp_path, "tables", name)
    assert shown.returncode == 0, shown.stderr
    counts, contents = shown.stdout.splitlines()
    assert counts.startswith(f"table '{name}': size 0 of 8, 0 inserts, 0 samples; ")
    assert contents.endswith("; uniform")
    assert refused.returncode == 2
    assert "Reverb fixes a table's rate limiter and sampler" in refused.stderr
    assert "with replay.backend=shared_memory they can be" in refused.stderr
    assert gone.returncode == 2 and f"no table '{name}'" in gone.stderr
