"""The operator's HTTP side: /metrics, /healthz (should it be restarted?), /readyz (is it up?)."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest

Check = Callable[[], str]
"""What is wrong, in one line; empty when nothing is."""

TICK_SECONDS = 1.0
LAG_LIMIT_SECONDS = 10.0
"""Anything that holds the loop for longer would soon cost the Lease."""

_STOP_SECONDS = 2.0


class Probes:
    """Serves until the end of `serving`. A check that raises fails, with what it raised."""

    def __init__(self, registry: CollectorRegistry, *, live: Mapping[str, Check], ready: Mapping[str, Check]) -> None:
        self._registry = registry
        self._live = live
        self._ready = ready

    @asynccontextmanager
    async def serving(self, address: str, port: int) -> AsyncIterator[int]:
        """Yields the port that it listens on. An empty address means all of them; port 0 any free one. Raises OSError."""
        app = web.Application()
        app.router.add_get("/metrics", self._metrics)
        app.router.add_get("/healthz", self._healthz)
        app.router.add_get("/readyz", self._readyz)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=_STOP_SECONDS)
        await runner.setup()
        try:
            listener = _listen(address, port)
            await web.SockSite(runner, listener).start()
            yield listener.getsockname()[1]
        finally:
            await runner.cleanup()

    async def _metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_PLAIN_0_0_4})

    async def _healthz(self, _request: web.Request) -> web.Response:
        return _answer(self._live)

    async def _readyz(self, _request: web.Request) -> web.Response:
        return _answer(self._ready)


class LoopLag:
    """How late the event loop wakes: a loop that is held answers no probe, one that is overloaded shows it here."""

    def __init__(self, gauge: Gauge) -> None:
        self._gauge = gauge
        self._ticked: float | None = None
        self._lag = 0.0

    async def run(self) -> None:
        """Ticks until it is cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self._ticked = loop.time()
            await asyncio.sleep(TICK_SECONDS)
            self._lag = max(0.0, loop.time() - self._ticked - TICK_SECONDS)
            self._gauge.set(self._lag)

    def problem(self) -> str:
        """For the liveness probe."""
        if self._ticked is None:
            return ""
        lag = max(self._lag, asyncio.get_running_loop().time() - self._ticked - TICK_SECONDS)
        return f"the event loop wakes {lag:.1f} s late; the limit is {LAG_LIMIT_SECONDS:.0f} s" if lag > LAG_LIMIT_SECONDS else ""


def _answer(checks: Mapping[str, Check]) -> web.Response:
    """`{"ok": false, "failed": {"resync": "…"}, "passed": ["loop"]}` with 200 or 503."""
    found = {name: _ask(check) for name, check in checks.items()}
    failed = {name: problem for name, problem in found.items() if problem}
    body = {"ok": not failed, "failed": failed, "passed": [name for name, problem in found.items() if not problem]}
    return web.json_response(body, status=503 if failed else 200)


def _ask(check: Check) -> str:
    try:
        return check()
    except Exception as error:  # a check must not take the endpoint down with it
        return f"{type(error).__name__}: {error}"


def _listen(address: str, port: int) -> socket.socket:
    """On all addresses of both families where the machine has both."""
    if address:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        return socket.create_server((address, port), family=family, backlog=128)
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
        except OSError:
            pass  # IPv6 is compiled in, but turned off
    return socket.create_server(("", port), backlog=128)
