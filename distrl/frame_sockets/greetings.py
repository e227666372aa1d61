"""The first bytes of a connection: who the client is, and that it has the program's key."""

import hashlib
import struct

ID_BYTES, NAME_BYTES = 16, 48  # sizes of a client's identity and name
_GREETING = struct.Struct(f"32s{ID_BYTES}s{NAME_BYTES}s")
GREETING_BYTES = _GREETING.size


def proof(key: str) -> bytes:
    """Returns 32 bytes that prove that the client has the key."""
    return hashlib.sha256(f"distrl frames {key}".encode()).digest()


def greeting(key: str, identity: bytes, name: str) -> bytes:
    """Returns what a connection begins with, `[GREETING_BYTES]`.

    Args:
      key: see `proof`.
      identity: the client's identity, `[ID_BYTES]`; the same on all its connections.
      name: the client's name, for messages; cut to `NAME_BYTES`.
    """
    return _GREETING.pack(proof(key), identity, name.encode(errors="replace"))


def greeted(data: bytes) -> tuple[bytes, bytes, str]:
    """Returns the proof, identity and name of a greeting."""
    given, identity, name = _GREETING.unpack(data)
    return given, identity, name.rstrip(b"\0").decode(errors="replace")
