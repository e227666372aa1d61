"""A node's row, as its launcher writes it."""

from distrl.runtime.heartbeat import DOWN, UP, Heartbeat


def test_a_start_that_is_refused_is_no_life_before_the_first():
    heartbeat = Heartbeat()
    for life in (3, 4):
        heartbeat.begin(life)
        heartbeat.not_started()
        heartbeat.end(comes_back=True)
        assert (heartbeat.status, heartbeat.ended) == (DOWN, (life, 0))
    heartbeat.begin(5)
    assert heartbeat.status == UP and not heartbeat.restarted
    heartbeat.end(comes_back=True)
    heartbeat.begin(6)
    assert heartbeat.restarted
