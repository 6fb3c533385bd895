"""References: inputs with the outputs that a good engine gives for them, in a folder.

    manifest.json                          names, types, shapes and SHA-256 of everything (canonical JSON)
    <case>/<sample>/inputs/<index>.bin     one tensor: its elements, C order, little-endian, nothing else
    <case>/<sample>/outputs/<index>.bin

Numbers name the files, so tensor names may be any text. trtexec's `--loadInputs` and `--loadRefOutputs` take these files.
"""

from __future__ import annotations

import hashlib
import math
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Literal

import numpy as np

from tuner_job.accuracy.arrays import Array, dtype_of, little_endian, raw_bytes, read_exactly
from tuner_job.api.base import InputError, Model, digest_of
from tuner_job.api.measurement import Digest

MANIFEST = "manifest.json"
MAX_MANIFEST_BYTES = 64 << 20


class TensorEntry(Model):
    """One stored tensor."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    sha256: Digest

    @property
    def size(self) -> int:
        """Bytes."""
        return math.prod(self.shape) * dtype_of(self.dtype, self.name).itemsize


class SampleEntry(Model):
    """One stored sample. Tensors are in order of their names."""

    name: str
    inputs: tuple[TensorEntry, ...]
    outputs: tuple[TensorEntry, ...]


class CaseEntry(Model):
    """The samples of one shape case."""

    name: str
    samples: tuple[SampleEntry, ...]


class Manifest(Model):
    """`manifest.json`. Its digest is the references' digest: it holds the digest of every array."""

    version: Literal[1] = 1
    cases: tuple[CaseEntry, ...]

    def files(self) -> Iterator[tuple[str, TensorEntry]]:
        """Every tensor with its path inside the folder, in the one order that archives use."""
        for c, case in enumerate(self.cases):
            for s, sample in enumerate(case.samples):
                for kind, entries in (("inputs", sample.inputs), ("outputs", sample.outputs)):
                    for index, entry in enumerate(entries):
                        yield f"{c}/{s}/{kind}/{index}.bin", entry


@dataclass(frozen=True)
class Sample:
    """One set of inputs and what a good engine answers."""

    case: str
    """Name of the shape case."""
    name: str
    """Unique within its case."""
    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]

    @property
    def label(self) -> str:
        return f"{self.case}/{self.name}"


@dataclass(frozen=True)
class References:
    """A references folder, opened. Iterating reads one sample at a time, checked against its digests."""

    folder: Path
    manifest: Manifest

    @property
    def digest(self) -> str:
        """SHA-256 over all names, types, shapes and values; the same wherever the folder lies."""
        return digest_of(self.manifest.to_json())

    @property
    def keys(self) -> tuple[tuple[str, str], ...]:
        """(case, name) of every sample, in order."""
        return tuple((case.name, sample.name) for case in self.manifest.cases for sample in case.samples)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Names of the outputs that every sample holds (save makes sure that they agree)."""
        return tuple(entry.name for entry in self.manifest.cases[0].samples[0].outputs)

    def __len__(self) -> int:
        return sum(len(case.samples) for case in self.manifest.cases)

    def __iter__(self) -> Iterator[Sample]:
        """Raises InputError if an array on disk is not what the manifest says."""
        for c, case in enumerate(self.manifest.cases):
            for s, sample in enumerate(case.samples):
                base = self.folder / str(c) / str(s)
                yield Sample(
                    case.name,
                    sample.name,
                    {e.name: _read(base / "inputs" / f"{i}.bin", e) for i, e in enumerate(sample.inputs)},
                    {e.name: _read(base / "outputs" / f"{i}.bin", e) for i, e in enumerate(sample.outputs)},
                )


def load(folder: Path) -> References:
    """Open a references folder; arrays are read when iterated. Raises InputError."""
    path = folder / MANIFEST
    try:
        if path.stat().st_size > MAX_MANIFEST_BYTES:
            raise InputError(f"{path}: larger than {MAX_MANIFEST_BYTES} bytes")
        manifest = Manifest.from_json(path.read_bytes(), where=str(path))
    except FileNotFoundError:
        raise InputError(f"{folder}: not a references folder: it has no {MANIFEST}") from None
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from None
    _check_not_empty(manifest, str(folder))
    return References(folder, manifest)


def save(folder: Path, samples: Iterable[Sample]) -> References:
    """Write a new references folder; it appears whole or not at all. Samples are consumed one at a time.

    Raises InputError if there is no sample, a name is there twice, samples differ in their tensors, an element type is not
    supported, or an output holds NaN (no engine can be judged by it); or if the folder exists.
    """
    with new_folder(folder) as aside:
        cases: dict[str, list[SampleEntry]] = {}
        tensors: tuple[list[str], list[str]] | None = None
        for sample in samples:
            entries = cases.setdefault(sample.case, [])
            if any(entry.name == sample.name for entry in entries):
                raise InputError(f"references: the sample {sample.label} is there twice")
            if tensors is None:
                tensors = sorted(sample.inputs), sorted(sample.outputs)
            elif tensors != (sorted(sample.inputs), sorted(sample.outputs)):
                raise InputError(f"references: the sample {sample.label} does not hold the same tensors as the first one")
            for name, array in sample.outputs.items():
                dtype_of(array.dtype.name, f"references: output {name}")
                if nan := int(np.count_nonzero(np.isnan(array))):
                    raise InputError(f"references: output {name} of sample {sample.label} holds NaN ({nan} of {array.size})")
            base = aside / str(list(cases).index(sample.case)) / str(len(entries))
            entries.append(
                SampleEntry(
                    name=sample.name,
                    inputs=_write(base / "inputs", sample.inputs),
                    outputs=_write(base / "outputs", sample.outputs),
                )
            )
        manifest = Manifest(cases=tuple(CaseEntry(name=name, samples=tuple(entries)) for name, entries in cases.items()))
        _check_not_empty(manifest, "references")
        (aside / MANIFEST).write_bytes(manifest.to_json())
    return References(folder, manifest)


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A folder to fill that becomes `folder` when the block ends well and vanishes otherwise."""
    if folder.exists():
        raise InputError(f"{folder}: exists already")
    folder.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(mkdtemp(prefix=".references-", dir=folder.parent))
    try:
        yield aside
        aside.chmod(0o755)
        aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise


def _check_not_empty(manifest: Manifest, where: str) -> None:
    if not manifest.cases or not all(case.samples for case in manifest.cases):
        raise InputError(f"{where}: holds no samples")
    if not all(sample.outputs for case in manifest.cases for sample in case.samples):
        raise InputError(f"{where}: holds no outputs to compare with")


def _write(folder: Path, tensors: Mapping[str, Array]) -> tuple[TensorEntry, ...]:
    folder.mkdir(parents=True)
    entries = []
    for index, name in enumerate(sorted(tensors)):
        dtype_of(tensors[name].dtype.name, f"references: tensor {name}")
        array = little_endian(tensors[name])
        data = raw_bytes(array)
        with (folder / f"{index}.bin").open("wb") as file:
            file.write(data)
        digest = hashlib.sha256(data).hexdigest()
        entries.append(TensorEntry(name=name, dtype=array.dtype.name, shape=array.shape, sha256=digest))
    return tuple(entries)


def _read(path: Path, entry: TensorEntry) -> Array:
    where = f"{path} ({entry.name})"
    try:
        with path.open("rb") as file:
            data = read_exactly(file, entry.size, where)
    except OSError as error:
        raise InputError(f"{where}: cannot be read: {error.strerror}") from None
    if hashlib.sha256(data.data).hexdigest() != entry.sha256:
        raise InputError(f"{where}: its content is not what {MANIFEST} says; fetch or make the references again")
    return data.view(dtype_of(entry.dtype, where)).reshape(entry.shape)
