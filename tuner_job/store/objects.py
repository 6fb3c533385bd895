"""Objects in a store: the few verbs on which every promise of a run rests.

Two of them carry the weight. `create` makes an object that did not exist, `swap` replaces exactly the version that was read;
of any number of racers one wins. Both tell the truth when a request is repeated (a retry, a lost answer): they return True
whenever the object now holds exactly the given data. Racers who must not both win therefore write data that differ, such as a
random worker id.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tuner_job.api.base import InputError, TrtfleetError

KEY_BYTES = 900
"""Longest key: S3 allows 1,024 bytes, prefix included."""
SEGMENT_BYTES = 200
"""Longest part of a key between slashes: file systems allow 255 bytes, and a file written aside has a longer name."""
ASIDE = ".aside-"
"""Names that begin so are files half written: never listed, swept when old."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class StoreUnavailable(TrtfleetError):
    """The store did not answer, or refused to. Trying again later may help."""

    reason = "StoreUnavailable"


class StoreReadOnly(TrtfleetError):
    """The store can be read but not written."""

    reason = "StoreReadOnly"


class StoreFull(TrtfleetError):
    """The store has no room left."""

    reason = "StoreFull"


class StoreNotConditional(TrtfleetError):
    """The store ignores or refuses create-only or compare-and-swap writes, so workers could overwrite each other."""

    reason = "StoreNotConditional"


class StoreCorrupt(TrtfleetError):
    """An object is not what its key or record promises."""

    reason = "StoreCorrupt"


@dataclass(frozen=True)
class Object:
    """The bytes of an object and the version they are."""

    data: bytes
    tag: str
    """Opaque; for `swap`."""


@dataclass(frozen=True)
class Info:
    key: str
    size: int
    """Bytes."""
    modified: datetime
    """By the store's clock, with time zone."""


@dataclass(frozen=True)
class Content:
    """What a file turned out to hold."""

    digest: str
    """Lower-case hex SHA-256."""
    size: int
    """Bytes."""


class ObjectStore(ABC):
    """A folder of objects behind a URL. Safe for threads; not for forks.

    Every call ends within its deadline (a network file system that hangs under `file://` is the kernel's affair). Every method
    may raise StoreUnavailable, every writing one StoreReadOnly or StoreFull, and InputError for a key that is not valid.
    """

    url: str

    @staticmethod
    def open(url: str, options: Mapping[str, str] | None = None) -> ObjectStore:
        """The store at `url`; nothing is read or written yet.

        file:///folder           made when first written
        memory://name/prefix     shared by name within this process
        s3://bucket/prefix       gs://bucket/prefix       az://account/container/prefix

        Options of the remote ones, each a string; what is not given comes from the provider's usual environment variables:
        `endpoint` (https://host:port; http only on loopback, or with `allowHttp`=true), `region`, `pathStyle` (true),
        `caFile` or `caPem` (PEM text), `accessKeyId`, `secretAccessKey`, `sessionToken`, `accountKey` (az), `serviceAccountFile`
        or `serviceAccountKey` (gs; its JSON), `anonymous` (false), `timeoutSeconds` (30, of one request), `multipart` (true;
        false for stores without it).

        Raises InputError for a URL or option that is wrong.
        """
        from tuner_job.store.connect import REMOTE_SCHEMES, open_remote
        from tuner_job.store.folder import FolderStore

        parts = urlsplit(url)
        if parts.scheme == "file":
            if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
                raise InputError(f"store {url}: write a local folder as file:///absolute/path, with three slashes")
            if options:
                raise InputError(f"store {url}: a local folder takes no options, but {min(options)} is given")
            return FolderStore(url, Path(unquote(parts.path)))
        if parts.scheme in REMOTE_SCHEMES:
            return open_remote(url, dict(options or {}))
        known = ", ".join(f"{scheme}://" for scheme in ("file", *REMOTE_SCHEMES))
        raise InputError(f"store {url}: unknown kind of store; use one of {known}")

    @abstractmethod
    def get(self, key: str, max_bytes: int) -> Object | None:
        """The object, or None where there is none. Raises InputError if it is longer than `max_bytes`, unread."""

    @abstractmethod
    def create(self, key: str, data: bytes) -> bool:
        """Write if there is no such object. False: there is one with other data. Raises StoreNotConditional."""

    @abstractmethod
    def put(self, key: str, data: bytes) -> None:
        """Write or overwrite, whole or not at all."""

    @abstractmethod
    def swap(self, key: str, data: bytes, tag: str) -> bool:
        """Overwrite the version that `tag` names. False: the object has changed since, or is gone. Raises StoreNotConditional."""

    @abstractmethod
    def list(self, prefix: str) -> Iterator[Info]:
        """Every object below `prefix` + "/" (all for ""), in no particular order."""

    @abstractmethod
    def delete(self, key: str) -> None:
        """Remove; no error if there is no such object."""

    @abstractmethod
    def info(self, key: str) -> Info | None: ...

    @abstractmethod
    def put_file(self, key: str, path: Path, *, digest: str | None = None) -> Content:
        """Upload a file of any size, whole or not at all.

        Raises StoreCorrupt, with nothing written, if the file has another SHA-256.
        """

    @abstractmethod
    def get_file(self, key: str, path: Path, *, digest: str | None = None, max_bytes: int | None = None) -> Content | None:
        """Download to `path`, which appears only when whole and verified; None where there is no such object.

        Raises StoreCorrupt if the bytes have another SHA-256, InputError if there are more than `max_bytes`.
        """

    @abstractmethod
    def sweep(self, older_than_seconds: float) -> int:
        """Remove what killed writers left half written, if older. Returns how many.

        Remote stores keep such parts to themselves: a lifecycle rule of the bucket should abort incomplete multipart uploads.
        """

    def exists(self, key: str) -> bool:
        return self.info(key) is not None


def check_key(key: str) -> str:
    """The key, if any store can hold it. Raises InputError."""
    problem = ""
    parts = key.split("/")
    if not key or "" in parts:
        problem = "a part between slashes is empty"
    elif "." in parts or ".." in parts:
        problem = "it has a part `.` or `..`"
    elif any(part.startswith(ASIDE) for part in parts):
        problem = f"names that begin with {ASIDE} are reserved"
    elif _CONTROL.search(key) or "\\" in key:
        problem = "it has a control character or backslash"
    elif len(key.encode(errors="replace")) > KEY_BYTES or any(
        len(part.encode(errors="replace")) > SEGMENT_BYTES for part in parts
    ):
        problem = f"it is too long (at most {KEY_BYTES} bytes, {SEGMENT_BYTES} between slashes)"
    if problem:
        raise InputError(f"object key {key[:120]!r}: {problem}")
    return key


def too_long(url: str, key: str, size: int, max_bytes: int) -> InputError:
    return InputError(f"{key} in {url}: {size} bytes where at most {max_bytes} are expected", reason="PoisonedRecord")


def corrupt(what: str, found: str, expected: str) -> StoreCorrupt:
    return StoreCorrupt(f"{what}: its SHA-256 is {found}, not {expected}; it was changed or damaged after it was written")
