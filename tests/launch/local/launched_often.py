"""Launches a program repeatedly: python launched_often.py MODE RUN_DIR COUNT."""

import gc
import json
import os
import pathlib
import sys
import threading

from distrl.launch.local.launch import launch
from distrl.programs.substrate import node_context
from tests.support.nodes import call_node, new_program


class Server:
    """Ends the program after a few calls."""

    def __init__(self) -> None:
        self._enough = threading.Event()
        self._calls = 0

    def add(self) -> None:
        self._calls += 1
        if self._calls >= 5:
            self._enough.set()

    def run(self) -> None:
        self._enough.wait(20)
        node_context.program_stopper()("enough calls")
        node_context.stop_event().wait()


class Client:
    """Calls until it is stopped."""

    def __init__(self, server) -> None:
        self._server = server

    def run(self) -> None:
        stop = node_context.stop_event()
        while not stop.wait(0.005):
            self._server.futures.add()


def counts() -> dict[str, int]:
    """Returns what the process holds, after garbage collection and the end of finished threads."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread():
            thread.join(10)
    gc.collect()
    pid = os.getpid()
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return {
        "descriptors": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "python threads": threading.active_count(),
        "children": len(children),
    }


def main() -> None:
    mode, folder, count = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3])
    found = []
    for index in range(count):
        program = new_program("often")
        with program.group("learner"):
            server = program.add_node(call_node(Server))
            server.set_client_kwargs(call_timeout=10)
        with program.group("actor"):
            program.add_node(call_node(Client, server))
        result = launch(program, mode, run_dir=folder / str(index), terminal="output_to_files")
        assert (result.status, result.reason) == ("finished", "enough calls"), result
        assert {node.state for node in result.nodes.values()} == {"ended"}, result
        found.append(counts())
    print("counts:", json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
