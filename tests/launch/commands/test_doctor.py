"""What `distrl doctor` finds, and what it says about what does not work."""

import math
import os
import resource
import shutil
from typing import NamedTuple

import pytest

from distrl.errors import ConfigError
from distrl.launch.commands import doctor
from distrl.launch.commands.doctor import Finding
from distrl.programs import substrate
from distrl.shared_memory import segment


class Usage(NamedTuple):
    total: int
    used: int
    free: int


def fails(code):
    return False, "ModuleNotFoundError: No module named 'x'"


@pytest.mark.full
def test_everything_works_here(capsys):
    assert doctor.doctor(["doctor"]) == 0
    out = capsys.readouterr().out
    assert "everything that training needs works" in out
    states = [line.split()[0] for line in out.splitlines() if ": " in line and line[0] == " "]
    assert states.count("ok") >= len(doctor.CHECKS) - 2  # but for notes about this machine
    assert "fault" not in states


def test_a_fault_is_counted_and_has_advice(monkeypatch, capsys):
    checks = (
        lambda: Finding("a", "ok", "works"),
        lambda: Finding("b", "note", "is small", "make it large"),
        lambda: Finding("c", "fault", "is gone", "bring it back"),
    )
    monkeypatch.setattr(doctor, "CHECKS", checks)
    assert doctor.doctor(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()[3:]
    assert lines == [
        "   ok  a: works",
        " note  b: is small",
        "       -> make it large",
        "fault  c: is gone",
        "       -> bring it back",
        "faults: 1",
    ]


def test_it_takes_no_arguments(status_of, capsys):
    assert status_of("doctor", "now") == 2
    assert capsys.readouterr().err == "distrl: doctor takes no arguments; got now\n"


@pytest.mark.parametrize(
    ("check", "state"),
    [
        (doctor.check_imports, "fault"),
        (doctor.check_envpool, "note"),  # gymnasium's environments are left
        (doctor.check_gpus, "fault"),
    ],
)
def test_what_cannot_be_imported(monkeypatch, check, state):
    monkeypatch.setattr(doctor, "_run", fails)
    found = check()
    assert (found.state, found.said) == (state, "ModuleNotFoundError: No module named 'x'")
    assert found.advice


def test_a_substrate_that_is_installed_and_broken(monkeypatch):
    monkeypatch.setattr(doctor, "_run", fails)
    monkeypatch.setattr(substrate, "resolve", lambda name: substrate.LAUNCHPAD)
    found = doctor.check_substrate()
    assert found.state == "fault" and found.advice.endswith("--substrate=builtin")


def test_no_substrate_leaves_one_process(monkeypatch):
    def none(name):
        raise ConfigError("install grpcio")

    monkeypatch.setattr(substrate, "resolve", none)
    found = doctor.check_substrate()
    assert found == Finding("substrate", "note", "none: single_process only", "install grpcio")


def test_little_shared_memory_is_a_note(monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(64e6, 0, 64e6))
    found = doctor.check_shared_memory()
    assert found.state == "note" and "64 MB free" in found.said and "--shm-size" in found.advice


def test_no_shared_memory_is_a_fault(monkeypatch, tmp_path):
    monkeypatch.setattr(segment, "FOLDER", tmp_path / "none")
    assert doctor.check_shared_memory().state == "fault"


@pytest.mark.parametrize(("files", "state"), [(256, "note"), (4096, "ok"), (-1, "ok")])
def test_few_open_files_are_a_note(monkeypatch, files, state):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (files, files))
    monkeypatch.setattr(doctor, "free_tasks", lambda: math.inf)
    assert doctor.check_limits().state == state


@pytest.mark.parametrize(
    ("user", "limit", "advice"),
    [
        (1000, 1500, "for many actors: ulimit -u 1724"),
        (1000, 1724, ""),
        (1000, resource.RLIM_INFINITY, ""),
        (0, 1500, ""),  # root is exempt
    ],
)
def test_few_threads_are_a_note(monkeypatch, user, limit, advice):
    limits = {resource.RLIMIT_NOFILE: 4096, resource.RLIMIT_NPROC: limit}
    monkeypatch.setattr(resource, "getrlimit", lambda which: (limits[which], limits[which]))
    monkeypatch.setattr(os, "getuid", lambda: user)
    monkeypatch.setattr(doctor, "_threads", lambda: 700)
    monkeypatch.setattr(doctor, "free_tasks", lambda: math.inf)
    monkeypatch.setattr(doctor, "usable_cores", lambda: 3)  # of more, by a quota
    found = doctor.check_limits()
    assert (found.state, found.advice) == ("note" if advice else "ok", advice)
    assert found.said.endswith(", 3 cores")
    assert ("1,500 (of which you have 700) processes" in found.said) == bool(advice)


@pytest.mark.parametrize(("allowed", "state"), [(60, "note"), (5000, "ok")])
def test_few_threads_that_the_cgroup_allows_are_a_note(monkeypatch, allowed, state):
    monkeypatch.setattr(resource, "getrlimit", lambda which: (4096, resource.RLIM_INFINITY))
    monkeypatch.setattr(doctor, "free_tasks", lambda: allowed)
    found = doctor.check_limits()
    assert found.state == state
    assert f"(the cgroup allows {allowed:,} more)" in found.said
    assert ("pids.max" in found.advice) == (state == "note")


def test_threads_of_a_user_are_counted(tmp_path):
    mine, other = os.getuid(), os.getuid() + 1
    for number, (user, threads) in enumerate(((mine, 3), (other, 50), (mine, 4))):
        folder = tmp_path / str(number)
        folder.mkdir()
        text = f"Name:\ta: b\nUid:\t{user}\t0\t0\t0\nThreads:\t{threads}\n"
        (folder / "status").write_text(text)
    (tmp_path / "9").mkdir()  # has ended
    (tmp_path / "8" / "status").mkdir(parents=True)  # cannot be read
    assert doctor._threads(tmp_path) == 7


def test_modules_of_the_current_folder_are_not_imported(monkeypatch, tmp_path):
    (tmp_path / "random.py").write_text("raise SystemExit('imported from the current folder')\n")
    monkeypatch.chdir(tmp_path)
    code = "import random, distrl.version; print(random.Random(0).randrange(1))"
    assert doctor._run(code) == (True, "0")


def test_nodes_can_listen():
    assert doctor.check_ports().state == "ok"
