"""Which of several operators works: the holder of a Lease.

The rules are client-go's. A Lease has run out when its record has not changed for its duration *as this process saw it* on its
own monotonic clock: times written by others are never compared with ours. The holder gives up after `renew` seconds without a
renewal, before anybody else may take over after `duration`.

Nothing rests on there being one holder: two operators at once only do the work twice.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
from datetime import UTC, datetime
from enum import Enum
from typing import Any, NoReturn

from tuning_operator.kube.api import LEASES, AlreadyExists, Conflict, KubeApi, KubeError, NotFound, Object

log = logging.getLogger(__name__)

_RELEASE_SECONDS = 5.0


class LeaseLost(Exception):
    """Another operator holds the Lease, or it could not be renewed in time. The process must end."""


class _Try(Enum):
    OURS = 1
    THEIRS = 2
    UNCLEAR = 3
    """It changed between our read and our write."""


class Elector:
    """One candidate. `acquire`, then `hold` beside the work; `release` on the way out."""

    def __init__(self, api: KubeApi, *, namespace: str, name: str, identity: str, lease_seconds: float = 15.0) -> None:
        """`identity` must be this process's alone: another start of it is another candidate."""
        self._api = api
        self._namespace, self._name = namespace, name
        self.identity = identity
        self.duration = lease_seconds
        self.renew = lease_seconds * 2 / 3
        self.retry = lease_seconds * 2 / 15
        self.holder = ""
        """Who holds it, as last seen; empty for nobody."""
        self._seen: object = None
        self._seen_at = 0.0
        self._renewed_at: float | None = None
        self._said = ""

    @property
    def leading(self) -> bool:
        """Whether this process holds the Lease and no other can have taken it yet."""
        return self._renewed_at is not None and asyncio.get_running_loop().time() < self._renewed_at + self.duration

    async def acquire(self) -> None:
        """Wait until the Lease is ours. An API server that fails meanwhile is waited for."""
        while True:
            began = asyncio.get_running_loop().time()
            try:
                async with asyncio.timeout(self.renew):
                    outcome = await self._try(take_over=True)
            except (KubeError, TimeoutError) as error:
                self._say(logging.WARNING, f"{self._where}: {_words(error)}; trying again")
            else:
                if outcome is _Try.OURS:
                    self._renewed_at = began
                    self._say(logging.INFO, f"{self._where}: held by this operator, {self.identity}")
                    return
                if outcome is _Try.THEIRS:
                    self._say(logging.INFO, f"{self._where}: held by {self.holder}; standing by")
            await asyncio.sleep(self.retry * random.uniform(1, 1.2))  # noqa: S311 - it spreads candidates, no more

    async def hold(self) -> NoReturn:
        """Renew until cancelled. Raises LeaseLost."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(self.retry)
            assert self._renewed_at is not None  # acquired
            left = self._renewed_at + self.renew - loop.time()
            if left <= 0:
                self._renewed_at = None
                raise LeaseLost(f"{self._where}: not renewed for {self.renew:.0f} s: {self._said or 'no answer'}")
            began = loop.time()
            try:
                async with asyncio.timeout(left):
                    outcome = await self._try(take_over=False)
            except (KubeError, TimeoutError) as error:
                self._say(logging.WARNING, f"{self._where}: not renewed: {_words(error)}")
                continue
            if outcome is _Try.THEIRS:
                self._renewed_at = None
                raise LeaseLost(f"{self._where}: taken by {self.holder or 'nobody'}")
            if outcome is _Try.OURS:
                self._renewed_at = began  # not now: what others saw may be as old as this
                self._said = ""

    async def release(self) -> None:
        """Let the next one begin at once. Does nothing unless the Lease is ours, and never raises."""
        if self._renewed_at is None:
            return
        self._renewed_at = None
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                lease = await self._api.get(LEASES, self._name, self._namespace)
                if lease["spec"].get("holderIdentity") == self.identity:
                    lease["spec"] |= {"holderIdentity": "", "leaseDurationSeconds": 1, "renewTime": _now()}
                    await self._api.replace(LEASES, lease)
        except (KubeError, TimeoutError) as error:
            log.warning("%s: not released: %s", self._where, _words(error))

    async def _try(self, *, take_over: bool) -> _Try:
        try:
            lease = await self._api.get(LEASES, self._name, self._namespace)
        except NotFound:
            return await self._create()
        spec: dict[str, Any] = lease.setdefault("spec", {})  # Any: the server's JSON
        self._observe(spec)
        if self.holder != self.identity:
            expired = asyncio.get_running_loop().time() >= self._seen_at + (spec.get("leaseDurationSeconds") or self.duration)
            if not take_over or (self.holder and not expired):
                return _Try.THEIRS
            spec["acquireTime"] = _now()
            spec["leaseTransitions"] = spec.get("leaseTransitions", 0) + 1
        spec |= {"holderIdentity": self.identity, "leaseDurationSeconds": math.ceil(self.duration), "renewTime": _now()}
        try:
            self._observe((await self._api.replace(LEASES, lease))["spec"])
        except (Conflict, NotFound):
            return _Try.UNCLEAR
        return _Try.OURS

    async def _create(self) -> _Try:
        now = _now()
        spec = {
            "holderIdentity": self.identity,
            "leaseDurationSeconds": math.ceil(self.duration),
            "acquireTime": now,
            "renewTime": now,
            "leaseTransitions": 0,
        }
        body: Object = {
            "apiVersion": LEASES.api_version,
            "kind": LEASES.kind,
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": spec,
        }
        try:
            self._observe((await self._api.create(LEASES, body, self._namespace))["spec"])
        except AlreadyExists:
            return _Try.UNCLEAR
        return _Try.OURS

    def _observe(self, spec: dict[str, Any]) -> None:
        self.holder = spec.get("holderIdentity") or ""
        record = (self.holder, spec.get("renewTime"), spec.get("leaseTransitions"))
        if record != self._seen:
            self._seen, self._seen_at = record, asyncio.get_running_loop().time()

    @property
    def _where(self) -> str:
        return f"lease {self._namespace}/{self._name}"

    def _say(self, level: int, message: str) -> None:
        """Once for each change."""
        if message != self._said:
            self._said = message
            log.log(level, message)


def _words(error: Exception) -> str:
    return str(error) or "no answer in time"


def _now() -> str:
    """MicroTime, for people to read: no candidate compares it with its own clock."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
