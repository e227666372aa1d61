"""What a tunnel tells of the other hosts."""

import asyncio
import errno
import os
import socket
import ssl

import pytest

from distrl.launch.network.reach import Reach, advice, in_words

REFUSED = OSError(errno.ECONNREFUSED, "Connect call failed ('10.0.0.1', 7420)")
SILENT = asyncio.TimeoutError()


def test_changes_are_told_once():
    told: list[tuple[str, int, str]] = []
    reach = Reach(lambda *news: told.append(news))
    for error in (REFUSED, REFUSED, SILENT, None, None, REFUSED):
        reach.note("h1", 7420, error)
    reach.note("h2", 7420, None)
    refused = ("h1", 7420, "Connection refused")
    assert told == [refused, ("h1", 7420, ""), refused, ("h2", 7420, "")]


def test_one_attempt_without_an_answer_tells_nothing():
    told: list[tuple[str, int, str]] = []
    reach = Reach(lambda *news: told.append(news))
    for error in (SILENT, None, SILENT, None, SILENT, SILENT, SILENT):
        reach.note("h1", 7420, error)
    assert told == [("h1", 7420, ""), ("h1", 7420, "no answer")]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (OSError(errno.EHOSTUNREACH, "Connect call failed"), os.strerror(errno.EHOSTUNREACH)),
        (
            socket.gaierror(-2, "Name or service not known"),
            "unknown name: Name or service not known",
        ),
        (ssl.SSLError(1, "certificate verify failed"), "certificate verify failed"),
        (OSError("Multiple exceptions: ..."), "Multiple exceptions: ..."),
        (ConnectionResetError(), "ConnectionResetError"),
        (RuntimeError("the peer has another certificate"), "the peer has another certificate"),
    ],
)
def test_a_failure_in_words(error: Exception, words: str):
    assert in_words(error) == words


def test_a_name_that_is_unknown_is_no_closed_port():
    """An alias of ssh, for example."""
    unknown = in_words(socket.gaierror(-3, "Temporary failure in name resolution"))
    assert advice(unknown) == "give an address that resolves there, --hosts=NAME:address=..."
    closed = "open that port between the hosts, or choose one with --tunnel_port"
    assert advice(in_words(REFUSED)) == advice(in_words(SILENT)) == closed
