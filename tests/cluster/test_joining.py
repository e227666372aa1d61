"""Daemons that connect to their launcher: started by hand, in any order, and by MPI."""

import os
import shlex
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.support.cluster.hosts import Hosts
from tests.support.cluster.program import (
    CARTPOLE,
    FOR_EVER,
    ROOT,
    SOLVE_S,
    Program,
    nothing_is_left,
)
from tests.support.waiting import until

pytestmark = pytest.mark.timeout(400)
MPI = "# mpirun"


def sheet(hosts: Hosts, folder: Path, *flags: str) -> tuple[list[str], str]:
    """The command lines that `--launcher=commands` prints: the launcher's first; and mpirun's."""
    program = Program(
        hosts,
        folder,
        *CARTPOLE,
        *flags,
        "--launcher=commands",
        f"--join_address={hosts.address('h1')}",
    )
    assert program.process.wait(90.0) == 0, program.output
    lines = program.output.splitlines()
    mpirun = next(line for line in lines if line.startswith(MPI)).removeprefix("# ")
    return [line for line in lines if line.startswith("distrl ")], mpirun


def run(hosts: Hosts, host: str, line: str, output: Path):
    """As a user pastes it."""
    distrl = f"env PYTHONPATH={ROOT} {shlex.quote(sys.executable)} -m distrl"
    with output.open("ab") as file:
        command = ["sh", "-c", line.replace("distrl ", f"exec {distrl} ", 1)]
        return hosts.popen(host, command, cwd=ROOT, stdout=file, stderr=file)


def test_pasted_lines_run_in_any_order(hosts: Hosts, tmp_path: Path):
    (launcher, *daemons), _ = sheet(hosts, tmp_path)
    assert len(daemons) == 3
    (pem,) = tmp_path.glob("*.pem")
    assert pem.stat().st_mode & 0o777 == 0o600
    key = pem.read_text().splitlines()[-2]
    assert not any(key in line for line in (launcher, *daemons))
    run(hosts, "h3", daemons[2], tmp_path / "h3")
    program = run(hosts, "h1", launcher, tmp_path / "launcher")
    for number in (1, 2):
        run(hosts, f"h{number}", daemons[number - 1], tmp_path / f"h{number}")
    try:
        assert program.wait(SOLVE_S) == 0
    finally:
        print((tmp_path / "launcher").read_text()[-4000:])
    nothing_is_left(hosts)


@pytest.mark.slow
def test_a_daemon_joins_again(hosts: Hosts, tmp_path: Path):
    (launcher, *daemons), _ = sheet(hosts, tmp_path, *FOR_EVER)
    out = tmp_path / "launcher"
    program = run(hosts, "h1", launcher, out)
    for number in (1, 2, 3):
        run(hosts, f"h{number}", daemons[number - 1], tmp_path / f"h{number}")

    def wait_for(text: str, count: int = 1, limit: float = 120.0) -> None:
        until(
            lambda: out.read_text().count(text) >= count,
            lambda: f"{text!r} {count} times in\n{out.read_text()[-3000:]}",
            limit,
        )

    wait_for("first learner step")
    hosts.cut("h2")
    wait_for("host h2 is lost", limit=30.0)
    hosts.heal("h2")
    wait_for("[actor/0] actor/0: ", count=2)
    found = [p for p in hosts.processes("h1") if "--launcher=join" in p.command]
    (own,) = [p.pid for p in found if p.name == "python"]
    os.kill(own, signal.SIGINT)
    assert program.wait(60.0) == 130
    nothing_is_left(hosts)


@pytest.mark.slow
def test_daemons_wait_for_the_next_launcher(hosts: Hosts, tmp_path: Path):
    """As in Kubernetes, which evicts a launcher's pod and starts another one."""
    (launcher, *daemons), _ = sheet(hosts, tmp_path, *FOR_EVER, "--keep_daemons")
    for number in (1, 2, 3):
        run(hosts, f"h{number}", daemons[number - 1], tmp_path / f"h{number}")
    for line in (launcher, launcher.replace(" --keep_daemons", "")):
        out = tmp_path / "launcher"
        out.unlink(missing_ok=True)
        program = run(hosts, "h1", line, out)
        trains = lambda out=out: "return(100)" in out.read_text()  # noqa: E731
        until(trains, lambda out=out: out.read_text()[-3000:], 120.0)
        found = [p for p in hosts.processes("h1") if "--launcher=join" in p.command]
        (own,) = [p.pid for p in found if p.name == "python"]
        os.kill(own, signal.SIGTERM)
        assert program.wait(60.0) == 128 + signal.SIGTERM
    assert "resuming from checkpoint" in out.read_text()
    nothing_is_left(hosts)


@pytest.mark.slow
def test_mpirun_starts_the_daemons(hosts: Hosts, tmp_path: Path):
    if shutil.which("mpirun") is None:
        pytest.skip("needs mpirun (Debian: openmpi-bin)")
    (launcher, *_), mpirun = sheet(hosts, tmp_path)
    program = run(hosts, "h1", launcher, tmp_path / "launcher")
    words = shlex.split(mpirun)
    at = words.index("distrl")
    words[at : at + 1] = [
        "env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "distrl",
    ]  # fmt: skip
    ssh = f"ssh -F {hosts.ssh_config}"
    words[1:1] = ["--allow-run-as-root", "--mca", "plm_rsh_agent", ssh]
    daemons = hosts.popen("h1", words, cwd=ROOT)
    assert program.wait(SOLVE_S) == 0
    assert daemons.wait(60.0) == 0
    nothing_is_left(hosts)
