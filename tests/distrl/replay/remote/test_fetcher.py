"""The thread that fetches batches ahead."""

import pytest

from distrl.errors import ServerSilent
from distrl.replay.remote.fetcher import Fetcher
from tests.support.waiting import until


def test_an_error_is_there_to_be_taken_as_a_batch_is():
    def fail(sampler):
        raise ServerSilent("no answer")

    fetcher = Fetcher(lambda: None, fail, "t")
    # A learner of several is stepped only where there is something to take.
    until(fetcher.ready, "the error")
    with pytest.raises(RuntimeError, match="table 't': no answer"):
        fetcher.take(1.0, None, lambda: None)
    fetcher.close()
