"""Credentials by which the hosts of one program recognise each other: one certificate and its key.

They are made for one program, the certificate is self-signed, and all hosts have both. A host that
has the key belongs to the program; there is nothing else to trust, renew or revoke.
"""

import dataclasses
import datetime
import os
import pathlib
import ssl
import stat

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from distrl.errors import ConfigError
from distrl.runtime.files import write_private
from distrl.runtime.memory_file import memory_file
from distrl.runtime.working_folder import absolute

NAME = "distrl"  # every host's name in TLS

# Hosts' clocks may be far off, and the certificate only matters while the program runs.
_NOT_BEFORE = datetime.datetime(1970, 1, 1)
_NOT_AFTER = datetime.datetime(9999, 12, 31, 23, 59, 59)  # "no expiry", RFC 5280


@dataclasses.dataclass(frozen=True)
class Credentials:
    """A program's credentials.

    Attributes:
      certificate: PEM.
      key: PEM. It is secret, and never printed.
    """

    certificate: bytes
    key: bytes = dataclasses.field(repr=False)


def make_credentials() -> Credentials:
    """Makes new credentials: an elliptic-curve key (P-256) and its certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    unencrypted = serialization.NoEncryption()
    return Credentials(
        certificate.public_bytes(encoding),
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, unencrypted),
    )


def read_credentials(path: str) -> Credentials:
    """Reads credentials from a PEM file that nobody else can read or write.

    Raises:
      ConfigError: the file cannot be read, has no certificate with its private key, or other users
        have access to it.
    """
    try:
        with open(absolute(path), "rb") as file:
            _check_private(path, os.fstat(file.fileno()))
            text = file.read()
    except OSError as error:
        raise ConfigError(f"--credentials={path}: {error.strerror}") from error
    parts = [b"-----BEGIN " + part for part in text.split(b"-----BEGIN ")[1:]]
    certificate = b"".join(part for part in parts if b" CERTIFICATE" in part.splitlines()[0])
    key = b"".join(part for part in parts if b"PRIVATE KEY" in part.splitlines()[0])
    if not certificate or not key:
        raise ConfigError(f"--credentials={path}: expected a certificate and a private key (PEM)")
    credentials = Credentials(certificate, key)
    try:
        client_context(credentials)
    except (ssl.SSLError, UnicodeDecodeError) as error:
        reason = str(error).partition(" (_ssl")[0]
        raise ConfigError(
            f"--credentials={path}: not a certificate and its private key, unencrypted (PEM): "
            f"{reason}"
        ) from error
    return credentials


def _check_private(path: str, about: os.stat_result) -> None:
    """Raises ConfigError unless a file is its user's alone.

    A file of root may be readable by a group: Kubernetes mounts secrets that way.
    """
    mode = stat.S_IMODE(about.st_mode)
    if about.st_uid not in (os.geteuid(), 0):
        raise ConfigError(
            f"--credentials={path}: it belongs to another user (uid {about.st_uid}), who has the "
            "key too; use a file of your own"
        )
    if mode & (0o077 if about.st_uid == os.geteuid() else 0o037):
        raise ConfigError(
            f"--credentials={path}: other users can read or write it (mode {mode:04o}); "
            f"chmod 600 it, and make new credentials if the others are not to be trusted"
        )


def write_credentials(path: pathlib.Path, credentials: Credentials) -> None:
    """Writes credentials to a PEM file that nobody else can read.

    Raises:
      ConfigError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_private(
            path, credentials.certificate.strip() + b"\n" + credentials.key.strip() + b"\n"
        )
    except OSError as error:
        raise ConfigError(f"--credentials={path}: {error.strerror}") from error


def server_context(credentials: Credentials) -> ssl.SSLContext:
    """Returns a TLS 1.3 context to accept connections; it refuses clients without credentials."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, credentials)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # connections are long-lived, and none is resumed
    return context


def client_context(credentials: Credentials) -> ssl.SSLContext:
    """Returns a TLS 1.3 context to connect, with `server_hostname=NAME`."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, credentials)


def _context(protocol: int, credentials: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=credentials.certificate.decode())  # trusts no other
    # Python loads a certificate chain only from a file; this one is in memory, in no folder.
    fd = memory_file("credentials")
    with open(fd, "wb") as file:
        file.write(credentials.certificate + credentials.key)
        file.flush()
        # Without a password, that of an encrypted key would be asked for in the terminal.
        context.load_cert_chain(f"/proc/self/fd/{fd}", password="")
    return context


def is_ours(peer: ssl.SSLObject, credentials: Credentials) -> bool:
    """Returns whether the other end of a connection has shown the program's certificate."""
    shown = peer.getpeercert(binary_form=True)
    return shown == ssl.PEM_cert_to_DER_cert(credentials.certificate.decode())
