"""Seals credentials for one process, which alone can open them.

The launcher sends the credentials through connections that others may read (`srun`), and through a
daemon, whose nodes would inherit them in memory. So a host's tunnel makes a key pair, and the
launcher encrypts for its public key: ephemeral X25519, HKDF-SHA256, AES-256-GCM.
"""

import base64

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from distrl.errors import ConfigError
from distrl.launch.network.credentials import Credentials

_RAW = serialization.Encoding.Raw, serialization.PublicFormat.Raw
_KEY_SIZE = 32  # bytes of a public key
_NONCE = bytes(12)  # each key encrypts once
_BETWEEN = b"\0"  # certificate and key, which are PEM


class Opener:
    """Opens what is sealed for its public key."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public_key = base64.b64encode(self._private.public_key().public_bytes(*_RAW)).decode()

    def open(self, sealed: str) -> Credentials:
        """Returns what was sealed; raises ConfigError if it was sealed for another key."""
        data = base64.b64decode(sealed)
        sender, encrypted = data[:_KEY_SIZE], data[_KEY_SIZE:]
        secret = self._private.exchange(X25519PublicKey.from_public_bytes(sender))
        receiver = self._private.public_key().public_bytes(*_RAW)
        try:
            text = AESGCM(_derived(secret, receiver, sender)).decrypt(_NONCE, encrypted, None)
        except InvalidTag:
            raise ConfigError("the credentials were sealed for another process") from None
        certificate, _, key = text.partition(_BETWEEN)
        return Credentials(certificate, key)


def seal(credentials: Credentials, public_key: str) -> str:
    """Returns credentials that only the `Opener` with this public key can open, as text."""
    receiver = base64.b64decode(public_key)
    private = X25519PrivateKey.generate()
    sender = private.public_key().public_bytes(*_RAW)
    secret = private.exchange(X25519PublicKey.from_public_bytes(receiver))
    text = credentials.certificate + _BETWEEN + credentials.key
    encrypted = AESGCM(_derived(secret, receiver, sender)).encrypt(_NONCE, text, None)
    return base64.b64encode(sender + encrypted).decode()


def _derived(secret: bytes, receiver: bytes, sender: bytes) -> bytes:
    kdf = HKDF(hashes.SHA256(), 32, None, b"distrl credentials" + receiver + sender)
    return kdf.derive(secret)
