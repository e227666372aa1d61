"""Tables that do not fit into memory."""

import re

import pytest

from distrl.envs import PythonEnvironment
from distrl.errors import ConfigError
from distrl.experiment import Experiment
from distrl.replay import memory_check
from distrl.replay.config import ReplayConfig
from distrl.testing import CheckingConfig, CountingEnvironment


@pytest.fixture(autouse=True)
def memory(monkeypatch):
    """A machine with 20 GB, of which 8.5 are free."""
    monkeypatch.setattr(memory_check, "memory_limit", lambda: 20_000_000_000)
    monkeypatch.setattr(memory_check, "free_memory", lambda: 8_500_000_000)


def test_a_table_must_leave_room_for_the_rest():
    unroll = 35_000
    fits = 18_500_000_000 // unroll
    memory_check.check_fits_memory(fits, fits * unroll)  # whatever else runs now
    with pytest.raises(ConfigError) as error:
        memory_check.check_fits_memory(fits + 1, (fits + 1) * unroll)
    assert str(error.value) == (
        f"replay.max_size={fits + 1} unrolls of 35.0 KB need 18.5 GB, and this machine has "
        f"20.0 GB, of which the rest of the run needs about 1.5 GB; at most {fits} unrolls fit"
    )


def test_an_experiment_is_checked():
    environment = PythonEnvironment(CountingEnvironment, "counting")
    with pytest.raises(ConfigError, match=r"^replay\.max_size=100000000 unrolls of [0-9.]+ (K|)B"):
        Experiment(environment, CheckingConfig(), replay=ReplayConfig(max_size=100_000_000))


def test_the_rest_has_a_quarter_of_a_small_machine(monkeypatch):
    monkeypatch.setattr(memory_check, "memory_limit", lambda: 2_000_000_000)
    memory_check.check_fits_memory(1, 1_500_000_000)
    with pytest.raises(ConfigError, match=r" at most 0 unrolls fit$"):
        memory_check.check_fits_memory(1, 1_500_000_001)


def test_a_table_that_may_not_fit_now_is_warned_of():
    assert memory_check.shortage(7_000_000_000) is None
    warning = memory_check.shortage(7_100_000_000)
    assert re.match(r"the full replay .* 7\.1 GB .* 1\.5 GB, but only 8\.5 GB .* free now", warning)


@pytest.mark.parametrize(
    ("nbytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 KB"), (35_200, "35.2 KB"), (2.5e6, "2.5 MB")],
)
def test_sizes_have_their_unit(nbytes, text):
    assert memory_check.size(nbytes) == text
