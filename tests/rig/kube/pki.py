"""A certificate authority for one cluster, and what it signs."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME = timedelta(days=2)


@dataclass(frozen=True)
class Pair:
    """Files of a certificate and of its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs with a key that lies nowhere but here."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "rig")])
        builder = _builder(self._name, self._name, self._key).add_extension(x509.BasicConstraints(True, None), critical=True)
        self._certificate = builder.sign(self._key, hashes.SHA256())
        self.certificate = folder / "ca.crt"
        self.certificate.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def client(self, user: str, *groups: str) -> Pair:
        """For one who calls the API server as `user`."""
        return self._issue(user, groups, ExtendedKeyUsageOID.CLIENT_AUTH, ())

    def server(self, name: str, hosts: Sequence[str]) -> Pair:
        """For one who is called by these host names and addresses."""
        return self._issue(name, (), ExtendedKeyUsageOID.SERVER_AUTH, hosts)

    def kubeconfig(self, server: str, user: str, *groups: str) -> Path:
        """A file with everything in it: `server` is believed under this authority only."""
        pair = self.client(user, *groups)
        path = self.folder / f"{_file_name(user)}.kubeconfig"
        content = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "rig",
            "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": user}}],
            "clusters": [{"name": "rig", "cluster": {"server": server, "certificate-authority-data": _base64(self.certificate)}}],
            "users": [
                {
                    "name": user,
                    "user": {"client-certificate-data": _base64(pair.certificate), "client-key-data": _base64(pair.key)},
                }
            ],
        }
        path.write_text(yaml.safe_dump(content))
        return path

    def _issue(self, name: str, groups: Sequence[str], usage: x509.ObjectIdentifier, hosts: Sequence[str]) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [
                *(x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups),
                x509.NameAttribute(NameOID.COMMON_NAME, name),
            ]
        )
        builder = _builder(subject, self._name, key).add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False)
        pair = Pair(self.folder / f"{_file_name(name)}.crt", self.folder / f"{_file_name(name)}.key")
        pair.certificate.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
        write_key(pair.key, key)
        return pair


def write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )


def signing_pair(folder: Path) -> Pair:
    """A private and a public key in files, for service account tokens."""
    key = ec.generate_private_key(ec.SECP256R1())
    pair = Pair(folder / "tokens.pub", folder / "tokens.key")
    write_key(pair.key, key)
    pair.certificate.write_bytes(
        key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    return pair


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + LIFETIME)
    )


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _file_name(user: str) -> str:
    return user.removeprefix("system:").replace(":", "-")


def _base64(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()
