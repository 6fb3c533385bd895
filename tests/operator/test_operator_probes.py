"""Metrics and probes over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from tuning_operator.metrics import Metrics
from tuning_operator.probes import LAG_LIMIT_SECONDS, TICK_SECONDS, Check, LoopLag, Probes

LOOPBACK = "127.0.0.1"


def good() -> str:
    return ""


def ask(path: str, *, live: dict[str, Check] | None = None, ready: dict[str, Check] | None = None) -> tuple[int, Any]:
    """Status and body; JSON but for /metrics."""

    async def main() -> tuple[int, Any]:
        probes = Probes(Metrics().registry, live=live or {}, ready=ready or {})
        async with (
            probes.serving(LOOPBACK, 0) as port,
            aiohttp.ClientSession() as session,
            session.get(f"http://{LOOPBACK}:{port}{path}") as answer,
        ):
            return answer.status, await (answer.text() if path == "/metrics" else answer.json())

    return asyncio.run(main())


def test_health_is_good_when_every_check_is() -> None:
    assert ask("/healthz", live={"loop": good, "resync": good}) == (200, {"ok": True, "failed": {}, "passed": ["loop", "resync"]})


def test_health_names_the_check_that_failed_and_why() -> None:
    status, body = ask("/healthz", live={"loop": good, "resync": lambda: "no full listing for 900 s"})
    assert status == 503
    assert body == {"ok": False, "failed": {"resync": "no full listing for 900 s"}, "passed": ["loop"]}


def test_a_check_that_breaks_fails_and_leaves_the_endpoint_alone() -> None:
    def broken() -> str:
        raise ValueError("boom")

    status, body = ask("/healthz", live={"watch": broken})
    assert (status, body["failed"]) == (503, {"watch": "ValueError: boom"})


def test_readiness_asks_its_own_checks() -> None:
    not_synced: Callable[[], str] = lambda: "the catalog is not listed yet"  # noqa: E731
    assert ask("/readyz", live={"loop": lambda: "late"}, ready={"catalog": good})[0] == 200
    assert ask("/readyz", ready={"catalog": not_synced})[0] == 503


def test_metrics_are_what_prometheus_parses() -> None:
    status, text = ask("/metrics")
    assert status == 200
    families = {family.name: family for family in text_string_to_metric_families(text)}
    (build,) = families["tuning_operator_build_info"].samples
    assert build.value == 1


def test_the_port_is_free_again_afterwards() -> None:
    async def main() -> None:
        probes = Probes(Metrics().registry, live={}, ready={})
        async with probes.serving(LOOPBACK, 0) as port:
            pass
        async with probes.serving(LOOPBACK, port) as again:
            assert again == port

    asyncio.run(main())


def test_a_loop_that_was_held_fails_until_it_ticks_in_time_again() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()
        lag = LoopLag(Metrics().loop_lag)
        assert lag.problem() == ""
        ticking = asyncio.create_task(lag.run())
        await asyncio.sleep(0)
        assert lag.problem() == ""
        clock = loop.time
        held = 2 * LAG_LIMIT_SECONDS
        loop.time = lambda: clock() + held  # type: ignore[method-assign]
        assert "late; the limit is 10 s" in lag.problem()
        ticking.cancel()
        await asyncio.gather(ticking, return_exceptions=True)

    asyncio.run(main())
    assert TICK_SECONDS < LAG_LIMIT_SECONDS
