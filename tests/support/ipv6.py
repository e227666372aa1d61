"""IPv6, which not every machine has."""

import functools
import socket
from typing import Any

import pytest


def needs_ipv6(*values: Any) -> Any:
    """Returns a test's parameters, which are left out where ::1 cannot be bound."""
    return pytest.param(*values, marks=pytest.mark.skipif(not _has_ipv6(), reason="no IPv6 here"))


@functools.cache
def _has_ipv6() -> bool:
    try:
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError:
        return False
    return True
