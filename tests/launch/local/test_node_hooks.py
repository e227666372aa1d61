"""What a node tells the supervisor about the exception that ends it."""

import jax
import pytest

from distrl.errors import CallbackError, ConfigError, Diverged, SaveError, SpecError
from distrl.launch.local.node_hooks import NodeReporter


@pytest.mark.parametrize(
    ("error", "final", "bad_input"),
    [
        (ConfigError("no"), True, True),
        (SpecError("no"), True, True),
        (Diverged("no"), True, False),
        (SaveError("no"), True, False),
        (ValueError("no"), False, False),
    ],
)
def test_failures_whose_one_line_says_all_are_final(error, final, bad_input, capsys):
    messages = []
    NodeReporter("learner/0", messages.append).failure(error)
    (message,) = messages
    assert (message.kind, message.final, message.bad_input) == ("failure", final, bad_input)
    assert message.reason == f"{type(error).__name__}: no"
    assert (message.traceback is None) == final == (capsys.readouterr().err == "")


def test_a_callbacks_failure_is_final_and_has_its_traceback(capsys):
    messages = []
    try:
        raise CallbackError("Plot.on_update: KeyError: 'loss'") from KeyError("loss")
    except CallbackError as error:
        NodeReporter("learner/0", messages.append).failure(error)
    (message,) = messages
    assert message.final and not message.bad_input
    assert "KeyError: 'loss'" in message.traceback and "KeyError" in capsys.readouterr().err


def test_the_line_of_what_is_raised_under_jax_ends_with_its_message():
    def fail(x):
        raise SpecError("state: expected float32[2]")

    messages = []
    try:
        jax.jit(fail)(1.0)
    except SpecError as error:
        NodeReporter("learner/0", messages.append).failure(error)
    (message,) = messages
    assert message.reason == "SpecError: state: expected float32[2]"
