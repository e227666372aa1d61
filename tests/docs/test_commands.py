"""Every command in the documentation is one that the command line takes."""

import sys

import pytest
from absl.testing import flagsaver

from tests.support.docs import command_line, pages, reader

IN_PAGES: dict[str, list] = {}
for place, words in pages.commands():
    IN_PAGES.setdefault(place.partition(":")[0], []).append((place, words))


def check_all(commands, run, monkeypatch, capsys):
    """Checks command lines; fails with all that are refused, and lists those that are not run."""
    command_line.stop_where_programs_start(monkeypatch)
    wrong, not_run, seen = [], [], set()
    for place, words in commands:
        if tuple(words) in seen:
            continue
        seen.add(tuple(words))
        try:
            with flagsaver.flagsaver():
                reason = command_line.check(words, run)
        except AssertionError:
            wrong.append(f"{place}: {' '.join(words)}: {capsys.readouterr().err.strip()}")
        else:
            if reason:
                not_run.append(f"{place}: {' '.join(words)}: {reason}")
    with capsys.disabled():
        print("".join(f"\n  not run: {line}" for line in not_run))
    assert seen
    assert not wrong, "\n".join(wrong)


@pytest.mark.usefixtures("page_folder")
def test_commands_of_the_first_page_are_taken(status_of, monkeypatch, capsys):
    commands = IN_PAGES["README.md"]
    alone = [each for each in commands if "--topology=multi_machine" not in each[1]]  # is slow
    check_all(alone, status_of, monkeypatch, capsys)


@pytest.mark.full
@pytest.mark.timeout(230)
@pytest.mark.usefixtures("page_folder")
@pytest.mark.parametrize("page", IN_PAGES)
def test_every_command_is_taken(status_of, monkeypatch, capsys, page):
    check_all(IN_PAGES[page], status_of, monkeypatch, capsys)


def whole():
    return [page for page in pages.PAGES if any(b.run_whole for b in pages.read(page).blocks)]


@pytest.mark.full
@pytest.mark.timeout(230)
@pytest.mark.parametrize("page", whole())
def test_commands_that_a_page_runs_whole(page_folder, page):
    """In order, as by a reader who pastes them into a shell."""
    blocks = [block.text for block in pages.read(page).blocks if block.run_whole]
    command = f'distrl() {{ "{sys.executable}" -m distrl "$@"; }}\n'
    reader.run(["bash", "-e", "-c", command + "\n".join(blocks)], page_folder)
