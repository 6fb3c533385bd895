"""Models beyond protobuf's 2 GB, in little memory."""

from __future__ import annotations

import subprocess
import sys

import pytest
from model_files import external, save, with_external

from tuner_job.model.skeleton import _encoded

SCRIPT = """
import sys
from pathlib import Path
from tuner_job.api.base import InputError
from tuner_job.model.digest import digest
from tuner_job.model.inspect import inspect
path = Path(sys.argv[1])
try:
    print(len(inspect(path).inputs), inspect(path).external_data)
    if sys.argv[2] == "digest":
        print(digest(path))
except InputError as error:
    print(error)
# not ru_maxrss: a process starts with the peak of the one that it was forked from
print(next(int(line.split()[1]) >> 10 for line in open("/proc/self/status") if line.startswith("VmHWM:")))
"""


def in_child(path, what) -> tuple[list[str], int]:
    """Printed lines, and the child's peak resident memory in MiB."""
    done = subprocess.run([sys.executable, "-c", SCRIPT, str(path), what], capture_output=True, text=True, check=True)
    *lines, peak = done.stdout.splitlines()
    return lines, int(peak)


@pytest.mark.parametrize("what", ["inspect", pytest.param("digest", marks=pytest.mark.slow)])
def test_gigabytes_of_external_weights_are_inspected_and_digested_in_little_memory(tmp_path, what):
    size = (3 << 30) if what == "inspect" else (2 << 30) + 4
    path = save(with_external([external("w", "w.bin", dims=(size // 4,), length=size)]), tmp_path / "m.onnx")
    with (tmp_path / "w.bin").open("wb") as file:
        file.truncate(size)
    lines, peak = in_child(path, what)
    assert lines[0] == "1 ('w.bin',)"
    assert [len(line) for line in lines[1:]] == [64] * (what == "digest")
    assert peak < 200


def inline(tmp_path, size):
    """A model whose one initializer has `size` bytes of zeros, written sparsely."""
    raw = _encoded(9 << 3 | 2) + _encoded(size)
    tensor = external("w", "").SerializeToString()[:0] + b"\x08" + _encoded(size) + b"\x10\x03\x42\x01w" + raw
    graph_rest = with_external([]).graph.SerializeToString()
    initializer = b"\x2a" + _encoded(len(tensor) + size) + tensor
    model = with_external([])
    model.ClearField("graph")
    head = model.SerializeToString() + b"\x3a" + _encoded(len(graph_rest) + len(initializer) + size) + graph_rest + initializer
    path = tmp_path / "m.onnx"
    with path.open("wb") as file:
        file.write(head)
        file.truncate(len(head) + size)
    return path


def test_weights_inside_the_file_cost_no_memory(tmp_path):
    lines, peak = in_child(inline(tmp_path, 1_900_000_000), "inspect")
    assert lines == ["1 ()"]
    assert peak < 200


def test_a_file_beyond_protobufs_limit_is_refused_with_the_way_out(tmp_path):
    lines, peak = in_child(inline(tmp_path, 2_300_000_000), "inspect")
    assert "export it with its weights as external data" in lines[0]
    assert peak < 200
