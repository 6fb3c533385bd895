"""References that a user brings, in the forms that people have them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from difflib import get_close_matches
from io import BytesIO
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from tuner_job.accuracy.arrays import Array, ArrayFile, dtype_of, open_npy, open_npz
from tuner_job.accuracy.references import References, Sample, save
from tuner_job.api.base import InputError
from tuner_job.api.child import ShapeCase
from tuner_job.api.tensors import TensorSpec

RAW_SUFFIXES = (".bin", ".raw", ".dat")

_Found = ArrayFile | Path
"""A typed array, or a raw dump of which only the size is known."""


@dataclass
class _RawSample:
    """What one sample's files hold, before they are matched to the model."""

    name: str
    where: Path
    tensors: dict[str, _Found] = field(default_factory=dict)
    """Key → data. A key is a tensor's name, or that with `input:` or `output:` before it."""


def import_user_references(
    source: Path,
    folder: Path,
    cases: Sequence[ShapeCase],
    inputs: Sequence[TensorSpec],
    outputs: Sequence[TensorSpec],
    checked: Collection[str] = (),
) -> References:
    """Check what the user gave against the model and write it to `folder` as references, a sample at a time.

    `source` is one of
    - an `.npz` file (one sample), or a folder of them (a sample each, in natural order). Keys are the names of the model's
      inputs and outputs; `input:<name>` and `output:<name>` tell an input from an output of the same name
    - a folder of arrays (one sample) or of such folders: `<name>.npy`, or `<name>.bin|.raw|.dat` (little-endian dumps as trtexec
      takes them), if wanted in the subfolders `inputs` and `outputs`. Characters that no file name can hold are percent-encoded
    - ONNX test data: folders `test_data_set_<n>` with `input_<i>.pb` and `output_<i>.pb`, or one such folder

    `inputs` and `outputs` are the model's; `checked` names the outputs that are wanted, none meaning all. A sample belongs to
    the case whose shapes its inputs have, or whose range holds them; each case needs one of its very shapes.
    Raises InputError for any mistake.
    """
    known = [spec.name for spec in outputs]
    if unknown := [name for name in checked if name not in known]:
        near = _nearest(unknown[0], known)
        raise InputError(f"accuracy.outputs: the model has no output {unknown[0]!r}{near}; its outputs are {_list(known)}")
    wanted = {spec.name: spec for spec in outputs if not checked or spec.name in checked}
    matcher = _Matcher(cases, {spec.name: spec for spec in inputs}, {spec.name: spec for spec in outputs}, wanted)
    return save(folder, matcher.samples(_raw_samples(source, inputs, outputs), source))


@dataclass
class _Matcher:
    """Turns raw samples into samples of a model."""

    cases: Sequence[ShapeCase]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    wanted: dict[str, TensorSpec]

    def samples(self, raws: Iterable[_RawSample], source: Path) -> Iterator[Sample]:
        """Raises InputError, also if a case gets none at its own shapes, which it is timed with."""
        open_cases = {case.name: case for case in self.cases}
        for raw in raws:
            sample = self._sample(raw)
            case = open_cases.get(sample.case)
            if case and all(array.shape == self._input_shape(case, name) for name, array in sample.inputs.items()):
                del open_cases[sample.case]
            yield sample
        if open_cases:
            raise InputError(f"{source}: holds no sample with the shapes of {_list(sorted(open_cases))}; each case needs one")

    def _sample(self, raw: _RawSample) -> Sample:
        inputs, outputs = self._split(raw)
        for name in inputs:
            _check_stored(inputs[name], self.inputs[name], f"input {name}")
        case = self._case(raw, inputs)
        bound = self._bound_sizes(case, inputs)
        read_inputs = {
            name: _read(data, self.inputs[name], self._input_shape(case, name), f"input {name}") for name, data in inputs.items()
        }
        read_outputs = {}
        for name in self.wanted:
            spec, data, where = self.outputs[name], outputs[name], f"output {name}"
            _check_stored(data, spec, where)
            read_outputs[name] = _read(data, spec, _raw_output_shape(data, spec, bound, where), where)
            _check_finite(read_outputs[name], f"{raw.where}: output {name} of sample {raw.name}")
        return Sample(case.name, raw.name, read_inputs, read_outputs)

    def _split(self, raw: _RawSample) -> tuple[dict[str, _Found], dict[str, _Found]]:
        """Keys to inputs and outputs: none missing, none unknown, none twice."""
        inputs: dict[str, _Found] = {}
        outputs: dict[str, _Found] = {}
        for key, data in raw.tensors.items():
            name, is_input = self._resolve(key, raw.where)
            group = inputs if is_input else outputs
            if name in group:
                raise InputError(f"{raw.where}: {'input' if is_input else 'output'} {name!r} is given twice")
            group[name] = data
        for kind, group, needed in (("input", inputs, self.inputs), ("output", outputs, self.wanted)):
            for name in needed:
                if name not in group:
                    near = _nearest(name, raw.tensors)
                    raise InputError(f"{raw.where}: {kind} {name!r} is missing{near}; the sample holds {_list(raw.tensors)}")
        return inputs, outputs

    def _resolve(self, key: str, where: Path) -> tuple[str, bool]:
        if key in self.inputs or key in self.outputs:
            if key in self.inputs and key in self.outputs:
                raise InputError(f"{where}: {key!r} is an input and an output; write input:{key} or output:{key}")
            return key, key in self.inputs
        kind, _, name = key.partition(":")
        if kind == "input" and name in self.inputs:
            return name, True
        if kind == "output" and name in self.outputs:
            return name, False
        known = [*self.inputs, *self.outputs]
        raise InputError(
            f"{where}: {key!r} is no input or output of the model{_nearest(key, known)}; it has the inputs {_list(self.inputs)} "
            f"and the outputs {_list(self.outputs)}"
        )

    def _input_shape(self, case: ShapeCase, name: str) -> tuple[int, ...]:
        shape = case.tensors.get(name, self.inputs[name].static_shape)
        if shape is None:
            raise InputError(f"shapes[{case.name}]: gives no shape for input {name}")
        return shape

    def _case(self, raw: _RawSample, inputs: dict[str, _Found]) -> ShapeCase:
        exact = [case for case in self.cases if all(self._fits(case, name, data, "opt") for name, data in inputs.items())]
        typed = [data for data in inputs.values() if isinstance(data, ArrayFile)]
        if len(exact) > 1 and len(typed) < len(inputs):
            names = ", ".join(case.name for case in exact)
            raise InputError(
                f"{raw.where}: raw files of these sizes fit the shape cases {names} alike; use .npy files, which say"
            )
        if exact:
            return exact[0]
        if len(typed) == len(inputs):
            for case in self.cases:
                if all(self._fits(case, name, data, "range") for name, data in inputs.items()):
                    return case
        found = ", ".join(f"{name} {_describe(data)}" for name, data in inputs.items())
        known = "; ".join(
            f"{case.name}: " + ", ".join(f"{name} {list(self._input_shape(case, name))}" for name in inputs)
            for case in self.cases
        )
        raise InputError(f"{raw.where}: the inputs of sample {raw.name} ({found}) have the shapes of no case ({known})")

    def _fits(self, case: ShapeCase, name: str, data: _Found, how: str) -> bool:
        shape = self._input_shape(case, name)
        if isinstance(data, Path):
            return data.stat().st_size == math.prod(shape) * dtype_of(self.inputs[name].dtype, f"input {name}").itemsize
        if how == "opt":
            return data.shape == shape
        low, high = case.minimum.get(name, shape), case.maximum.get(name, shape)
        return len(data.shape) == len(shape) and all(a <= s <= b for a, s, b in zip(low, data.shape, high, strict=True))

    def _bound_sizes(self, case: ShapeCase, inputs: dict[str, _Found]) -> dict[str, int]:
        """Sizes of named axes, as this sample's inputs have them."""
        bound: dict[str, int] = {}
        for name, data in inputs.items():
            shape = data.shape if isinstance(data, ArrayFile) else self._input_shape(case, name)
            axes = zip(self.inputs[name].dims or (), shape, strict=False)
            bound.update({axis: size for axis, size in axes if isinstance(axis, str)})
        return bound


def _check_stored(data: _Found, spec: TensorSpec, where: str) -> None:
    """A typed array's header against the model. Raises InputError."""
    wanted = dtype_of(spec.dtype, where)
    if isinstance(data, Path):
        return
    if not data.stored_as(wanted):
        raise InputError(f"{data.where}: {where} is {data.dtype.name}; the model has {spec.dtype}")
    fits = spec.dims is None or (
        len(spec.dims) == len(data.shape)
        and all(not isinstance(axis, int) or axis == size for axis, size in zip(spec.dims, data.shape, strict=True))
    )
    if not fits:
        raise InputError(f"{data.where}: {where} has the shape {list(data.shape)}; the model has {spec}")


def _read(data: _Found, spec: TensorSpec, raw_shape: tuple[int, ...], where: str) -> Array:
    dtype = dtype_of(spec.dtype, where)
    if isinstance(data, ArrayFile):
        return data.read(dtype)
    size, needed = data.stat().st_size, math.prod(raw_shape) * dtype.itemsize
    if size != needed:
        raise InputError(f"{data}: {size} bytes; {where} ({spec.dtype} {list(raw_shape)}) needs exactly {needed}")
    return np.fromfile(data, dtype).reshape(raw_shape)


def _raw_output_shape(data: _Found, spec: TensorSpec, bound: dict[str, int], where: str) -> tuple[int, ...]:
    """The shape of a raw dump: axes known from the inputs, and one more from the size."""
    if isinstance(data, ArrayFile):
        return data.shape
    if spec.dims is None:
        raise InputError(f"{data}: the model does not say the rank of {where}; use a .npy file, which has its shape")
    sizes = [bound.get(axis) if isinstance(axis, str) else axis for axis in spec.dims]
    if sizes.count(None) > 1:
        raise InputError(f"{data}: the model does not say the shape of {where} ({spec}); use a .npy file, which has its shape")
    known = math.prod(size for size in sizes if size is not None) * dtype_of(spec.dtype, where).itemsize
    rest, left = divmod(data.stat().st_size, known) if known else (0, 0)
    if None in sizes and left:
        raise InputError(f"{data}: {data.stat().st_size} bytes; {where} ({spec}) needs a multiple of {known}")
    return tuple(rest if size is None else size for size in sizes)


def _check_finite(array: Array, where: str) -> None:
    if array.dtype.kind in "biu":
        return
    finite = np.isfinite(array)
    if not finite.all():
        first = [int(i) for i in np.unravel_index(int(np.argmin(finite)), array.shape)]
        kind = "NaN" if np.isnan(array).any() else "Inf"
        raise InputError(f"{where}: holds {kind} at {first}; no engine can be judged by it")


def _raw_samples(source: Path, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Iterator[_RawSample]:
    """Finds the samples; raises InputError if there are none, or files of more than one form."""
    if source.is_file():
        if source.suffix != ".npz":
            raise InputError(f"{source}: references are an .npz file or a folder, not a {source.suffix or 'nameless'} file")
        yield _RawSample(source.stem, source, dict(open_npz(source)))
        return
    if not source.is_dir():
        raise InputError(f"{source}: no such file or folder of references")
    content = sorted((path for path in source.iterdir() if not path.name.startswith(".")), key=_natural)
    archives = [path for path in content if path.suffix == ".npz" and path.is_file()]
    folders = [path for path in content if path.is_dir() and path.name not in ("inputs", "outputs")]
    others = [path for path in content if path not in archives and path not in folders]
    if sum(map(bool, (archives, folders, others))) > 1:
        raise InputError(
            f"{source}: holds {_list([p.name for p in content])}; keep to .npz files, folders or arrays, not a mixture"
        )
    if not content:
        raise InputError(f"{source}: is empty; it must hold references")
    for path in archives:
        yield _RawSample(path.stem, path, dict(open_npz(path)))
    for path in folders:
        yield _folder_sample(path, inputs, outputs)
    if others:
        yield _folder_sample(source, inputs, outputs)


def _folder_sample(folder: Path, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> _RawSample:
    sample = _RawSample(folder.name, folder)
    for prefix, part in (("", folder), ("input:", folder / "inputs"), ("output:", folder / "outputs")):
        for path in sorted(part.iterdir() if part.is_dir() else (), key=_natural):
            if path.name.startswith(".") or (part == folder and path.is_dir() and path.name in ("inputs", "outputs")):
                continue
            key, data = _tensor_file(path, prefix, inputs, outputs)
            if key in sample.tensors:
                raise InputError(f"{path}: the tensor {key!r} is given twice")
            sample.tensors[key] = data
    if not sample.tensors:
        raise InputError(f"{folder}: is empty; a sample needs inputs and outputs")
    return sample


def _tensor_file(path: Path, prefix: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> tuple[str, _Found]:
    if path.suffix == ".npy":
        return prefix + unquote(path.stem), open_npy(_opener(path), str(path))
    if path.suffix in RAW_SUFFIXES and path.is_file():
        return prefix + unquote(path.stem), path
    if path.suffix == ".pb" and (match := re.fullmatch(r"(input|output)_(\d+)", path.stem)):
        return _test_data(path, match[1], int(match[2]), inputs if match[1] == "input" else outputs)
    expected = f"<name>.npy, <name>{RAW_SUFFIXES[0]}, or input_<i>.pb and output_<i>.pb"
    raise InputError(f"{path}: not a reference tensor; expected {expected}")


def _test_data(path: Path, kind: str, index: int, specs: Sequence[TensorSpec]) -> tuple[str, _Found]:
    """A serialised TensorProto. The position in the file name decides, as ONNX's own test runner does it."""
    import onnx  # only this form needs it; children start faster without

    if index >= len(specs):
        raise InputError(f"{path}: the model has only {len(specs)} {kind}s ({_list([spec.name for spec in specs])})")
    try:
        tensor = onnx.load_tensor_from_string(path.read_bytes())
    except Exception as error:  # protobuf's DecodeError, or an OSError
        raise InputError(f"{path}: not a readable ONNX tensor: {error}") from None
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        raise InputError(f"{path}: keeps its data in another file, which is not followed")
    if tensor.data_type == onnx.TensorProto.STRING:
        raise InputError(f"{path}: holds strings, which are not supported")
    try:
        array = onnx.numpy_helper.to_array(tensor)
    except Exception as error:  # whatever a malformed tensor makes the library raise
        raise InputError(f"{path}: not a readable ONNX tensor: {error}") from None
    data = array.tobytes()
    found = ArrayFile(str(path), array.dtype, array.shape, False, 0, lambda: nullcontext(BytesIO(data)))
    return f"{kind}:{specs[index].name}", found


def _opener(path: Path) -> Callable[[], nullcontext[BytesIO]]:
    return lambda: path.open("rb")  # type: ignore[return-value]


def _natural(path: Path) -> list[tuple[int, int | str]]:
    """`set_2` before `set_10`."""
    return [(0, int(part)) if part.isdigit() else (1, part) for part in re.split(r"(\d+)", path.name) if part]


def _describe(data: _Found) -> str:
    return f"of {data.stat().st_size} bytes" if isinstance(data, Path) else str(list(data.shape))


def _nearest(name: str, known: Collection[str]) -> str:
    near = get_close_matches(name, [*known, *(key.partition(":")[2] for key in known)], n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _list(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:8])
    return f"{shown}, … ({len(names)} in all)" if len(names) > 8 else shown or "none"
