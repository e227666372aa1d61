"""Printing goes on when nobody can read it any more."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes, sys
from distrl.launch.local.robust_streams import install_robust_streams, open_closed_streams
open_closed_streams()
install_robust_streams()
for _ in range(3):
    print("x" * 5000, flush=True)
    print("x" * 5000, file=sys.stderr)
kept = open(sys.argv[1], "w")
ctypes.CDLL(None).write(1, b"from C", 6); ctypes.CDLL(None).write(2, b"from C", 6)
kept.write("all said")
"""


@pytest.mark.parametrize("how", [">/dev/full 2>&1", ">&- 2>&-", "2>&1 | true", "2>&1 | head -c 9"])
def test_a_broken_output(tmp_path, how):
    command = f'("$@" || echo "status $?" >&3) {how}'
    path = tmp_path / "file"
    reader, writer = os.pipe()
    subprocess.run(
        ["bash", "-c", f"exec 3>&{writer}; {command}", "bash", sys.executable, "-c", PROGRAM, path],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.DEVNULL,
        pass_fds=[writer],
        timeout=50,
        check=False,
    )
    os.close(writer)
    with open(reader) as said:
        assert said.read() == ""
    assert path.read_text() == "all said"


def test_what_can_be_read_stays_in_order(tmp_path):
    program = PROGRAM.replace("5000", "3")
    made = subprocess.run(
        [sys.executable, "-c", program, tmp_path / "file"],
        cwd=Path(__file__).parents[3],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=50,
        check=True,
    )
    assert made.stdout == b"xxx\n" * 6 + b"from C" * 2


@pytest.mark.parametrize("command", [["--help"], ["list", "runs"], ["nonsense"]])
def test_a_command_whose_output_nobody_reads_ends_without_a_word(tmp_path, command):
    (tmp_path / "runs" / "a").mkdir(parents=True)
    (tmp_path / "runs" / "a" / "config.json").write_text("{}")
    reader, writer = os.pipe()
    os.close(reader)
    ended = subprocess.run(
        [sys.executable, "-m", "distrl", *command],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        stdout=writer,
        stderr=writer if command == ["nonsense"] else subprocess.PIPE,
        timeout=50,
        check=False,
    )
    os.close(writer)
    assert ended.returncode == 128 + signal.SIGPIPE
    assert not ended.stderr


@pytest.mark.parametrize(("word", "status"), [("list", 0), ("--help", 0), ("nonsense", 2)])
@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_command_without_streams_does_its_work(tmp_path, word, status, streams):
    (tmp_path / "runs").mkdir()
    ended = subprocess.run(
        ["bash", "-c", f'"$@" {streams}', "bash", sys.executable, "-m", "distrl", word],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert ended.returncode == status
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("function", ["install_robust_streams", "escape_what_has_no_encoding"])
def test_characters_that_the_encoding_lacks_are_escaped(function):
    program = f"""
import sys
from distrl.launch.local.robust_streams import {function}
{function}()
print("75 µs ± 1"); print("µ", file=sys.stderr)
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        timeout=50,
        check=True,
    )
    assert (done.stdout, done.stderr) == (rb"75 \xb5s \xb1 1" + b"\n", rb"\xb5" + b"\n")


@pytest.mark.parametrize("function", ["install_robust_streams", "escape_what_has_no_encoding"])
def test_in_the_locale_c_names_of_files_are_printed_as_they_are(function):
    program = f"""
import sys
from distrl.launch.local.robust_streams import {function}
{function}()
print(sys.argv[1], "\\xb1", "\\ud800")
"""
    done = subprocess.run(
        [sys.executable, "-c", program, b"f\xc3\xa4r"],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        capture_output=True,
        timeout=50,
        check=True,
    )
    assert done.stdout == b"f\xc3\xa4r " + rb"\xb1 \ud800" + b"\n"


def test_a_reader_that_stalls_is_not_waited_for_after_a_stop(tmp_path):
    """Printing threads wait for it before, also within one print, and get on at once after it."""
    program = """
import sys, threading
from distrl.launch.local.robust_streams import install_robust_streams, stop_waiting_for_readers
install_robust_streams()
printer = threading.Thread(target=print, args=("x" * 1_000_000,), daemon=True)
printer.start()
printer.join(0.5)
waited = printer.is_alive()
stop_waiting_for_readers()
printer.join(30)
print("more")
open(sys.argv[1], "w").write(f"{waited} {printer.is_alive()}")
"""
    reader, writer = os.pipe()
    subprocess.run(
        [sys.executable, "-c", program, tmp_path / "file"],
        cwd=Path(__file__).parents[3],
        stdout=writer,
        stderr=writer,
        timeout=50,
        check=True,
    )
    os.close(writer)
    os.close(reader)
    assert (tmp_path / "file").read_text() == "True False"
