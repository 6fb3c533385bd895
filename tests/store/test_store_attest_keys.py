from __future__ import annotations

import hashlib
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed448, rsa

from tuner_job.store.keys import (
    KEY_FILE,
    KeyProblem,
    PublicKey,
    Signer,
    TrustRoot,
    config_folder,
    distrust,
    rotate,
    signer,
    trust,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "config"


def refused(call: object) -> str:
    with pytest.raises(KeyProblem) as caught:
        call()  # type: ignore[operator]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def private_pem(key: object, password: bytes | None = None) -> bytes:
    encryption = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)  # type: ignore[attr-defined,no-any-return]


def write_key(path: Path, pem: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(pem)
    path.chmod(0o600)
    return path


def test_the_config_folder_follows_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRTFLEET_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/home/someone")
    assert config_folder() == Path("/home/someone/.config/trtfleet")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/xdg")
    assert config_folder() == Path("/xdg/trtfleet")
    monkeypatch.setenv("TRTFLEET_CONFIG", "/own")
    assert config_folder() == Path("/own")


@pytest.mark.parametrize("algorithm", ["Ed25519", "ECDSA-P256"])
def test_the_key_is_made_trusted_and_kept_for_its_user_alone(folder: Path, algorithm: str) -> None:
    first = signer(folder, algorithm)  # type: ignore[arg-type]
    assert first.public.algorithm == algorithm
    assert stat.S_IMODE((folder / KEY_FILE).stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert signer(folder).key_id == first.key_id
    assert TrustRoot.load(folder / "trust").keys.keys() == {first.key_id}
    assert first.public.verifies(first.sign(b"data"), b"data")
    assert not first.public.verifies(first.sign(b"data"), b"Data")
    assert sorted(os.listdir(folder)) == [KEY_FILE, "trust"]


def test_the_key_id_is_the_digest_of_the_public_key(folder: Path) -> None:
    pem = signer(folder).public.pem
    der = serialization.load_pem_public_key(pem).public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    assert signer(folder).key_id == hashlib.sha256(der).hexdigest()


def test_processes_that_race_for_the_first_key_get_one(folder: Path) -> None:
    code = (
        "import pathlib, sys\n"
        "from tuner_job.store.keys import signer\n"
        "sys.stdin.read(1)\n"
        "print(signer(pathlib.Path(sys.argv[1])).key_id)"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    for child in children:
        assert child.stdin is not None
        child.stdin.close()
    ids = {child.stdout.read().strip() for child in children if child.stdout}
    assert [child.wait() for child in children] == [0] * 4
    assert ids == {signer(folder).key_id}
    assert TrustRoot.load(folder / "trust").keys.keys() == ids
    assert sorted(os.listdir(folder)) == [KEY_FILE, "trust"]


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o620, 0o604])
def test_a_key_that_others_can_use_is_refused_with_the_command_that_mends_it(folder: Path, mode: int) -> None:
    signer(folder)
    (folder / KEY_FILE).chmod(mode)
    message = refused(lambda: signer(folder))
    assert f"{mode:04o}" in message
    assert f"chmod 600 {folder / KEY_FILE}" in message


def test_a_mounted_key_may_be_read_by_the_group_only_where_that_is_asked_for(folder: Path) -> None:
    made = signer(folder)
    (folder / KEY_FILE).chmod(0o440)
    assert Signer.load(folder / KEY_FILE, group_may_read=True).key_id == made.key_id
    (folder / KEY_FILE).chmod(0o444)
    refused(lambda: Signer.load(folder / KEY_FILE, group_may_read=True))


def test_other_kinds_of_keys_are_refused_by_name(folder: Path) -> None:
    for key, kind in (
        (rsa.generate_private_key(65537, 2048), "RSA"),
        (ed448.Ed448PrivateKey.generate(), "Ed448"),
        (ec.generate_private_key(ec.SECP384R1()), "secp384r1"),
    ):
        path = write_key(folder / KEY_FILE, private_pem(key))
        assert kind in refused(lambda path=path: Signer.load(path))
        public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        assert kind in refused(lambda public=public: PublicKey.from_pem(public, "here"))


@pytest.mark.parametrize(
    "content", [b"", b"rubbish", b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", b"x" * 70_000]
)
def test_what_is_no_key_is_refused_and_left_alone(folder: Path, content: bytes) -> None:
    path = write_key(folder / KEY_FILE, content)
    assert str(path) in refused(lambda: signer(folder))
    assert path.read_bytes() == content


def test_a_key_with_a_passphrase_is_refused(folder: Path) -> None:
    path = write_key(folder / KEY_FILE, private_pem(ec.generate_private_key(ec.SECP256R1()), b"secret"))
    assert "passphrase" in refused(lambda: Signer.load(path))


def test_a_config_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    message = refused(lambda: signer(tmp_path / "file" / "config"))
    assert str(tmp_path / "file" / "config") in message
    assert "TRTFLEET_CONFIG" in message


def test_a_missing_key_or_trust_root_that_was_named_is_refused(tmp_path: Path) -> None:
    assert "nothing.pem" in refused(lambda: Signer.load(tmp_path / "nothing.pem"))
    assert "nothing" in refused(lambda: TrustRoot.load(tmp_path / "nothing"))


def test_a_user_without_keys_trusts_nobody(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRTFLEET_CONFIG", str(folder))
    assert len(TrustRoot.load()) == 0
    assert not folder.exists()


def test_rotation_makes_a_new_key_and_goes_on_trusting_the_old_one(folder: Path) -> None:
    old = signer(folder)
    new = rotate(folder, "ECDSA-P256")
    assert signer(folder).key_id == new.key_id != old.key_id
    assert TrustRoot.load(folder / "trust").keys.keys() == {old.key_id, new.key_id}
    assert stat.S_IMODE((folder / KEY_FILE).stat().st_mode) == 0o600
    distrust(old.key_id[:12], folder)
    assert TrustRoot.load(folder / "trust").keys.keys() == {new.key_id}


def test_a_key_that_was_distrusted_is_not_trusted_again_by_using_it(folder: Path) -> None:
    made = signer(folder)
    distrust(made.key_id, folder)
    signer(folder)
    assert len(TrustRoot.load(folder / "trust")) == 0


def test_distrust_needs_one_key(folder: Path) -> None:
    made = signer(folder)
    assert "no key" in refused(lambda: distrust("0" * 64, folder))
    assert "no key" in refused(lambda: distrust(made.key_id[:7], folder))


def test_a_key_file_by_any_name_is_trusted_and_distrusted_by_its_id(folder: Path) -> None:
    other = Signer.generate().public
    (folder / "trust").mkdir(parents=True)
    (folder / "trust" / "colleague.pem").write_bytes(other.pem)
    assert TrustRoot.load(folder / "trust").keys.keys() == {other.key_id}
    distrust(other.key_id, folder)
    assert len(TrustRoot.load(folder / "trust")) == 0


def test_one_file_can_hold_several_keys(tmp_path: Path) -> None:
    keys = [Signer.generate().public, Signer.generate("ECDSA-P256").public]
    (tmp_path / "keys.pem").write_bytes(b"# ours\n" + b"\n".join(key.pem for key in keys))
    assert TrustRoot.load(tmp_path / "keys.pem").keys.keys() == {key.key_id for key in keys}


def test_a_file_without_keys_is_no_empty_trust_root(folder: Path) -> None:
    trust(Signer.generate().public, folder)
    (folder / "trust" / "wrong.pem").write_bytes(b"not a key")
    assert "wrong.pem" in refused(lambda: TrustRoot.load(folder / "trust"))


def test_a_private_key_in_the_trust_root_is_refused(folder: Path) -> None:
    write_key(folder / "trust" / "leaked.pem", private_pem(ec.generate_private_key(ec.SECP256R1())))
    assert "private key" in refused(lambda: TrustRoot.load(folder / "trust"))
