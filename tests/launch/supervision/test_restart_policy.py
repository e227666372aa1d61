"""When a node is restarted, and when not."""

from distrl.launch.supervision.restart_policy import RestartHistory, RestartPolicy

POLICY = RestartPolicy(restarts=5, backoff=1.0, max_backoff=4.0, stable_after=10.0)


def traceback(line: int) -> str:
    return (
        "Traceback (most recent call last):\n"
        f'  File "environment.py", line {line}, in step\n'
        f"    raise KeyError({line})\nKeyError: 'step {line * 7}'\n"
    )


def test_the_pause_doubles_while_lives_are_short_and_is_reset_by_a_long_one():
    history = RestartHistory(POLICY)
    pauses = [history.next_delay("was killed by SIGKILL", None, s, False) for s in (1, 1, 1, 20, 1)]
    assert pauses == [1.0, 2.0, 4.0, 1.0, 2.0]


def test_restarts_are_counted_in_all():
    history = RestartHistory(POLICY)
    for _ in range(5):
        assert isinstance(history.next_delay("was killed by SIGKILL", None, 100.0, False), float)
    assert history.next_delay("was killed by SIGKILL", None, 100.0, False) == (
        "after 5 restarts, the most allowed"
    )
    assert len(history.causes) == 6


def test_the_same_traceback_three_times_ends_it_whatever_its_message_says():
    history = RestartHistory(POLICY)
    first = [history.next_delay(f"KeyError: {i}", traceback(3), 100.0) for i in range(2)]
    assert first == [1.0, 1.0]
    assert history.next_delay("KeyError: 2", traceback(3), 100.0) == "3 times in a row"


def test_another_traceback_in_between_resets_the_count():
    history = RestartHistory(POLICY)
    for line in (3, 3, 4, 3, 3):
        assert isinstance(history.next_delay("KeyError", traceback(line), 100.0), float)


def test_a_crash_at_once_counts_as_the_same_and_a_kill_from_outside_does_not():
    history = RestartHistory(POLICY)
    assert [history.next_delay("was killed by SIGSEGV", None, 1.0) for _ in range(3)][-1] == (
        "3 times in a row"
    )
    history = RestartHistory(POLICY)
    assert isinstance(
        [history.next_delay("was killed by SIGSEGV", None, 100.0) for _ in range(3)][-1], float
    )
    history = RestartHistory(POLICY)
    assert isinstance(
        [history.next_delay("was killed by SIGKILL", None, 1.0, False) for _ in range(4)][-1], float
    )


def test_the_loss_of_another_node_counts_in_short_lives_only():
    cause = "PeerError: relay/0.get_variables() failed: it does not answer"
    history = RestartHistory(POLICY)
    for _ in range(5):
        assert isinstance(history.next_delay(cause, traceback(3), 10.0), float)
    history = RestartHistory(POLICY)
    delays = [history.next_delay(cause, traceback(3), 9.0) for _ in range(3)]
    assert delays[-1] == "3 times in a row"
