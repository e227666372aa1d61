"""TCP addresses."""

import pytest

from distrl.errors import ConfigError
from distrl.runtime.sockets import parse_address


@pytest.mark.parametrize(
    ("address", "parsed"),
    [
        ("h1:7", ("h1", 7)),
        ("10.0.0.1:65535", ("10.0.0.1", 65535)),
        ("[fd00::1]:7", ("fd00::1", 7)),
        ("fd00::1:7", ("fd00::1", 7)),
    ],
)
def test_an_address_has_a_host_and_a_port(address: str, parsed: tuple[str, int]):
    assert parse_address(address, "--join") == parsed


@pytest.mark.parametrize("address", ["h1", ":7", "[]:7", "h1:", "h1:x", "h1:0", "h1:65536"])
def test_what_is_no_address_is_refused(address: str):
    with pytest.raises(ConfigError) as refused:
        parse_address(address, "--join")
    assert str(refused.value) == f"--join: expected HOST:PORT, got {address!r}"
