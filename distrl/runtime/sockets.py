"""Parses TCP addresses, listens, and sets up connections."""

import ipaddress
import socket

from distrl.errors import ConfigError


def parse_address(address: str, setting: str) -> tuple[str, int]:
    """Returns the host and the port of "HOST:PORT", or of "[HOST]:PORT" with an IPv6 address.

    Args:
      address: the text.
      setting: name of the setting that it comes from, for the message.

    Raises:
      ConfigError: the text is not such an address.
    """
    host, _, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or not port.isdigit() or not 0 < int(port) < 65_536:
        raise ConfigError(f"{setting}: expected HOST:PORT, got {address!r}")
    return host, int(port)


def joined_address(host: str, port: int) -> str:
    """Returns what `parse_address` reads: "HOST:PORT", or "[HOST]:PORT" with an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def listen(host: str, port: int) -> socket.socket:
    """Returns a listening socket, for IPv6 where the host has no other address.

    Args:
      host: a name or an address of this host.
      port: the port; 0: any free one.

    Raises:
      OSError: the host is not this one, or the port is taken.
    """
    families = {each[0] for each in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)}
    family = socket.AF_INET if socket.AF_INET in families else socket.AF_INET6
    return socket.create_server((host, port), family=family)


def is_loopback(host: str) -> bool:
    """Returns whether an address leads each host to itself. No name but localhost is resolved."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def listen_on_all_interfaces(port: int) -> socket.socket:
    """Returns a listening socket for IPv4, and for IPv6 if the kernel has it.

    Args:
      port: the port; 0: any free one.

    Raises:
      OSError: the port is taken.
    """
    both = socket.has_dualstack_ipv6()
    family = socket.AF_INET6 if both else socket.AF_INET
    return socket.create_server(("", port), family=family, backlog=128, dualstack_ipv6=both)


def keep_alive(
    sock: socket.socket, *, idle: int, interval: int, send_timeout: int | None = None
) -> None:
    """Makes the kernel break a connection without traffic when the other host is gone.

    It breaks `idle + 3 * interval` seconds after the last packet from the other host.

    Args:
      sock: a TCP socket, or asyncio's view of one.
      idle: seconds without traffic before the kernel probes the other host.
      interval: seconds between two probes, of which three may stay unanswered.
      send_timeout: seconds that sent data may stay unacknowledged; None: the kernel's default,
        which is minutes.
    """
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, idle)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, interval)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    if send_timeout is not None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, send_timeout * 1000)
