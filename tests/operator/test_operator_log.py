"""Log lines as machines read them."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from tuning_operator import log as lines

log = logging.getLogger("trtfleet.test")


@pytest.fixture(autouse=True)
def loggers_as_before() -> Iterator[None]:
    root = logging.getLogger()
    before = root.handlers[:], root.level, {name: logging.getLogger(name).level for name in lines.TAMED}
    yield
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    for name, level in before[2].items():
        logging.getLogger(name).setLevel(level)
    logging.captureWarnings(False)


def read(capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in capsys.readouterr().err.splitlines()]


def test_a_line_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    lines.set_up("INFO")
    log.warning("store %s: away\nfor long", "s3://x")
    (line,) = read(capsys)
    assert line["message"] == "store s3://x: away\nfor long"
    assert (line["level"], line["logger"]) == ("warning", "trtfleet.test")
    assert line["time"].endswith("Z")


def test_lines_say_what_they_are_about_and_only_while_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    lines.set_up("INFO")
    with lines.about(namespace="team", name="resnet", reconcile="ab12"):
        log.info("one")
        lines.also_about(generation=3)
        log.info("two")
    log.info("three")
    one, two, three = read(capsys)
    assert (one["namespace"], one["name"], one["reconcile"]) == ("team", "resnet", "ab12")
    assert "generation" not in one
    assert two["generation"] == 3
    assert "namespace" not in three


def test_tasks_do_not_mix_what_they_are_about_and_threads_inherit_it(capsys: pytest.CaptureFixture[str]) -> None:
    lines.set_up("INFO")

    async def work(name: str, mine: asyncio.Event, other: asyncio.Event) -> None:
        with lines.about(name=name):
            mine.set()
            await other.wait()
            await asyncio.to_thread(log.info, "of %s", name)

    async def main() -> None:
        a, b = asyncio.Event(), asyncio.Event()
        await asyncio.gather(work("a", a, b), work("b", b, a))

    asyncio.run(main())
    assert {line["message"]: line["name"] for line in read(capsys)} == {"of a": "a", "of b": "b"}


def test_a_traceback_stays_on_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines.set_up("INFO")
    try:
        raise ValueError("boom")
    except ValueError:
        log.exception("internal error")
    (line,) = read(capsys)
    assert line["traceback"].startswith("Traceback")
    assert line["traceback"].endswith("ValueError: boom")


@pytest.mark.parametrize("library", ["kopf.objects", "kubernetes.client.rest", "kubernetes.aio.client.rest", "aiohttp.access"])
def test_libraries_that_would_log_bodies_and_headers_stay_quiet_even_on_debug(
    capsys: pytest.CaptureFixture[str], library: str
) -> None:
    lines.set_up("DEBUG")
    log.debug("ours")
    logging.getLogger(library).debug("Authorization: Bearer secret")
    logging.getLogger(library).info("response body: secret")
    logging.getLogger(library).warning("told")
    assert [line["message"] for line in read(capsys)] == ["ours", "told"]
