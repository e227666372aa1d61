"""A host's tunnel for tests: reads what it carries from stdin, as JSON, and prints its port.

With `echo`, it also has a server that sends back what it gets, and prints that port too.
"""

import contextlib
import json
import socket
import sys
import threading

from distrl.launch.network import tunnel
from distrl.launch.network.credentials import Credentials


def echo(server: socket.socket) -> None:
    while True:
        connection, _ = server.accept()
        threading.Thread(target=send_back, args=(connection,), daemon=True).start()


def send_back(connection: socket.socket) -> None:
    with connection, contextlib.suppress(ConnectionResetError):
        while data := connection.recv(1 << 16):
            connection.sendall(data)


def main() -> None:
    settings = json.load(sys.stdin)
    listener = socket.create_server((settings["host"], 0))
    ports = [listener.getsockname()[1]]
    if settings.get("echo"):
        server = socket.create_server(("127.0.0.1", 0))
        ports.append(server.getsockname()[1])
        threading.Thread(target=echo, args=(server,), daemon=True).start()
    tunnel.run(
        listener,
        Credentials(settings["certificate"].encode(), settings["key"].encode()),
        {port: f"127.0.0.1:{port}" for port in [*settings["open_ports"], *ports[1:]]},
        {path: (host, port, target) for path, (host, port, target) in settings["forwards"].items()},
        ready=lambda: print(*ports, flush=True),
    )


if __name__ == "__main__":
    main()
