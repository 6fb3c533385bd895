"""From a URL and options to a store behind a network. Nothing is asked of the store yet."""

from __future__ import annotations

import os
import threading
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from obstore.exceptions import BaseError
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from tuner_job.api.base import InputError
from tuner_job.store.objects import ObjectStore, check_key
from tuner_job.store.remote import Inner, RemoteStore, first_line

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, RetryConfig, S3Config

STORE_OPTIONS = "TRTFLEET_STORE_OPTIONS"
"""Environment variable with a store's options as a JSON object: credentials must not stand on a command line."""

REMOTE_SCHEMES = ("memory", "s3", "gs", "az")

_RETRIES = 4

_OPTIONS = {
    "memory": frozenset[str](),
    "s3": frozenset({"region", "pathStyle", "accessKeyId", "secretAccessKey", "sessionToken"}),
    "gs": frozenset({"serviceAccountFile", "serviceAccountKey"}),
    "az": frozenset({"accountKey"}),
}
_COMMON = frozenset({"endpoint", "allowHttp", "caFile", "caPem", "anonymous", "timeoutSeconds", "multipart"})

_memories: dict[str, MemoryStore] = {}
_memories_lock = threading.Lock()


def open_remote(url: str, options: dict[str, str]) -> ObjectStore:
    """See ObjectStore.open."""
    parts = urlsplit(url)
    kind, root, path = parts.scheme, parts.netloc, unquote(parts.path).strip("/")
    if not root or parts.query or parts.fragment or "@" in root:
        shown = f"{kind}://{root.rpartition('@')[2]}{parts.path}"  # less the credentials
        raise InputError(f"store {shown}: write it as {kind}://name/prefix, without credentials or query")
    unknown = sorted(options.keys() - _OPTIONS[kind] - (_COMMON if kind != "memory" else frozenset()))
    if unknown:
        raise InputError(f"store {url}: option {unknown[0]} is not one of {kind}://'s")
    multipart = _flag(url, options, "multipart", True)
    if path:
        check_key(path)
    if kind == "memory":
        with _memories_lock:
            return RemoteStore(url, _memories.setdefault(root, MemoryStore()), path, multipart)
    timeout = _seconds(url, options)
    endpoint = options.get("endpoint", "")
    if kind == "s3" and not endpoint:
        endpoint = next((os.environ[name] for name in _S3_ENDPOINTS if os.environ.get(name)), "")
    client = _client(url, options, endpoint, timeout)
    retry: RetryConfig = {
        "max_retries": _RETRIES,
        "retry_timeout": timedelta(seconds=2 * timeout),
        "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
    }
    anonymous = _flag(url, options, "anonymous", False)
    inner: Inner
    try:
        if kind == "s3":
            inner = S3Store(root, config=_s3(url, options, endpoint, anonymous), client_options=client, retry_config=retry)
        elif kind == "gs":
            inner = GCSStore(root, config=_gs(url, options, anonymous), client_options=client, retry_config=retry)
        else:
            container, _, path = path.partition("/")
            if not container:
                raise InputError(f"store {url}: write it as az://account/container/prefix")
            inner = AzureStore(container, config=_az(root, options, anonymous), client_options=client, retry_config=retry)
    except (BaseError, ValueError, OSError) as error:
        raise InputError(f"store {url}: {first_line(error)}") from None
    return RemoteStore(url, inner, path, multipart)


def _s3(url: str, options: dict[str, str], endpoint: str, anonymous: bool) -> S3Config:
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
    config: S3Config = {
        "region": region,
        "virtual_hosted_style_request": not _flag(url, options, "pathStyle", True),
    }
    if endpoint:
        config["endpoint"] = endpoint
    if ("accessKeyId" in options) != ("secretAccessKey" in options):
        raise InputError(f"store {url}: options accessKeyId and secretAccessKey go together")
    if "accessKeyId" in options:
        config["access_key_id"] = options["accessKeyId"]
        config["secret_access_key"] = options["secretAccessKey"]
    if "sessionToken" in options:
        config["session_token"] = options["sessionToken"]
    if anonymous:
        config["skip_signature"] = True
    elif endpoint and "accessKeyId" not in options and not any(name in os.environ for name in _S3_CREDENTIALS):
        # another provider's endpoint has no instance metadata to ask, which would only be waited for
        raise InputError(f"store {url}: no credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the option anonymous")
    return config


_S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")
"""Each is read by obstore too, so an unencrypted one must be found here."""

_S3_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def _gs(url: str, options: dict[str, str], anonymous: bool) -> GCSConfig:
    _either(url, options, "serviceAccountFile", "serviceAccountKey")
    config: GCSConfig = {"skip_signature": True} if anonymous else {}
    if "endpoint" in options:
        config["base_url"] = options["endpoint"]
    if "serviceAccountFile" in options:
        config["service_account"] = options["serviceAccountFile"]
    if "serviceAccountKey" in options:
        config["service_account_key"] = options["serviceAccountKey"]
    return config


def _az(account: str, options: dict[str, str], anonymous: bool) -> AzureConfig:
    config: AzureConfig = {"account_name": account}
    if anonymous:
        config["skip_signature"] = True
    if "endpoint" in options:
        config["endpoint"] = options["endpoint"]
    if "accountKey" in options:
        config["account_key"] = options["accountKey"]
    return config


def _client(url: str, options: dict[str, str], endpoint: str, timeout: float) -> ClientConfig:
    client: ClientConfig = {
        "timeout": timedelta(seconds=timeout),
        "connect_timeout": timedelta(seconds=min(5.0, timeout)),
        "allow_http": _http_allowed(url, options, endpoint),
        "user_agent": "trtfleet",
    }
    _either(url, options, "caFile", "caPem")
    if "caPem" in options:
        client["root_certificate"] = options["caPem"].encode()
    if "caFile" in options:
        try:
            client["root_certificate"] = Path(options["caFile"]).read_bytes()
        except OSError as error:
            raise InputError(f"store {url}: option caFile: cannot read {options['caFile']}: {error.strerror}") from None
    return client


def _either(url: str, options: dict[str, str], one: str, other: str) -> None:
    if one in options and other in options:
        raise InputError(f"store {url}: options {one} and {other} say the same; give one of them")


def _http_allowed(url: str, options: dict[str, str], endpoint: str) -> bool:
    if not endpoint:
        return False
    try:
        parts = urlsplit(endpoint)
        host, _ = parts.hostname, parts.port
    except ValueError:
        host, parts = None, urlsplit("")
    if parts.scheme not in ("http", "https") or not host or parts.query or "@" in parts.netloc:
        raise InputError(f"store {url}: endpoint {endpoint!r}: write it as https://host or https://host:port")
    if parts.scheme == "https":
        return False
    if _is_loopback(host) or _flag(url, options, "allowHttp", False):
        return True
    raise InputError(
        f"store {url}: endpoint {endpoint!r} would send results unencrypted; use https, or set insecureHttp in the ArtifactStore "
        "(option allowHttp)"
    )


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _flag(url: str, options: dict[str, str], name: str, default: bool) -> bool:
    value = options.get(name, str(default).lower())
    if value not in ("true", "false"):
        raise InputError(f"store {url}: option {name} is {value!r}; write true or false")
    return value == "true"


def _seconds(url: str, options: dict[str, str]) -> float:
    value = options.get("timeoutSeconds", "30")
    if not value.isascii() or not value.isdigit() or not 1 <= int(value) <= 600:
        raise InputError(f"store {url}: option timeoutSeconds is {value!r}; write a whole number from 1 to 600")
    return float(value)
