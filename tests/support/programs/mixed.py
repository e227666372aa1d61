"""A Launchpad program with a node of each kind, for `distrl launch`."""

import os
import pathlib
import sys
import threading
import time

import launchpad as lp
import reverb


class Counter:
    def __init__(self) -> None:
        self._count = 0

    def add(self) -> int:
        self._count += 1
        return self._count

    def run(self) -> None:
        lp.wait_for_stop()
        print("counter: cleaned up")


class Caller:
    """Of a group that has the name of one of distrl's, which changes nothing."""

    def __init__(self, counter: lp.CourierClient) -> None:
        self._counter = counter

    def run(self) -> None:
        while self._counter.add() < 5:
            time.sleep(0.01)
        print("caller: returns")


def tables() -> list[reverb.Table]:
    limiter = reverb.rate_limiters.MinSize(1)
    return [reverb.Table("t", reverb.selectors.Fifo(), reverb.selectors.Fifo(), 10, limiter)]


def use_table(client: reverb.Client) -> None:
    client.insert([3.0], {"t": 1.0})
    print("sampled", float(next(client.sample("t"))[0].data[0]))


def fail_once(folder: str) -> None:
    begun = pathlib.Path(folder, "begun")
    if not begun.exists():
        begun.touch()
        raise ValueError("the first life")
    print("the second life returns")
    sys.exit(0)


def stop_later(folder: str) -> None:
    """Stops the program when a node of each kind has done its work."""
    logs = {"actor-0": "caller: returns", "user-0": "sampled 3.0", "failing-0": "second life"}
    deadline = time.monotonic() + 60.0
    for name, text in logs.items():
        log = pathlib.Path(folder, "logs", f"{name}.log")
        while not (log.exists() and text in log.read_text()):
            assert time.monotonic() < deadline, f"{log} has no {text!r}"
            time.sleep(0.02)
    threading.Event().wait(0.2)
    lp.stop()


def make_program() -> lp.Program:
    """A node of each kind, some of which return and some of which serve until the end."""
    folder = os.environ["PROGRAM_FOLDER"]
    program = lp.Program("mixed")
    inner = lp.CourierNode(Counter)
    counter = inner.create_handle()
    program.add_node(lp.MultiThreadingColocation([inner]), label="services")
    program.add_node(lp.PyClassNode(Caller, counter), label="actor")
    table = program.add_node(lp.ReverbNode(tables), label="table")
    program.add_node(lp.PyNode(use_table, table), label="user")
    program.add_node(lp.PyNode(fail_once, folder), label="failing")
    program.add_node(lp.PyNode(stop_later, folder), label="last")
    return program
