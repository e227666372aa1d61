"""Clients of an inference service that are killed again and again.

    python killed_clients.py NAME

NAME is the file of slots; there are four of two streams each. The state of a stream counts its
steps in a life, which each client checks. Exits with 1 if one of them fails.
"""

import os
import random
import signal
import sys
import time

import numpy as np

from distrl.inference.messages import InferenceMessages
from distrl.inference.slots import Sizes, SlotFile
from distrl.testing import CheckingConfig
from tests.support.inference import SPEC, slot_client, timestep

CLIENTS, KILLS = 4, 40


def act(file: SlotFile, index: int, life: int) -> None:
    """Asks until it is killed."""
    agent = CheckingConfig().make(SPEC)
    client = slot_client(agent, file, index)
    streams = np.arange(2 * index, 2 * index + 2, dtype=np.int32)
    step = timestep(2)
    seen = 0
    while True:
        answer = client.inference(streams, step, life)
        assert (answer.extras["seen"] == seen).all(), (index, life, seen, answer)
        seen += 1


def main() -> int:
    """Kills clients; returns the exit status."""
    messages = InferenceMessages(CheckingConfig().make(SPEC))
    file = SlotFile.open(sys.argv[1], Sizes(messages, CLIENTS, 2), 10.0)
    lives = [0] * CLIENTS

    def start(index: int) -> int:
        pid = os.fork()
        if pid == 0:
            try:
                act(file, index, lives[index])
            finally:
                os._exit(1)  # only a signal ends it otherwise
        return pid

    pids = [start(index) for index in range(CLIENTS)]
    chosen = random.Random(0)
    inside = 0  # killed while their request waited
    for _ in range(KILLS):
        time.sleep(chosen.random() * 0.02)
        index = chosen.randrange(CLIENTS)
        others = file.answered.copy()
        if chosen.random() < 0.5:  # in the middle of a request
            until = time.monotonic() + 20.0
            while file.requested[index] == file.answered[index]:
                if time.monotonic() > until:
                    print(f"client {index} does not ask")
                    return 1
        os.kill(pids[index], signal.SIGKILL)
        inside += bool(file.requested[index] != file.answered[index])
        if os.waitpid(pids[index], 0)[1] != signal.SIGKILL:
            print(f"client {index} had failed")
            return 1
        lives[index] += 1
        pids[index] = start(index)
        until = time.monotonic() + 20.0
        while (file.answered == others).any():
            if time.monotonic() > until:
                print(f"unserved: {np.flatnonzero(file.answered == others).tolist()}")
                return 1
            time.sleep(0.001)
    for pid in pids:
        os.kill(pid, signal.SIGKILL)
    statuses = [os.waitpid(pid, 0)[1] for pid in pids]
    print(f"{KILLS} kills, {inside} of them in the middle of a request; {statuses}")
    return 0 if statuses == [signal.SIGKILL] * CLIENTS and inside else 1


if __name__ == "__main__":
    sys.exit(main())
