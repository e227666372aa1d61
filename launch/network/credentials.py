"""What the hosts of one program know each other by: one certificate, and its key, for them all.

It is made for one program and signed by itself. A host is one of the program's if it has the key;
there is nothing else to trust, to renew or to revoke.
"""

import dataclasses
import datetime
import os
import ssl

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAME = "distrl"  # of every host, to TLS

# Hosts' clocks may be far off, and the certificate is only good for as long as the program runs.
_FROM = datetime.datetime(1970, 1, 1)
_UNTIL = datetime.datetime(9999, 12, 31, 23, 59, 59)  # "no expiry", RFC 5280


@dataclasses.dataclass(frozen=True)
class Credentials:
    """Attributes: certificate, key: PEM. The key is secret, and is never printed."""

    certificate: bytes
    key: bytes = dataclasses.field(repr=False)


def make_credentials() -> Credentials:
    """Makes those of one program: an elliptic-curve key (P-256) and its certificate."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_FROM)
        .not_valid_after(_UNTIL)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    encoding = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    return Credentials(
        certificate.public_bytes(encoding),
        key.private_bytes(encoding, serialization.PrivateFormat.PKCS8, plain),
    )


def server_context(credentials: Credentials) -> ssl.SSLContext:
    """TLS 1.3 for those who accept connections; clients without the credentials are refused."""
    context = _context(ssl.PROTOCOL_TLS_SERVER, credentials)
    context.verify_mode = ssl.CERT_REQUIRED
    context.num_tickets = 0  # a connection lives long; none is resumed
    return context


def client_context(credentials: Credentials) -> ssl.SSLContext:
    """TLS 1.3 for those who connect, with `server_hostname=NAME`."""
    return _context(ssl.PROTOCOL_TLS_CLIENT, credentials)


def _context(protocol: int, credentials: Credentials) -> ssl.SSLContext:
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_verify_locations(cadata=credentials.certificate.decode())  # and no other
    # Python takes them from a file only; this one is in memory, and in no folder.
    fd = os.memfd_create("credentials")
    with open(fd, "wb") as file:
        file.write(credentials.certificate + credentials.key)
        file.flush()
        context.load_cert_chain(f"/proc/self/fd/{fd}")
    return context


def is_ours(peer: ssl.SSLObject, credentials: Credentials) -> bool:
    """Whether the other end of a connection showed the program's own certificate."""
    shown = peer.getpeercert(binary_form=True)
    return shown == ssl.PEM_cert_to_DER_cert(credentials.certificate.decode())
