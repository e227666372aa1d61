"""Tracebacks show the user's own frames, and count the framework's above them."""

import threading
import traceback
from pathlib import Path

import absl
import pytest

from distrl import version
from distrl.errors import ConfigError, EnvironmentFault
from distrl.runtime.traceback_text import describe_error, fold

OWN = Path(version.__file__).parent
INSTALLED = Path(absl.__file__).parent
WHERE = "all in a.log"


def frame(path: str | Path, line: int = 1) -> str:
    return f'  File "{path}", line {line}, in f\n    f(x)\n'


HEAD, END = "Traceback (most recent call last):\n", "KeyError: 'left'\n"
RUN = frame(INSTALLED / "app.py") + frame(OWN / "actor.py") + frame(OWN / "pool.py")
USER = frame("/home/me/env.py", 7)


def test_frames_above_the_users_own_are_folded():
    text = HEAD + RUN + USER + END
    line = f"  ... 3 frames of absl, distrl: {WHERE}\n"
    assert fold(text, WHERE) == HEAD + line + USER + END


@pytest.mark.parametrize(
    "text",
    [
        HEAD + RUN + RUN + END,  # nothing of the user's: where it went wrong is among them
        HEAD + USER + RUN + END,  # below the user's own: what he called
        HEAD + frame(OWN / "actor.py") + frame(OWN / "pool.py") + USER + END,  # few
        "",
        END,
    ],
)
def test_what_says_where_it_went_wrong_stays(text):
    assert fold(text, WHERE) == text


def test_each_traceback_of_a_chain_is_folded():
    cause = HEAD + RUN + frame("<string>") + RUN + END
    text = cause + "\nThe above exception was the direct cause:\n\n" + HEAD + RUN + USER + END
    folded = fold(text, WHERE)
    assert folded.count("... 3 frames of absl, distrl") == 3
    assert folded.count("  File ") == 2
    assert "direct cause" in folded and folded.endswith(USER + END)


def test_an_environments_traceback_inside_the_message_counts_as_the_users():
    text = HEAD + RUN + "distrl.errors.EnvironmentFault: step() raised\n" + HEAD + USER + END
    assert fold(text, WHERE).count("  File ") == 1


def test_real_tracebacks_have_the_form_that_is_folded():
    texts = []

    def fails(depth):
        if depth:
            return fails(depth - 1)
        raise KeyError("left")

    def run():
        try:
            fails(10)  # "Previous line repeated"
        except KeyError as error:
            texts.append("".join(traceback.format_exception(error)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "Previous line repeated" in texts[0]
    assert fold(texts[0], WHERE) == texts[0]
    long = texts[0].replace(__file__, str(OWN / "x.py"))
    folded = fold(long.replace(END, "") + USER + END, WHERE)
    assert "frames of distrl" in folded and "Previous" not in folded


def test_all_frames_are_folded_where_an_environment_is_to_blame():
    end = "distrl.errors.EnvironmentFault: Bad: observation: expected float32[3], got float32[1]\n"
    assert fold(HEAD + RUN + end, WHERE) == f"{HEAD}  ... 3 frames of absl, distrl: {WHERE}\n{end}"


class Unprintable(Exception):
    def __str__(self) -> str:
        raise ValueError("no text")


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (KeyError("left"), "KeyError: 'left'"),
        (StopIteration(), "StopIteration"),
        (ConfigError("one\n  and two"), "ConfigError: one and two"),
        (EnvironmentFault("step() raised\nTraceback ..."), "EnvironmentFault: step() raised"),
        (Unprintable(), "Unprintable: <exception str() failed>"),
        (ValueError("x" * 600), "ValueError: " + "x" * 488),
    ],
)
def test_an_exception_is_described_in_one_line(error, line):
    assert describe_error(error) == line
