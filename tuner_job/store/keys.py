"""Signing keys and the trust root: PEM files in the user's config folder, never in a store.

`signing-key.pem` is the private key (mode 0600); `trust/<key id>.pem` are the public keys that `verify` accepts.
A key id is the lower-case hex SHA-256 of the public key's DER SubjectPublicKeyInfo.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from tuner_job.api.base import InputError

Algorithm = Literal["Ed25519", "ECDSA-P256"]

CONFIG_VARIABLE = "TRTFLEET_CONFIG"
KEY_FILE = "signing-key.pem"
TRUST_FOLDER = "trust"
MAX_KEY_BYTES = 64 << 10


class KeyProblem(InputError):
    """A key file is missing, unreadable, too widely readable, or not a key of a supported kind."""

    reason = "KeyUnusable"


class PublicKey:
    """A key that signatures are checked with."""

    def __init__(self, key: ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey) -> None:
        self._key = key
        self.key_id = hashlib.sha256(
            key.public_bytes(serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
        ).hexdigest()

    @property
    def algorithm(self) -> Algorithm:
        return "Ed25519" if isinstance(self._key, ed25519.Ed25519PublicKey) else "ECDSA-P256"

    @property
    def pem(self) -> bytes:
        return self._key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)

    def verifies(self, signature: bytes, data: bytes) -> bool:
        """Whether `signature` (64 raw bytes for Ed25519, DER for ECDSA with SHA-256) is this key's over `data`."""
        try:
            if isinstance(self._key, ed25519.Ed25519PublicKey):
                self._key.verify(signature, data)
            else:
                self._key.verify(signature, data, ec.ECDSA(hashes.SHA256()))
        except InvalidSignature:
            return False
        return True

    @classmethod
    def from_pem(cls, pem: bytes, where: str) -> PublicKey:
        """Raises KeyProblem naming `where`."""
        if b"PRIVATE KEY" in pem:
            raise KeyProblem(f"{where}: holds a private key; a trust root has public keys only")
        try:
            key = serialization.load_pem_public_key(pem)
        except (ValueError, UnsupportedAlgorithm):
            raise KeyProblem(f"{where}: not a public key in PEM form (`-----BEGIN PUBLIC KEY-----`)") from None
        if isinstance(key, ec.EllipticCurvePublicKey) and not isinstance(key.curve, ec.SECP256R1):
            raise KeyProblem(f"{where}: an ECDSA key on curve {key.curve.name}; use P-256 or Ed25519")
        if not isinstance(key, ed25519.Ed25519PublicKey | ec.EllipticCurvePublicKey):
            raise KeyProblem(f"{where}: a {type(key).__name__.removesuffix('PublicKey')} key; use Ed25519 or ECDSA P-256")
        return cls(key)


class Signer:
    """A private key. Only its public half can be read from it."""

    def __init__(self, key: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self.public = PublicKey(key.public_key())

    @property
    def key_id(self) -> str:
        return self.public.key_id

    def sign(self, data: bytes) -> bytes:
        if isinstance(self._key, ed25519.Ed25519PrivateKey):
            return self._key.sign(data)
        return self._key.sign(data, ec.ECDSA(hashes.SHA256()))

    @classmethod
    def generate(cls, algorithm: Algorithm = "Ed25519") -> Signer:
        if algorithm == "Ed25519":
            return cls(ed25519.Ed25519PrivateKey.generate())
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def load(cls, path: Path, *, group_may_read: bool = False) -> Signer:
        """Read a private key. Raises KeyProblem.

        `group_may_read`: for keys that Kubernetes mounts for a pod's own group.
        """
        pem = _read(path, "signing key")
        mode = stat.S_IMODE(path.stat().st_mode)
        allowed = 0o640 if group_may_read else 0o600
        if mode & 0o077 & ~allowed:
            raise KeyProblem(f"signing key {path}: mode {mode:04o} lets others use it; run `chmod {allowed:o} {path}`")
        try:
            key = serialization.load_pem_private_key(pem, password=None)
        except TypeError:
            raise KeyProblem(f"signing key {path}: it has a passphrase; store it without one, mode 0600") from None
        except (ValueError, UnsupportedAlgorithm):
            raise KeyProblem(
                f"signing key {path}: not a private key in PEM form; restore it, or move it away to make a new one"
            ) from None
        if isinstance(key, ec.EllipticCurvePrivateKey) and not isinstance(key.curve, ec.SECP256R1):
            raise KeyProblem(f"signing key {path}: an ECDSA key on curve {key.curve.name}; use P-256 or Ed25519")
        if not isinstance(key, ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey):
            kind = type(key).__name__.removesuffix("PrivateKey")
            raise KeyProblem(f"signing key {path}: a {kind} key; use Ed25519 or ECDSA P-256")
        return cls(key)

    def _private_pem(self) -> bytes:
        return self._key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


class TrustRoot:
    """The public keys whose signatures count, by key id."""

    def __init__(self, keys: Iterable[PublicKey], where: str = "trust root") -> None:
        self.keys: Mapping[str, PublicKey] = {key.key_id: key for key in keys}
        self.where = where

    def __iter__(self) -> Iterator[PublicKey]:
        """In the order of their ids."""
        return (self.keys[key_id] for key_id in sorted(self.keys))

    def __len__(self) -> int:
        return len(self.keys)

    @classmethod
    def load(cls, path: Path | None = None) -> TrustRoot:
        """Read a folder of `*.pem`, or one file of concatenated keys; default: the config folder's `trust/`.

        A default folder that does not exist yet is an empty root, which verifies nothing. Raises KeyProblem.
        """
        source = path if path is not None else config_folder() / TRUST_FOLDER
        if path is None and not source.exists():
            return cls((), str(source))
        if not source.is_dir():
            return cls(_split(_read(source, "trust root"), str(source)), str(source))
        try:
            files = sorted(source.glob("*.pem"))
        except OSError as error:
            raise KeyProblem(f"trust root {source}: {error.strerror}") from None
        return cls((key for file in files for key in _split(_read(file, "trusted key"), str(file))), str(source))


def config_folder() -> Path:
    """`$TRTFLEET_CONFIG`, else `$XDG_CONFIG_HOME/trtfleet`, else `~/.config/trtfleet`."""
    if own := os.environ.get(CONFIG_VARIABLE):
        return Path(own)
    base = os.environ.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "trtfleet"


def signer(folder: Path | None = None, algorithm: Algorithm = "Ed25519") -> Signer:
    """The user's signing key; made, and trusted, on first use. Processes that race get the same key.

    `algorithm` counts only when the key is made. Raises KeyProblem.
    """
    folder = folder or config_folder()
    path = folder / KEY_FILE
    if not os.path.exists(path):  # unlike Path.exists, takes an unreadable folder for an absent one
        made = Signer.generate(algorithm)
        trusted = trust(made.public, folder)  # first, so that nothing is ever signed by a key that is not trusted yet
        with _Aside(path, made._private_pem(), 0o600) as aside:
            try:
                os.link(aside, path)
            except OSError as error:
                trusted.unlink(missing_ok=True)
                if not isinstance(error, FileExistsError):
                    raise KeyProblem(
                        f"signing key {path}: {error.strerror}; set {CONFIG_VARIABLE} to a folder that works"
                    ) from None
    return Signer.load(path)  # another process may have been first; its key is the key


def rotate(folder: Path | None = None, algorithm: Algorithm = "Ed25519") -> Signer:
    """Replace the signing key by a new one and destroy the old one. The old public key stays trusted. Raises KeyProblem."""
    folder = folder or config_folder()
    made = Signer.generate(algorithm)
    trust(made.public, folder)
    path = folder / KEY_FILE
    with _Aside(path, made._private_pem(), 0o600) as aside:
        os.replace(aside, path)
    return made


def trust(key: PublicKey, folder: Path | None = None) -> Path:
    """Add a key to the trust root of the config folder; returns its file. Raises KeyProblem."""
    path = (folder or config_folder()) / TRUST_FOLDER / f"{key.key_id}.pem"
    with _Aside(path, key.pem, 0o644) as aside:
        os.replace(aside, path)
    return path


def distrust(key_id: str, folder: Path | None = None) -> None:
    """Remove a key (a full id, or a beginning of eight digits or more) from the trust root. Raises KeyProblem."""
    root = (folder or config_folder()) / TRUST_FOLDER
    held = {file: _split(_read(file, "trusted key"), str(file)) for file in sorted(root.glob("*.pem"))}
    matches = {key.key_id for keys in held.values() for key in keys if len(key_id) >= 8 and key.key_id.startswith(key_id)}
    if len(matches) != 1:
        what = "no key" if not matches else f"{len(matches)} keys"
        raise KeyProblem(f"trust root {root}: {what} with id {key_id!r}; give the whole id")
    for file, keys in held.items():
        if any(key.key_id in matches for key in keys):
            if len(keys) > 1:
                raise KeyProblem(f"trust root {file}: holds {len(keys)} keys; take the one with id {matches.pop()} out by hand")
            file.unlink(missing_ok=True)


class _Aside:
    """A complete file beside `path`, to be linked or renamed onto it; removed afterwards if it still exists."""

    def __init__(self, path: Path, data: bytes, mode: int) -> None:
        self.path, self.data, self.mode = path, data, mode
        self.file = path.with_name(f".{path.name}.{secrets.token_hex(8)}")

    def __enter__(self) -> Path:
        try:
            for folder in (*reversed(self.path.parent.parents), self.path.parent):
                if not folder.is_dir():
                    folder.mkdir(mode=0o700, exist_ok=True)
            with os.fdopen(os.open(self.file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, self.mode), "wb") as stream:
                stream.write(self.data)
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            self.file.unlink(missing_ok=True) if self.path.parent.is_dir() else None
            raise KeyProblem(
                f"{self.path}: cannot be written: {error.strerror}; set {CONFIG_VARIABLE} to a folder that can"
            ) from None
        return self.file

    def __exit__(self, *_: object) -> None:
        self.file.unlink(missing_ok=True)


def _read(path: Path, what: str) -> bytes:
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_KEY_BYTES + 1)
    except OSError as error:
        raise KeyProblem(f"{what} {path}: {error.strerror}") from None
    if len(data) > MAX_KEY_BYTES:
        raise KeyProblem(f"{what} {path}: longer than {MAX_KEY_BYTES} bytes, so not a key file")
    return data


def _split(data: bytes, where: str) -> list[PublicKey]:
    """Every PEM block of a file; one that holds none is refused, so that a wrong file is not an empty root."""
    end = b"-----END PUBLIC KEY-----"
    blocks = [block + end for block in data.split(end)[:-1]]
    if not blocks:
        return [PublicKey.from_pem(data, where)]  # raises with the reason
    return [PublicKey.from_pem(block, where) for block in blocks]
