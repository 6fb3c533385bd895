"""Stores behind a network (and in memory), through obstore's synchronous API.

Only the synchronous API: obstore's asynchronous one can abort the interpreter at exit. obstore retries by itself, within limits
set here; a retry may meet the success of its own first try, so a refused condition is checked against what the object now holds.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator
from datetime import timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote, urlsplit

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    NotModifiedError,
    NotSupportedError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import AzureStore, GCSStore, MemoryStore, S3Store

from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.store.folder import written_aside
from tuner_job.store.objects import (
    Content,
    Info,
    Object,
    ObjectStore,
    StoreCorrupt,
    StoreFull,
    StoreNotConditional,
    StoreReadOnly,
    StoreUnavailable,
    check_key,
    corrupt,
    too_long,
)

if TYPE_CHECKING:
    from obstore.store import AzureConfig, ClientConfig, GCSConfig, RetryConfig, S3Config

REMOTE_SCHEMES = ("memory", "s3", "gs", "az")

_PART_BYTES = 8 << 20
_PARTS = 9_000
"""Stores allow 10,000 parts of one upload."""
_RANGE_BYTES = 16 << 20
"""A download asks for so much at a time, so that the deadline of a request suits files of any size."""
_RETRIES = 4

_OPTIONS = {
    "memory": frozenset[str](),
    "s3": frozenset({"region", "pathStyle", "accessKeyId", "secretAccessKey", "sessionToken"}),
    "gs": frozenset({"serviceAccountFile"}),
    "az": frozenset({"accountKey"}),
}
_COMMON = frozenset({"endpoint", "allowHttp", "caFile", "anonymous", "timeoutSeconds", "multipart"})

_memories: dict[str, MemoryStore] = {}
_memories_lock = threading.Lock()

Inner = MemoryStore | S3Store | GCSStore | AzureStore


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
    if kind == "memory":
        with _memories_lock:
            return RemoteStore(url, _memories.setdefault(root, MemoryStore()), path, multipart)
    timeout = _seconds(url, options)
    client = _client(url, options, timeout)
    retry: RetryConfig = {
        "max_retries": _RETRIES,
        "retry_timeout": timedelta(seconds=2 * timeout),
        "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=5), "base": 2},
    }
    anonymous = _flag(url, options, "anonymous", False)
    inner: Inner
    try:
        if kind == "s3":
            inner = S3Store(root, config=_s3(url, options, anonymous), client_options=client, retry_config=retry)
        elif kind == "gs":
            inner = GCSStore(root, config=_gs(options, anonymous), client_options=client, retry_config=retry)
        else:
            container, _, path = path.partition("/")
            if not container:
                raise InputError(f"store {url}: write it as az://account/container/prefix")
            inner = AzureStore(container, config=_az(root, options, anonymous), client_options=client, retry_config=retry)
    except (BaseError, ValueError, OSError) as error:
        raise InputError(f"store {url}: {_first_line(error)}") from None
    if path:
        check_key(path)
    return RemoteStore(url, inner, path, multipart)


class RemoteStore(ObjectStore):
    def __init__(self, url: str, inner: Inner, prefix: str, multipart: bool = True) -> None:
        self.url = url
        self._inner = inner
        self._prefix = f"{prefix}/" if prefix else ""
        self._multipart = multipart

    def get(self, key: str, max_bytes: int) -> Object | None:
        with self._explain("read", key):
            try:
                result = obstore.get(self._inner, self._full(key))
                size = result.meta["size"]
                if size > max_bytes:
                    raise too_long(self.url, key, size, max_bytes)
                return Object(bytes(result.bytes()), _tag(result.meta["e_tag"], result.meta["version"]))
            except FileNotFoundError as error:
                self._check_absence(error)
                return None

    def create(self, key: str, data: bytes) -> bool:
        return self._conditional(key, data, "create")

    def put(self, key: str, data: bytes) -> None:
        with self._explain("write", key):
            obstore.put(self._inner, self._full(key), data, use_multipart=False)

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        e_tag, _, version = tag.partition("\n")
        if not e_tag and not version:
            raise StoreNotConditional(f"store {self.url}: it gives {key} no version, which compare-and-swap needs")
        mode: obstore.UpdateVersion = {}
        if e_tag:
            mode["e_tag"] = e_tag
        if version:
            mode["version"] = version
        return self._conditional(key, data, mode)

    def _conditional(self, key: str, data: bytes, mode: Literal["create"] | obstore.UpdateVersion) -> bool:
        with self._explain("write", key):
            try:
                obstore.put(self._inner, self._full(key), data, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError, NotModifiedError):
                pass  # lost to another, or to this call's own first try
            except FileNotFoundError as error:
                self._check_absence(error)  # to be swapped, but gone
                return False
            except (NotSupportedError, NotImplementedError) as error:
                raise self._not_conditional(error) from None
            except BaseError as error:
                if _mentions(error, "501 Not Implemented", "NotImplemented"):
                    raise self._not_conditional(error) from None
                raise
            else:
                return True
            return self._holds(key, data)

    def _holds(self, key: str, data: bytes) -> bool:
        try:
            result = obstore.get(self._inner, self._full(key))
            return result.meta["size"] == len(data) and bytes(result.bytes()) == data
        except FileNotFoundError:
            return False

    def list(self, prefix: str) -> Iterator[Info]:
        full = self._full(prefix) if prefix else self._prefix.rstrip("/")
        with self._explain("list", prefix or "everything"):
            for page in obstore.list(self._inner, full or None, chunk_size=1000):
                for meta in page:
                    # a store may match by characters where a folder is meant
                    if not full or meta["path"].startswith(f"{full}/"):
                        yield Info(meta["path"].removeprefix(self._prefix), meta["size"], meta["last_modified"])

    def delete(self, key: str) -> None:
        with self._explain("delete", key), contextlib.suppress(FileNotFoundError):
            obstore.delete(self._inner, self._full(key))

    def info(self, key: str) -> Info | None:
        with self._explain("read", key):
            try:
                meta = obstore.head(self._inner, self._full(key))
            except FileNotFoundError as error:
                self._check_absence(error)
                return None
        return Info(key, meta["size"], meta["last_modified"])

    def put_file(self, key: str, path: Path, *, digest: str | None = None) -> Content:
        size = path.stat().st_size
        part = max(_PART_BYTES, -(-size // _PARTS))
        upload = _Upload(path, digest, part)
        try:
            with self._explain("write", key):
                obstore.put(
                    self._inner,
                    self._full(key),
                    upload.chunks(),
                    use_multipart=self._multipart and size > part,
                    chunk_size=part,
                    max_concurrency=4,
                )
        except TrtfleetError:
            if upload.problem is not None:
                raise upload.problem from None
            raise
        return upload.content

    def get_file(self, key: str, path: Path, *, digest: str | None = None, max_bytes: int | None = None) -> Content | None:
        with self._explain("read", key):
            try:
                meta = obstore.head(self._inner, self._full(key))
            except FileNotFoundError as error:
                self._check_absence(error)
                return None
        size = meta["size"]
        if max_bytes is not None and size > max_bytes:
            raise too_long(self.url, key, size, max_bytes)
        hashed = hashlib.sha256()
        with written_aside(path) as target:
            for start in range(0, size, _RANGE_BYTES):
                options: obstore.GetOptions = {"range": (start, min(start + _RANGE_BYTES, size))}
                if meta["e_tag"]:
                    options["if_match"] = meta["e_tag"]
                with self._explain("read", key):
                    try:
                        data = bytes(obstore.get(self._inner, self._full(key), options=options).bytes())
                    except (FileNotFoundError, PreconditionError):
                        raise StoreUnavailable(f"store {self.url}: {key} was replaced while it was read; try again") from None
                hashed.update(data)
                target.write(data)
            if digest is not None and hashed.hexdigest() != digest:
                raise corrupt(f"{key} in {self.url}", hashed.hexdigest(), digest)
        return Content(hashed.hexdigest(), size)

    def sweep(self, older_than_seconds: float) -> int:  # noqa: ARG002 - nothing of an upload is visible before its end
        return 0

    def _full(self, key: str) -> str:
        return self._prefix + check_key(key)

    def _check_absence(self, error: FileNotFoundError) -> None:
        """A bucket that is missing must not look like an object that is missing."""
        if _mentions(error, "NoSuchBucket", "ContainerNotFound", "The specified bucket does not exist"):
            raise StoreUnavailable(f"store {self.url}: there is no such bucket; create it, or correct the URL") from None

    def _not_conditional(self, error: Exception) -> StoreNotConditional:
        return StoreNotConditional(
            f"store {self.url}: it refuses conditional writes, which claims and pointers need ({_first_line(error)}); "
            "use a store that honours If-None-Match and If-Match"
        )

    @contextlib.contextmanager
    def _explain(self, verb: str, key: str) -> Iterator[None]:
        try:
            yield
        except (BaseError, OSError, ValueError) as error:
            raise self._explained(error, verb, key) from None

    def _explained(self, error: Exception, verb: str, key: str) -> TrtfleetError:
        where = f"store {self.url}: cannot {verb} {key}"
        line = _first_line(error)
        if _mentions(error, "507 Insufficient", "QuotaExceeded", "StorageFull", "No space left", "InsufficientStorage"):
            return StoreFull(f"{where}: it is full; make room ({line})")
        if _mentions(error, "169.254.169.254", "metadata.google.internal"):
            return StoreUnavailable(
                f"{where}: no credentials; set the provider's environment variables, or use a workload identity"
            )
        if _mentions(error, "301 Moved", "PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraint"):
            return StoreUnavailable(f"{where}: the bucket is in another region; set the option region ({line})")
        if isinstance(error, UnauthenticatedError) or _mentions(
            error, "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "401 Unauthorized"
        ):
            return StoreUnavailable(f"{where}: its credentials are refused; check or renew them ({line})")
        if isinstance(error, PermissionDeniedError) or _mentions(error, "403 Forbidden"):
            if verb in ("write", "delete"):
                return StoreReadOnly(f"{where}: these credentials may not; grant them write access ({line})")
            return StoreUnavailable(f"{where}: these credentials may not; grant them read and list access ({line})")
        return StoreUnavailable(f"{where}: {line}; check that the store is up and its endpoint right")


class _Upload:
    """Reads a file in parts and hashes it on the way; refuses before the last part if the digest is not the expected one."""

    def __init__(self, path: Path, digest: str | None, part: int) -> None:
        self._path, self._digest, self._part = path, digest, part
        self.content = Content("", 0)
        self.problem: StoreCorrupt | None = None

    def chunks(self) -> Iterator[bytes]:
        hashed, size = hashlib.sha256(), 0
        with self._path.open("rb") as file:
            chunk = file.read(self._part)
            while chunk:
                hashed.update(chunk)
                size += len(chunk)
                following = file.read(self._part)
                if not following and self._digest not in (None, hashed.hexdigest()):
                    self.problem = corrupt(str(self._path), hashed.hexdigest(), self._digest or "")
                    raise OSError(str(self.problem))
                yield chunk
                chunk = following
        self.content = Content(hashed.hexdigest(), size)


def _s3(url: str, options: dict[str, str], anonymous: bool) -> S3Config:
    endpoint = options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
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


_S3_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
)


def _gs(options: dict[str, str], anonymous: bool) -> GCSConfig:
    config: GCSConfig = {"skip_signature": True} if anonymous else {}
    if "endpoint" in options:
        config["base_url"] = options["endpoint"]
    if "serviceAccountFile" in options:
        config["service_account"] = options["serviceAccountFile"]
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


def _client(url: str, options: dict[str, str], timeout: float) -> ClientConfig:
    client: ClientConfig = {
        "timeout": timedelta(seconds=timeout),
        "connect_timeout": timedelta(seconds=min(5.0, timeout)),
        "allow_http": _http_allowed(url, options),
        "user_agent": "trtfleet",
    }
    if "caFile" in options:
        try:
            client["root_certificate"] = Path(options["caFile"]).read_bytes()
        except OSError as error:
            raise InputError(f"store {url}: option caFile: cannot read {options['caFile']}: {error.strerror}") from None
    return client


def _http_allowed(url: str, options: dict[str, str]) -> bool:
    endpoint = options.get("endpoint") or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or ""
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
        f"store {url}: endpoint {endpoint!r} would send results unencrypted; use https, or set the option allowHttp to true"
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


def _tag(e_tag: str | None, version: str | None) -> str:
    return f"{e_tag or ''}\n{version or ''}"


def _mentions(error: Exception, *words: str) -> bool:
    text = str(error)
    return any(word in text for word in words)


def _first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0].strip()[:300]
