"""Files with credentials: only their user has access to them."""

import os
from pathlib import Path

import pytest

pytest.importorskip("cryptography")

from cryptography.hazmat.primitives import serialization

from distrl.errors import ConfigError
from distrl.launch.hosts import kubernetes
from distrl.launch.network.credentials import (
    Credentials,
    make_credentials,
    read_credentials,
    write_credentials,
)
from tests.support.other_user import NOBODY

MADE = make_credentials()


@pytest.mark.parametrize("python", ["any", "for an old glibc"])
def test_what_is_written_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, python: str):
    if python != "any":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    path = tmp_path / "new" / "run.pem"
    write_credentials(path, MADE)
    assert path.stat().st_mode & 0o777 == 0o600
    assert read_credentials(str(path)) == MADE
    assert [each.name for each in path.parent.iterdir()] == ["run.pem"]


def write_manifest(path: Path, credentials: Credentials) -> None:
    pytest.importorskip("yaml")
    kubernetes.write(path, [{"key": credentials.key.decode()}])


@pytest.mark.parametrize("write", [write_credentials, write_manifest])
def test_an_existing_file_or_link_is_replaced(tmp_path: Path, write):
    path, target = tmp_path / "run.pem", tmp_path / "target"
    target.write_text("of another user")
    path.symlink_to(target)
    write(path, MADE)
    assert target.read_text() == "of another user" and not path.is_symlink()
    path.chmod(0o666)
    write(path, MADE)
    assert path.stat().st_mode & 0o777 == 0o600


def encrypted(key: bytes) -> bytes:
    private = serialization.load_pem_private_key(key, None)
    return private.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"password"),
    )


@pytest.mark.parametrize(
    "wrong",
    [
        Credentials(MADE.certificate, make_credentials().key),
        Credentials(MADE.certificate, encrypted(MADE.key)),
        Credentials(MADE.certificate, MADE.key.replace(b"M", b"!")),
        Credentials(MADE.certificate[:80] + MADE.certificate[90:], MADE.key),
        Credentials(MADE.certificate.replace(b"M", b"\xff"), MADE.key),
    ],
    ids=["another's key", "encrypted key", "damaged key", "damaged certificate", "no text"],
)
def test_a_file_that_no_connection_can_use_is_refused(tmp_path: Path, wrong: Credentials):
    path = tmp_path / "run.pem"
    write_credentials(path, wrong)
    with pytest.raises(ConfigError, match="not a certificate and its private key, unencrypted"):
        read_credentials(str(path))


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o644])
def test_a_file_that_others_have_access_to_is_refused(tmp_path: Path, mode: int):
    path = tmp_path / "run.pem"
    write_credentials(path, MADE)
    path.chmod(mode)
    with pytest.raises(ConfigError, match=rf"other users can .* \(mode {mode:04o}\); chmod 600"):
        read_credentials(str(path))
    link = tmp_path / "link.pem"
    link.symlink_to(path)
    with pytest.raises(ConfigError, match="other users"):
        read_credentials(str(link))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make another user's file")
def test_whose_file_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "run.pem"
    write_credentials(path, MADE)
    path.chmod(0o440)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert read_credentials(str(path)) == MADE  # root's, with a group: a secret of Kubernetes
    path.chmod(0o444)
    with pytest.raises(ConfigError, match="other users can read"):
        read_credentials(str(path))
    path.chmod(0o400)
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(ConfigError, match="belongs to another user"):
        read_credentials(str(path))


def test_a_folder_that_cannot_be_written_is_one_line(tmp_path: Path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"--credentials=.*: "):
        write_credentials(tmp_path / "file" / "run.pem", MADE)
