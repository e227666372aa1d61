"""`distrl train --launcher=kubernetes`: the file that it writes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")
pytest.importorskip("cryptography")

COMMAND = (
    "train", "--topology=multi_machine", "--launcher=kubernetes", "--image=distrl:1",
    "--name=first-run", "--storage=claim:runs",
)  # fmt: skip
OWN = "from distrl import presets\nexperiment = presets.experiment('CartPole-v1', 'impala')\n"
HOSTS = "h1:cores=8:memory_gb=32,h2:cores=8:memory_gb=1.5"


@pytest.fixture
def jobs(
    status_of: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., dict[str, Any]]:
    """Runs the command with more flags; returns the specifications of its Jobs, by host."""
    monkeypatch.chdir(tmp_path)

    def made(*flags: str) -> dict[str, Any]:
        assert status_of(*COMMAND, *flags) == 0
        documents = yaml.safe_load_all(Path("first-run.yaml").read_text())
        return {
            document["metadata"]["name"].removeprefix("first-run-"): document["spec"]
            for document in documents
            if document["kind"] == "Job"
        }

    return made


def arguments(job: dict[str, Any]) -> list[str]:
    (container,) = job["template"]["spec"]["containers"]
    return container["args"]


def test_the_launcher_in_its_pod_has_the_hosts_as_they_were_named(jobs: Callable[..., Any]):
    settings = ("--env=CartPole-v1", "--config.learner.num_gradient_workers=2")
    launcher = arguments(jobs(*settings, f"--hosts={HOSTS}:gradient_workers=2")["launcher"])
    assert (
        "--hosts=h1:address=h1.first-run:cores=8:memory_gb=32.0,"
        "h2:address=h2.first-run:cores=8:memory_gb=1.5:gradient_workers=2"
    ) in launcher
    assert {*settings, "--keep_daemons"} < set(launcher)


@pytest.mark.parametrize(
    ("flags", "seconds"), [((), 3600), (("--join_wait=86400",), 86400), (("--join_wait=0",), 0)]
)
def test_pods_have_long_to_start(jobs: Callable[..., Any], flags: tuple[str, ...], seconds: int):
    launcher = arguments(jobs(f"--hosts={HOSTS}", *flags)["launcher"])
    waits = [word for word in launcher if word.startswith("--join_wait")]
    assert waits == [f"--join_wait={seconds}.0"]


def test_a_host_without_nodes_has_no_pod(jobs: Callable[..., Any]):
    made = jobs("--config.actors.num_actors=1", f"--hosts={HOSTS},h3:cores=16:memory_gb=1")
    assert list(made) == ["h1", "h3", "launcher"]
    (hosts,) = [each for each in arguments(made["launcher"]) if each.startswith("--hosts=")]
    assert "h2" not in hosts


def test_the_launcher_in_its_pod_needs_no_file_of_settings(jobs: Callable[..., Any]):
    Path("settings.yaml").write_text("seed: 7\nconfig: {actors: {num_actors: 1}}\n")
    launcher = arguments(jobs(f"--hosts={HOSTS}", "--config_file=settings.yaml")["launcher"])
    assert {"--seed=7", "--config.actors.num_actors=1"} < set(launcher)
    assert "settings.yaml" not in " ".join(launcher)


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--run_dir=/runs/mine", "the run folder is /runs/first-run, after --name; leave"),
        ("--experiment=own.py", "give an absolute path, at which the image has the file"),
    ],
)
def test_what_a_pod_does_not_have_is_refused(
    status_of: Callable[..., int],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flag: str,
    message: str,
):
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(OWN)
    assert status_of(*COMMAND, f"--hosts={HOSTS}", flag) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"distrl: {flag}: ") and message in line
    assert not Path("first-run.yaml").exists()


def test_an_experiment_is_where_the_image_has_it(jobs: Callable[..., Any], tmp_path: Path):
    path = tmp_path / "own.py"
    path.write_text(OWN)
    launcher = arguments(jobs(f"--hosts={HOSTS}", f"--experiment={path}")["launcher"])
    assert f"--experiment={path}" in launcher
