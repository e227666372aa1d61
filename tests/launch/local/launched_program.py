"""A program for the launcher's tests: python launched_program.py MODE RUN_DIR SCENARIO...

A server (group `learner`), two clients (`actor`) that call it with a deadline, and an `evaluator`
that only waits. Each scenario is a launch; all are made by one process, which exits with the status
of the last one.
"""

import ctypes
import logging
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time
from typing import Any

from distrl.errors import Stopped
from distrl.launch.local.launch import launch
from distrl.programs.substrate import node_context
from tests.support.nodes import call_node, function_node, new_program, on_stop, stop_program

GOAL = 20
RESOURCES = {
    "learner": {"CUDA_VISIBLE_DEVICES": "7"},
    "actor/1": {"CUDA_VISIBLE_DEVICES": "5"},
}


def oom_score() -> int:
    return int(pathlib.Path("/proc/self/oom_score_adj").read_text())


class Server:
    def __init__(self, scenario: str) -> None:
        self._scenario = scenario
        self._calls = 0
        if scenario == "constructor":
            raise ValueError("no such network")

    def add(self) -> int:
        self._calls += 1
        return self._calls

    def stuck(self) -> None:
        threading.Event().wait(60)

    def run(self) -> None:
        stop, end = node_context.stop_event(), node_context.program_stopper()
        print("server: cuda", repr(os.environ.get("CUDA_VISIBLE_DEVICES")))
        print("server: oom_score_adj", oom_score())
        while not stop.wait(0.01):
            if self._calls < GOAL:
                continue
            if self._scenario in ("finish", "chatty", "late"):
                threading.Thread(target=end, args=("goal reached",)).start()
                stop.wait()
            elif self._scenario == "plain_stop":
                stop_program()
                stop.wait()
            elif self._scenario == "give_up":
                end("diverged: loss is nan", finished=False)
                stop.wait()
            elif self._scenario == "server_raises":
                raise ArithmeticError("loss is nan")
        if self._scenario == "late":
            raise OSError("could not save")
        print("server: cleaned up")


class Client:
    def __init__(self, server: Any, scenario: str, index: int) -> None:
        self._server = server
        self._scenario = scenario if index == 1 else ""
        self._index = index

    def run(self) -> None:
        stop, calls = node_context.stop_event(), 0
        print("client: cuda", repr(os.environ.get("CUDA_VISIBLE_DEVICES")))
        print("client: oom_score_adj", oom_score())
        if self._scenario == "chatty":
            for line in range(5000):
                print("line", line)
            sys.stdout.write("\r10%\r20%\n" + "x" * 20_000 + "\n")
            sys.stdout.write("\x00\x1b[2Jbinary\n")
            if MODE == "local_mp":
                os.write(1, b"\xff\nno newline at the end")
            logging.warning("from logging")  # noqa: LOG015 -- a user's environment may
        if self._scenario == "grandchild":
            child = subprocess.Popen(["sleep", "60"])
            print("grandchild", child.pid, flush=True)
        if self._scenario == "server_raises":
            self._server.futures.stuck()  # a call that the server's Join would wait for
        while not stop.is_set():
            self._server.add()
            calls += 1
            print("client: call", calls)
            if calls == 5:
                self._misbehave()
            stop.wait(0.01)
        print("client: cleaned up")

    def _misbehave(self) -> None:
        if self._scenario == "raise":
            raise RuntimeError("the environment broke")
        if self._scenario == "thread_raises":
            threading.Thread(target=lambda: 1 / 0, name="helper").start()
        if self._scenario == "return":
            sys.exit(0)
        if self._scenario == "exit3":
            os._exit(3)
        if self._scenario in ("sigkill", "grandchild"):
            os.kill(os.getpid(), signal.SIGKILL)
        if self._scenario == "segv":
            ctypes.string_at(0)
        if self._scenario == "stopped":
            raise Stopped("no one has asked")
        while self._scenario in ("deaf", "deaf_for_long"):
            time.sleep(0.1)


def watch() -> None:
    on_stop(lambda: print("watcher: stop handler called", flush=True))
    time.sleep(0.3)  # the handlers run beside it


def make(scenario: str) -> Any:
    program = new_program(f"test-{scenario}")
    with program.group("learner"):
        server = program.add_node(call_node(Server, scenario))
    server.set_client_kwargs(call_timeout=5)
    with program.group("actor"):
        for index in range(2):
            program.add_node(call_node(Client, server, scenario, index))
    with program.group("evaluator"):
        program.add_node(function_node(watch))
    return program


if __name__ == "__main__":
    MODE = sys.argv[1]
    fds = None
    for scenario in sys.argv[3:]:
        run_dir = pathlib.Path(sys.argv[2]) / scenario
        handlers = [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)]
        streams = sys.stdout, sys.stderr
        begin = time.monotonic()
        result = launch(
            make(scenario),
            MODE,
            run_dir=run_dir,
            local_resources=RESOURCES if MODE == "local_mp" else None,
            stop_grace={"actor": 60.0} if scenario == "deaf_for_long" else None,
            terminal="output_to_files" if scenario == "quiet" else "current_terminal",
        )
        print(f"launch took {time.monotonic() - begin:.2f} s")
        print("hung", result.hung, flush=True)
        assert handlers == [
            signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD)
        ]
        assert streams == (sys.stdout, sys.stderr)
        count = len(os.listdir("/proc/self/fd"))
        if MODE == "local_mp":
            assert fds in (None, count), (fds, count)
        fds = count
    if result.hung:
        os._exit(result.exit_code)
    sys.exit(result.exit_code)
