"""The wheel and the sdist: what is in them, and that an installed wheel trains."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

import distrl

ROOT = Path(__file__).resolve().parents[1]
BUSY_S = 110.0


def run(command: list[str], cwd: Path, **environment: str) -> str:
    """Runs a command without this checkout on its path, and returns its stdout."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command,
        cwd=cwd,
        env={**kept, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=BUSY_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def build_wheel(source: Path, target: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    run([*pip, "--wheel-dir", str(target), "."], source)
    (wheel,) = target.glob("*.whl")
    return wheel


def files_of(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout's sources, for the build's own files not to lie in it."""
    folder = tmp_path_factory.mktemp("source") / "distrl"
    skipped = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info")

    def ignored(directory: str, names: list[str]) -> set[str]:
        outputs = {"build", "dist", "runs"} if Path(directory) == ROOT else set()
        return skipped(directory, names) | outputs.intersection(names)

    shutil.copytree(ROOT, folder, symlinks=True, ignore=ignored)
    return folder


@pytest.fixture(scope="module")
def wheel(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(source, tmp_path_factory.mktemp("wheel"))


def test_the_changelog_has_this_version():
    changelog = (ROOT / "CHANGELOG.md").read_text("utf-8")
    released = re.findall(r"^## \[(\d[^]]*)\]", changelog, re.MULTILINE)
    assert released[0] == distrl.__version__


@pytest.mark.full
def test_the_extra_video_has_what_gymnasium_draws_with_and_is_pinned():
    (line,) = re.findall(r"^video = \[(.*)\]$", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    video = set(re.findall(r'"([\w-]+)', line))
    lines = [each for each in metadata.requires("gymnasium") or () if "classic-control" in each]
    needed = {re.split(r"[^\w-]", each)[0] for each in lines} - {"gymnasium"}  # its own extras
    assert needed and needed <= video
    for name in ("py310.txt", "py311plus.txt"):
        pins = (ROOT / "requirements" / name).read_text()
        assert video <= set(re.findall(r"^([\w-]+)==", pins, re.MULTILINE))


def test_the_wheel_has_the_three_floors_and_nothing_else(wheel):
    expected = {
        (name / path.relative_to(floor)).as_posix()
        for name, floor in (
            (Path("distrl"), ROOT / "distrl"),
            (Path("distrl/programs"), ROOT / "programs"),
            (Path("distrl/launch"), ROOT / "launch"),
        )
        for path in floor.rglob("*.py")
    }
    assert files_of(wheel) == {*expected, "distrl/py.typed"}


@pytest.mark.full
def test_the_sdist_builds_the_same_wheel(source, wheel, tmp_path):
    run([sys.executable, "setup.py", "-q", "sdist", "--dist-dir", str(tmp_path)], source)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert not [member.name for member in archive if member.issym() or member.islnk()]
        archive.extractall(tmp_path)
    unpacked = sdist.with_suffix("").with_suffix("")
    assert files_of(build_wheel(unpacked, tmp_path / "wheel")) == files_of(wheel)


@pytest.mark.full
def test_an_installed_wheel_trains(wheel, tmp_path):
    site, empty = tmp_path / "site", tmp_path / "empty"
    empty.mkdir()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site)]
    run([*pip, str(wheel)], tmp_path)
    python = [sys.executable, "-m"]
    where = run([sys.executable, "-c", "import distrl; print(distrl.__file__)"], empty,
                PYTHONPATH=str(site))  # fmt: skip
    assert Path(where.strip()).is_relative_to(site)
    version = run([*python, "distrl", "--version"], empty, PYTHONPATH=str(site))
    assert version == f"distrl {distrl.__version__}\n"
    train = ["distrl", "train", "--env=CartPole-v1", "--topology=single_process"]
    run([*python, *train, "--max_env_steps=2000", "--run_dir=trained"], empty, PYTHONPATH=str(site))
    assert (empty / "trained" / "result.json").exists()
    assert {path.name for path in empty.iterdir()} == {"trained"}
    assert (site / "bin" / "distrl").exists()
