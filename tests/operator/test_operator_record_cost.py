"""What a record that somebody made up costs the operator before it is refused: its pod has 256 MiB, for everything."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import partial

import pytest

from tuner_job.api.messages import DiscoveryRecord, PlanRecord, Record, ResultRecord, VerdictRecord

MOST_MIB = 170

READ = """
import json, sys
from test_operator_record_cost import KINDS, SHAPES
from tuner_job.api.base import InputError

def kib(what):
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith(what))

kind, answers = KINDS[sys.argv[1]], {}
before = kib("VmRSS")
for name, shape in SHAPES.items():
    data = shape(kind)
    assert len(data) <= kind.MAX_BYTES, name
    open("/proc/self/clear_refs", "w").write("5")  # the peak begins anew, so that only the reader's counts
    try:
        kind.parse(data, "key")
        answers[name] = (kib("VmHWM") - before, "read")
    except InputError as error:
        answers[name] = (kib("VmHWM") - before, error.reason)
    del data
print(json.dumps(answers))
"""

KINDS: dict[str, type[Record]] = {each.__name__: each for each in (DiscoveryRecord, PlanRecord, VerdictRecord, ResultRecord)}


def _fill(kind: type[Record], item: bytes, most: int | None = None, *, start: bytes, end: bytes) -> bytes:
    """As many items as bytes and, if asked for, the bound allow."""
    room = (kind.MAX_BYTES - len(start) - len(end)) // (len(item) + 1)
    return start + b",".join([item] * (room if most is None else min(room, most))) + end


def _keys(kind: type[Record], most: int | None, start: bytes = b'{"schemaVersion":1,') -> bytes:
    room = (kind.MAX_BYTES - 64) // 14
    count = room if most is None else min(room, most)
    return start + b",".join(b'"x%08d":0' % number for number in range(count)) + b"}"


def _nested(kind: type[Record], field: bytes) -> bytes:
    return _keys(kind, kind.MAX_ITEMS - 8, b'{"schemaVersion":1,"%s":{' % field) + b"}"


def _padded(kind: type[Record]) -> bytes:
    """Wrong values up to the bound, and a long text for what is left of the bytes."""
    keys = _keys(kind, kind.MAX_ITEMS - 8)[:-1]
    return keys + b',"long":"' + b"x" * max(0, kind.MAX_BYTES - len(keys) - 16) + b'"}'


_START = b'{"schemaVersion":1,"'

SHAPES: dict[str, Callable[[type[Record]], bytes]] = {
    "unknown keys": lambda kind: _keys(kind, None),
    "unknown keys within the bound": lambda kind: _keys(kind, kind.MAX_ITEMS - 8),
    "the same beside a long text": _padded,
    **{
        f"wrong values of {field.decode()}": partial(_nested, field=field)
        for field in (b"method", b"versions", b"outcomes", b"device")
    },
    "objects": lambda kind: _fill(kind, b"{}", start=_START + b'x":[', end=b"]}"),
    "objects within the bound": lambda kind: _fill(kind, b"{}", kind.MAX_ITEMS // 4 - 8, start=_START + b'x":[', end=b"]}"),
    "lists": lambda kind: _fill(kind, b"[[]]", kind.MAX_ITEMS - 8, start=_START + b'x":[', end=b"]}"),
    "brackets": lambda kind: b"[" * kind.MAX_BYTES,
    "wrong items": lambda kind: _fill(kind, b"0", kind.MAX_ITEMS - 8, start=_START + b'losses":{"problems":[', end=b"]}}"),
    "a long text": lambda kind: _START + b'x":"' + b"x" * (kind.MAX_BYTES - 64) + b'"}',
    "a long text of escapes": lambda kind: _START + b'x":"' + b"\\u00e9" * ((kind.MAX_BYTES - 64) // 6) + b'"}',
    "a long number": lambda kind: _START + b'x":' + b"9" * (kind.MAX_BYTES - 64) + b"}",
    "spaces": lambda kind: _START + b'x":' + b" " * (kind.MAX_BYTES - 64) + b"0}",
}


@pytest.mark.parametrize("kind", KINDS)
def test_no_record_costs_more_memory_than_the_pod_can_spare(kind: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", READ, kind], capture_output=True, text=True, check=False, timeout=300, env=_environment()
    )
    assert ended.returncode == 0, ended.stderr
    answers = json.loads(ended.stdout)
    assert answers.keys() == SHAPES.keys()
    assert {why for _, why in answers.values()} == {"PoisonedRecord"}
    dear = {name: kib // 1024 for name, (kib, _) in answers.items() if kib > MOST_MIB * 1024}
    assert not dear, "MiB of each"


def _environment() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(each for each in sys.path if each)}
