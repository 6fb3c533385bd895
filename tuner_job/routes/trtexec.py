"""The trtexec line that builds and times a candidate, as far as trtexec can say it.

Flags, units and defaults are those of NVIDIA/TensorRT, samples/common/sampleOptions.cpp (10.9 to 11.1).
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tuner_job.api.child import MeasureSettings, ShapeCase
from tuner_job.api.measurement import Candidate

Shape = tuple[int, ...]

TILING = {"NONE": "0", "FAST": "1", "MODERATE": "2", "FULL": "3"}
"""trtexec takes the number of the level."""

_NUMBERS = {
    "optimizationLevel": "--builderOptimizationLevel",
    "l2LimitForTiling": "--l2LimitForTiling",
    "maxAuxStreams": "--maxAuxStreams",
    "maxNumTactics": "--maxTactics",
    "avgTimingIterations": "--avgTiming",
}
_POOLS = {"workspaceBytes": "workspace", "tacticSharedMemoryBytes": "tacticSharedMem"}

DEFAULT_AVERAGE = "1"
"""TensorRT averages so many timings of a tactic unless told otherwise; trtexec tells it 8, so the flag is always there."""

VERBOSITY = "--profilingVerbosity=detailed"
"""As the backend builds, so that layers have names; it costs time where kernels are launched from the host."""

_INT32 = 2**31 - 1

_OTHER_DEFAULTS = 11
"""Major version since which trtexec is strongly typed, uses a CUDA graph and leaves transfers out unless told otherwise."""


@dataclass(frozen=True)
class TrtexecLine:
    """What to call, and what that call leaves out."""

    argv: tuple[str, ...]
    notes: tuple[str, ...]
    """What trtexec cannot say, a sentence each."""

    @property
    def shell(self) -> str:
        """For a POSIX shell: the notes as comments, then the call, an option a line."""
        quoted = [self.argv[0], *(_quoted(word) for word in self.argv[1:])]
        return "\n".join([*(f"# {' '.join(note.split())}" for note in self.notes), " \\\n  ".join(quoted)])


def trtexec_line(
    candidate: Candidate,
    *,
    onnx: str,
    engine: str,
    cases: Sequence[ShapeCase],
    measure: MeasureSettings,
    plugins: Sequence[str] = (),
    default_average: str = DEFAULT_AVERAGE,
    major: int = _OTHER_DEFAULTS,
) -> TrtexecLine:
    """Build `candidate` from the file `onnx`, write the engine to `engine`, and time it under the first of `cases`.

    `default_average`: the library's own avgTimingIterations; `major`: its version.
    """
    argv = ["trtexec", f"--onnx={onnx}"]
    argv += ["--stronglyTyped"] if major < _OTHER_DEFAULTS else []
    notes: list[str] = []
    argv += [f"--staticPlugins={path}" for path in plugins]
    if candidate.route:
        argv.append(f"--setBuildRoute={candidate.route}")
    argv += _settings({"avgTimingIterations": default_average, **candidate.settings}, notes)
    argv += _shapes(cases, notes)
    argv += _timing(measure, major, notes)
    return TrtexecLine((*argv, VERBOSITY, f"--saveEngine={engine}"), tuple(notes))


def _settings(settings: Mapping[str, str], notes: list[str]) -> list[str]:
    flags = []
    pools = [f"{pool}:{settings[name]}B" for name, pool in _POOLS.items() if name in settings]
    for name, value in sorted(settings.items()):
        if name in _NUMBERS:
            flags.append(f"{_NUMBERS[name]}={value}")
            if name == "l2LimitForTiling" and int(value) > _INT32:
                notes.append(f"trtexec reads --l2LimitForTiling as a 32-bit number: it refuses {value}.")
        elif name == "tilingOptimizationLevel" and value in TILING:
            flags.append(f"--tilingOptimizationLevel={TILING[value]}")
        elif name == "tf32":
            flags += ["--noTF32"] if value == "off" else []
        elif name == "sparseWeights":
            flags += ["--sparsity=enable"] if value == "on" else []
        elif name not in _POOLS:
            notes.append(f"trtexec has no flag for the builder setting {name}={value}.")
    return flags + ([f"--memPoolSize={','.join(pools)}"] if pools else [])


def _shapes(cases: Sequence[ShapeCase], notes: list[str]) -> list[str]:
    """An optimization profile for each different range of the dynamic inputs, and the shapes to be timed under."""
    first = cases[0]
    bad = sorted(name for name in first.minimum if set(name) & set(",'"))
    if bad:
        notes.append(f"trtexec cannot spell the inputs {', '.join(bad)}: their shapes are left out.")
    names = [name for name in first.minimum if name not in bad]
    if len(cases) > 1:
        weights = ", ".join(f"{case.name} ({case.weight:g})" for case in cases)
        notes.append(f"trtexec times one shape, here {first.name}; the run weighted {weights}.")
    if not names:
        return []
    profiles = list(
        dict.fromkeys(tuple(_spec(shapes, names) for shapes in (case.minimum, case.tensors, case.maximum)) for case in cases)
    )
    flags = []
    for number, (low, best, high) in enumerate(profiles):
        flags += [f"--profile={number}"] if len(profiles) > 1 else []
        flags += [f"--minShapes={low}", f"--optShapes={best}", f"--maxShapes={high}"]
    return [*flags, f"--shapes={_spec(first.tensors, names)}"]


def _spec(shapes: Mapping[str, Shape], names: Sequence[str]) -> str:
    """`images:1x3x640x640,scale:scalar`. A name may hold colons: trtexec splits at the last one."""
    return ",".join(f"{name}:{_dims(shapes[name])}" for name in names)


def _dims(shape: Shape) -> str:
    return "x".join(map(str, shape)) or "scalar"


def _timing(measure: MeasureSettings, major: int, notes: list[str]) -> list[str]:
    flags = [f"--infStreams={measure.streams}"] if measure.streams > 1 else []
    if major < _OTHER_DEFAULTS:
        flags += ["--useCudaGraph"] if measure.cuda_graph else []
        flags += [] if measure.transfers else ["--noDataTransfers"]
    else:
        flags += [] if measure.cuda_graph else ["--noCudaGraph"]
        flags += ["--includeDataTransfers"] if measure.transfers else []
    notes.append(f"trtexec prints latencies of one process; the run judged {measure.metric} over builds and sessions.")
    return flags


def _quoted(word: str) -> str:
    """`--flag='value'`: only the value in quotes, so that the line can be read."""
    flag, equals, value = word.partition("=")
    return f"{flag}={shlex.quote(value)}" if equals else shlex.quote(word)
