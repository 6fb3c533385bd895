"""Credentials and certificates: where a store takes them from, and that it keeps them to itself."""

from __future__ import annotations

import base64
import json
import os
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import NameOID
from rig.faulty import Answers, answering

from tuner_job.api.base import InputError
from tuner_job.store.objects import ObjectStore, StoreUnavailable

ACCOUNT_KEY = base64.b64encode(b"an-account-key-of-thirty-two-byte").decode()
ACCOUNT = "tuner@project.iam.gserviceaccount.com"


def _pem(key: rsa.RSAPrivateKey) -> str:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()).decode()


@pytest.fixture(scope="module")
def private_key() -> rsa.RSAPrivateKey:
    return rsa.generate_private_key(public_exponent=65537, key_size=2048)


@pytest.fixture(scope="module")
def service_account(private_key: rsa.RSAPrivateKey) -> str:
    """A service account's key as the provider hands it out, as far as it is read."""
    return json.dumps(
        {
            "type": "service_account",
            "project_id": "project",
            "private_key_id": "0123456789abcdef",
            "private_key": _pem(private_key),
            "client_email": ACCOUNT,
            "client_id": "1",
            "token_uri": "http://127.0.0.1:1/token",
        }
    )


@pytest.fixture(scope="module")
def authority(private_key: rsa.RSAPrivateKey) -> str:
    """PEM of a certificate that signs itself, for 127.0.0.1."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "private")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(private_key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(private_key, hashes.SHA256())
    )
    return made.public_bytes(serialization.Encoding.PEM).decode()


@pytest.fixture(autouse=True)
def no_credentials_of_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)


def claims(authorization: str) -> dict[str, object]:
    """What a bearer token that is a JWT says."""
    body = authorization.removeprefix("Bearer ").split(".")[1]
    said = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    assert isinstance(said, dict)
    return said


def request_headers(answers: Answers, url: str, options: dict[str, str]) -> dict[str, str]:
    answers.body = b"x"
    found = ObjectStore.open(url, {"endpoint": answers.endpoint, "timeoutSeconds": "2", **options}).get("a", 10)
    assert found is not None
    return answers.heard[-1]


class TestWorkersEnvironment:
    """A pod gets its Secret's keys as variables of the same names."""

    def test_s3(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "the-id")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "the-secret")
        with answering() as answers:
            headers = request_headers(answers, "s3://bucket/p", {})
            assert "Credential=the-id/" in headers["authorization"]
            assert "x-amz-security-token" not in headers
            monkeypatch.setenv("AWS_SESSION_TOKEN", "the-token")
            assert request_headers(answers, "s3://bucket/p", {})["x-amz-security-token"] == "the-token"

    def test_azure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY)
        with answering() as answers:
            assert request_headers(answers, "az://acc/container/p", {})["authorization"].startswith("SharedKey acc:")

    def test_google(self, monkeypatch: pytest.MonkeyPatch, service_account: str) -> None:
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", service_account)
        with answering() as answers:
            assert claims(request_headers(answers, "gs://bucket/p", {})["authorization"])["iss"] == ACCOUNT


class TestOptions:
    """The operator reads the same keys as files, and gives them as options."""

    def test_a_service_accounts_key_is_a_text_or_a_file(self, tmp_path: Path, service_account: str) -> None:
        path = tmp_path / "key.json"
        path.write_text(service_account)
        with answering() as answers:
            for options in ({"serviceAccountKey": service_account}, {"serviceAccountFile": str(path)}):
                assert claims(request_headers(answers, "gs://bucket/p", options)["authorization"])["iss"] == ACCOUNT

    @pytest.mark.parametrize(
        ("url", "options", "says"),
        [
            ("gs://b", {"serviceAccountKey": "{}", "serviceAccountFile": "/x"}, "serviceAccountFile and serviceAccountKey"),
            ("gs://b", {"caFile": "/x", "caPem": "x"}, "caFile and caPem"),
            ("s3://b", {"caFile": "/x", "caPem": "x"}, "give one of them"),
            ("az://a/c", {"caFile": "/x", "caPem": "x"}, "give one of them"),
            ("s3://b", {"serviceAccountKey": "{}"}, "serviceAccountKey is not one of s3://'s"),
        ],
    )
    def test_the_same_thing_said_twice_is_refused(self, url: str, options: dict[str, str], says: str) -> None:
        with pytest.raises(InputError, match=says):
            ObjectStore.open(url, options)

    @pytest.mark.parametrize("url", ["s3://bucket", "gs://bucket", "az://account/container"])
    def test_a_ca_that_is_no_certificate_is_refused(self, url: str) -> None:
        pem = "-----BEGIN CERTIFICATE-----\nnonsense\n-----END CERTIFICATE-----\n"
        with pytest.raises(InputError, match=f"store {url}: "):
            ObjectStore.open(url, {"caPem": pem, "anonymous": "true"})

    @pytest.mark.parametrize("where", ["option", "variable"])
    def test_a_key_that_cannot_be_used_is_not_shown(self, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
        options = {}
        if where == "option":
            options = {"serviceAccountKey": '{"private_key": "do-not-tell"}'}
        else:
            monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT_KEY", '{"private_key": "do-not-tell"}')
        with pytest.raises(InputError, match="store gs://bucket: ") as caught:
            ObjectStore.open("gs://bucket", options)
        assert "do-not-tell" not in str(caught.value)


def test_no_store_shows_its_credentials(service_account: str) -> None:
    secrets = {
        "s3://bucket": {"accessKeyId": "the-id", "secretAccessKey": "do-not-tell", "sessionToken": "do-not-tell"},
        "az://account/container": {"accountKey": base64.b64encode(b"do-not-tell").decode()},
        "gs://bucket": {"serviceAccountKey": service_account},
    }
    for url, options in secrets.items():
        store = ObjectStore.open(url, options)
        shown = f"{store!r} {store} {vars(store)!r}"
        for value in ("do-not-tell", base64.b64encode(b"do-not-tell").decode(), "PRIVATE KEY"):
            assert value not in shown


class TestCertificates:
    """A store behind a private certificate authority."""

    def test_it_is_trusted_by_its_text_or_file_only(
        self, tmp_path: Path, authority: str, private_key: rsa.RSAPrivateKey, service_account: str
    ) -> None:
        both, ca = tmp_path / "server.pem", tmp_path / "ca.pem"
        both.write_text(authority + _pem(private_key))
        ca.write_text(authority)
        stores = {
            "s3://bucket/p": {"accessKeyId": "a", "secretAccessKey": "b"},
            "az://account/container/p": {"accountKey": ACCOUNT_KEY},
            "gs://bucket/p": {"serviceAccountKey": service_account},
        }
        with answering(both) as answers:
            for url, options in stores.items():
                for trust in ({"caPem": authority}, {"caFile": str(ca)}):
                    assert request_headers(answers, url, options | trust)
            with pytest.raises(StoreUnavailable):
                request_headers(answers, "s3://bucket/p", stores["s3://bucket/p"])
