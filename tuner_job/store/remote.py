"""Stores behind a network (and in memory), through obstore's synchronous API.

Only the synchronous API: obstore's asynchronous one can abort the interpreter at exit. obstore retries by itself, within limits
set here; a retry may meet the success of its own first try, so a refused condition is checked against what the object now holds.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

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

from tuner_job.api.base import TrtfleetError
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

_PART_BYTES = 8 << 20
_PARTS = 9_000
"""Stores allow 10,000 parts of one upload."""
_RANGE_BYTES = 16 << 20
"""A download asks for so much at a time, so that the deadline of a request suits files of any size."""

Inner = MemoryStore | S3Store | GCSStore | AzureStore


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
            f"store {self.url}: it refuses conditional writes, which claims and pointers need ({first_line(error)}); "
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
        line = first_line(error)
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


def _tag(e_tag: str | None, version: str | None) -> str:
    return f"{e_tag or ''}\n{version or ''}"


def _mentions(error: Exception, *words: str) -> bool:
    text = str(error)
    return any(word in text for word in words)


def first_line(error: Exception) -> str:
    return str(error).split("\n", 1)[0].strip()[:300]
