"""What a node tells the supervisor about the exception that ends it."""

import pytest

from distrl.errors import ConfigError, Diverged, SpecError
from distrl.launch.local.node_hooks import NodeReporter


@pytest.mark.parametrize(
    ("error", "final", "bad_input"),
    [
        (ConfigError("no"), True, True),
        (SpecError("no"), True, True),
        (Diverged("no"), True, False),
        (ValueError("no"), False, False),
    ],
)
def test_failures_whose_one_line_says_all_are_final(error, final, bad_input, capsys):
    messages = []
    NodeReporter("learner/0", messages.append).failure(error)
    (message,) = messages
    assert (message.kind, message.final, message.bad_input) == ("failure", final, bad_input)
    assert message.reason.endswith(f"{type(error).__name__}: no")
    assert (message.traceback is None) == final == (capsys.readouterr().err == "")
