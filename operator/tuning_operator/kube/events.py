"""Events on objects, for `kubectl describe` and `kubectl events`: events.k8s.io/v1, one per transition.

What repeats within ten minutes becomes a series of the same Event, not another one.
"""

from __future__ import annotations

import hashlib
import logging
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

from tuning_operator.kube.api import EVENTS, KubeApi, KubeError, NotFound, Object, Resource

log = logging.getLogger(__name__)

CONTROLLER = "trtfleet.dev/operator"
SERIES_WINDOW = timedelta(minutes=10)
NOTE_BYTES = 1024
"""The API server counts bytes, and refuses a note with one more."""
_REMEMBERED = 4096
_INSTANCE_LENGTH = 128
_NAME_LENGTH = 200


@dataclass(frozen=True)
class Regarding:
    """The object that an event is about."""

    resource: Resource
    name: str
    uid: str
    namespace: str = ""
    """Empty on cluster-scoped kinds, whose events lie in `default`."""


@dataclass
class _Last:
    """An Event that may become a series."""

    name: str
    count: int
    at: datetime


class EventRecorder:
    """Writes events. One that cannot be written is logged and lost: nothing depends on events."""

    def __init__(self, api: KubeApi, *, instance: str, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        """`instance`: this operator's pod."""
        self._api = api
        self._instance = instance[:_INSTANCE_LENGTH]
        self._now = now
        self._lately: OrderedDict[tuple[str, ...], _Last] = OrderedDict()
        """In the order of their last occurrence."""

    async def emit(
        self, regarding: Regarding, type: Literal["Normal", "Warning"], reason: str, note: str, *, action: str
    ) -> None:
        """`action`: what the operator did or tried, as a CamelCase word. A note longer than NOTE_BYTES is cut. Never raises."""
        note = shortened(note)
        now = self._now()
        self._expire(now)
        key = (regarding.uid, type, reason, action, hashlib.sha256(note.encode()).hexdigest())
        namespace = regarding.namespace or "default"
        try:
            last = self._lately.get(key)
            if last is None or not await self._repeat(last, namespace, now):
                self._remember(key, await self._create(regarding, namespace, type, reason, note, action, now))
            else:
                self._lately.move_to_end(key)
        except KubeError as error:
            log.warning("event %s on %s %s not written: %s", reason, regarding.resource.kind, regarding.name, error)

    async def _create(
        self, regarding: Regarding, namespace: str, type: str, reason: str, note: str, action: str, now: datetime
    ) -> _Last:
        at = _micro_time(now)
        unique = hashlib.sha256("\0".join((regarding.uid, type, reason, note, action, at, self._instance)).encode()).hexdigest()[
            :16
        ]
        name = f"{regarding.name[:_NAME_LENGTH].rstrip('-.')}.{unique}"
        about = {
            "apiVersion": regarding.resource.api_version,
            "kind": regarding.resource.kind,
            "name": regarding.name,
            "uid": regarding.uid,
        }
        body: Object = {
            "apiVersion": EVENTS.api_version,
            "kind": EVENTS.kind,
            "metadata": {"name": name, "namespace": namespace},
            "regarding": about | ({"namespace": regarding.namespace} if regarding.namespace else {}),
            "type": type,
            "reason": reason,
            "note": note,
            "action": action,
            "eventTime": at,
            "reportingController": CONTROLLER,
            "reportingInstance": self._instance,
        }
        await self._api.create(EVENTS, body, namespace)
        return _Last(name, 1, now)

    async def _repeat(self, last: _Last, namespace: str, now: datetime) -> bool:
        """Whether the Event was still there to be made a series of."""
        series = {"count": last.count + 1, "lastObservedTime": _micro_time(now)}
        try:
            await self._api.merge(EVENTS, last.name, namespace, {"series": series})
        except NotFound:
            return False
        last.count += 1
        last.at = now
        return True

    def _remember(self, key: tuple[str, ...], last: _Last) -> None:
        self._lately.pop(key, None)
        self._lately[key] = last
        if len(self._lately) > _REMEMBERED:
            self._lately.popitem(last=False)

    def _expire(self, now: datetime) -> None:
        while self._lately and next(iter(self._lately.values())).at + SERIES_WINDOW < now:
            self._lately.popitem(last=False)


def shortened(note: str) -> str:
    """At most NOTE_BYTES bytes of UTF-8; a cut ends with `…` and splits no character."""
    data = note.encode(errors="replace")
    if len(data) <= NOTE_BYTES:
        return data.decode()
    return data[: NOTE_BYTES - len("…".encode())].decode(errors="ignore") + "…"


def _micro_time(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
