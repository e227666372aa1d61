"""Accounts of time, by a clock that the test moves."""

import threading

import pytest

from distrl.runtime.time_account import (
    COMPUTE,
    ENV_STEP,
    INFERENCE,
    INSERT_WAIT,
    OTHER,
    PARAMETER_WAIT,
    REPLAY_WRITE,
    SAMPLING,
    STATES,
    ProcessAccount,
    TimeAccount,
    current_account,
    in_state,
    use_account,
)


class Clock:
    """A clock that is moved by hand."""

    def __init__(self):
        self.now = 1000  # nanoseconds

    def __call__(self):
        return self.now / 1e9

    def pass_time(self, nanoseconds):
        self.now += nanoseconds


@pytest.fixture
def clock():
    return Clock()


def test_the_states_add_up_to_the_time_since_the_account_was_opened(clock):
    account = TimeAccount(clock)
    for number, state in enumerate([ENV_STEP, REPLAY_WRITE, ENV_STEP, COMPUTE, COMPUTE, OTHER]):
        account.switch(state)
        clock.pass_time(10**number)
    assert account.totals() == {
        "env_step": 101,
        "replay_write": 10,
        "compute": 11_000,
        "other": 100_000,
    }
    assert sum(account.totals().values()) == clock.now - 1000
    clock.pass_time(7)  # of the state that lasts
    assert account.totals()["other"] == 100_007


def test_a_nested_state_interrupts_the_one_around_it(clock):
    account = TimeAccount(clock)
    mine = use_account(account)
    try:
        with in_state(REPLAY_WRITE):
            clock.pass_time(3)
            state = current_account().wait()
            assert state == REPLAY_WRITE
            clock.pass_time(50)
            current_account().switch(state)
            clock.pass_time(4)
        with pytest.raises(KeyError), in_state(SAMPLING):
            clock.pass_time(5)
            raise KeyError
        clock.pass_time(6)
    finally:
        use_account(mine)
    assert account.totals() == {
        "replay_write": 7,
        STATES[INSERT_WAIT]: 50,
        "sampling": 5,
        "other": 6,
    }


def test_a_lap_takes_time_from_the_current_state_but_not_from_what_was_nested_in_it(clock):
    account = TimeAccount(clock)
    account.switch(ENV_STEP)
    clock.pass_time(1)
    began = account.clock()
    clock.pass_time(10)
    account.lap(INFERENCE, began)
    clock.pass_time(100)
    assert account.totals() == {"env_step": 101, "inference": 10}
    began = account.clock()
    clock.pass_time(2)  # until something is nested, the current state's
    state = account.switch(PARAMETER_WAIT)
    clock.pass_time(1000)
    account.switch(state)
    clock.pass_time(20)
    account.lap(INFERENCE, began)
    assert account.totals() == {"env_step": 103, "inference": 30, "parameter_wait": 1000}


def test_each_thread_has_its_own_account():
    accounts = []
    thread = threading.Thread(target=lambda: accounts.append(current_account()))
    thread.start()
    thread.join()
    assert accounts[0] is not current_account() is current_account()


def test_a_server_is_busy_as_long_as_its_process_computes(clock):
    cpu = Clock()
    account = ProcessAccount(clock, cpu)
    clock.pass_time(1000)
    cpu.pass_time(300)
    assert account.totals() == {"serving": 300, "idle": 700}
    clock.pass_time(100)
    cpu.pass_time(250)  # on several cores
    assert account.totals() == {"serving": 400, "idle": 700}
    assert account.totals() == {"serving": 400, "idle": 700}
