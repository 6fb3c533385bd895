"""The child process: the one place where engine libraries are loaded.

    python -m tuner_job.backends.child <scratch folder> [--wait BACKEND] [--parent PID]

`api.child` is the contract. With `--wait` the child loads BACKEND and then waits for a line on its standard input before it reads
the request; end of input makes it leave quietly. With `--parent` it dies with that process.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import faulthandler
import hashlib
import json
import os
import re
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from importlib.metadata import entry_points
from pathlib import Path
from typing import Literal

from tuner_job.accuracy import references
from tuner_job.accuracy.generate import generate_inputs
from tuner_job.accuracy.losses import Comparison
from tuner_job.accuracy.references import References, Sample
from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.api.child import (
    ENGINE_FILE,
    EXIT_NO_SPACE,
    PHASE_FD,
    REPORT_FILE,
    REQUEST_FILE,
    RUNTIME_FAULT,
    TIMING_CACHE_FILE,
    ChildReport,
    ChildRequest,
    Failure,
    Phase,
)
from tuner_job.api.measurement import DeviceState, EngineFile, Losses, Timing
from tuner_job.backends.preflight import await_idle
from tuner_job.backends.protocol import (
    Backend,
    BadModel,
    BuildOrder,
    BuildRefused,
    Cancelled,
    DeviceBusy,
    Engine,
    NoDevice,
    Tensors,
    Unsupported,
)
from tuner_job.measure import racing
from tuner_job.measure.sampling import measure

BackendFactory = Callable[[Literal["CPU", "GPU"]], Backend]

ENTRY_POINTS = "trtfleet.backends"

_PR_SET_PDEATHSIG = 1
_NO_SPACE = {errno.ENOSPC, errno.EDQUOT}
_OUT_OF_MEMORY = re.compile(r"out[ _]?of[ _]?memory|bad_alloc|failed to allocate memory|cannot allocate memory", re.IGNORECASE)
"""How libraries word what Python would call MemoryError."""


class Progress:
    """Announces phases and keeps their times."""

    def __init__(self) -> None:
        self.phase = Phase.START
        self._seconds: dict[Phase, float] = {}
        self._since = time.monotonic()

    def enter(self, phase: Phase) -> None:
        self.seconds()
        self.phase = phase
        os.write(PHASE_FD, json.dumps({"phase": phase.value}).encode() + b"\n")

    def seconds(self) -> dict[Phase, float]:
        """Per phase, the present one included."""
        now = time.monotonic()
        self._seconds[self.phase] = self._seconds.get(self.phase, 0.0) + now - self._since
        self._since = now
        return dict(self._seconds)


def perform(request: ChildRequest, backend: Backend, progress: Progress) -> ChildReport:
    """Do what is asked. Raises the protocol's exceptions, InputError, and whatever the library raises."""
    state: DeviceState | None = None
    if request.operation not in ("reference", "compile"):
        state = _state(request, backend)
    if request.operation != "reference":
        backend.load_plugins([Path(path) for path in request.plugins])
    return _performed(request, backend, progress).model_copy(update={"state": state})


def _state(request: ChildRequest, backend: Backend) -> DeviceState | None:
    """Raises DeviceBusy, or NoDevice where nothing of the candidate has been touched yet, so it is not to blame."""
    try:
        return backend.state() if request.measure.allow_shared else await_idle(backend.state)
    except TrtfleetError as error:
        raise NoDevice(str(error)) from None


def _performed(request: ChildRequest, backend: Backend, progress: Progress) -> ChildReport:
    match request.operation:
        case "describe":
            return ChildReport(
                status="ok",
                device=backend.identify(),
                knobs=backend.knob_list(),
                settings=backend.settings(),
                notes=backend.notes(),
                versions=backend.versions(),
            )
        case "reference":
            return _reference(request, backend, progress)
        case "time":
            return _time(request, backend, progress)
        case "inspect":
            return _inspect(request, backend, progress)
        case "compile":
            return ChildReport(status="ok", engine=_built(request, backend, progress))
        case "trial" | "build":
            return _trial(request, backend, progress)


def _reference(request: ChildRequest, backend: Backend, progress: Progress) -> ChildReport:
    progress.enter(Phase.LOAD)
    with closing(backend.reference(Path(request.model))) as engine:
        progress.enter(Phase.CHECK)

        def samples() -> Iterator[Sample]:
            for case in request.cases:
                for index in range(request.samples):
                    inputs = generate_inputs(request.inputs, case, index, request.seed)
                    yield Sample(case.name, str(index), inputs, engine.run(inputs))

        output = Path(request.output)
        made = references.save(output.with_name(f"{output.name}.part"), samples())
        made.folder.rename(output)
    return ChildReport(status="ok", detail={"losses.samples": str(len(made)), "referencesDigest": made.digest})


def _built(request: ChildRequest, backend: Backend, progress: Progress) -> EngineFile:
    progress.enter(Phase.BUILD)
    path = Path(request.output) / ENGINE_FILE
    fingerprint = backend.build(
        BuildOrder(
            model=Path(request.model),
            cases=request.cases,
            candidate=request.candidate,
            engine=path,
            timing_cache=Path(request.timing_cache) if request.timing_cache else None,
            timing_cache_out=Path(request.output) / TIMING_CACHE_FILE,
        )
    )
    if not path.is_file() or path.stat().st_size == 0:
        raise BuildRefused("the builder returned without an error but wrote no engine")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return EngineFile(digest=digest, size=path.stat().st_size, fingerprint=fingerprint)


def _trial(request: ChildRequest, backend: Backend, progress: Progress) -> ChildReport:
    built = _built(request, backend, progress)
    progress.enter(Phase.LOAD)
    with closing(backend.load(Path(request.output) / ENGINE_FILE)) as engine:
        progress.enter(Phase.CHECK)
        losses, inputs = _check(request, engine)
        timing: tuple[Timing, ...] = ()
        if request.operation == "trial" and not losses.problems:
            progress.enter(Phase.MEASURE)
            timing = _measure(request, {"": engine}, inputs)[""]
    over = racing.over(request, [one.sessions for one in timing])
    return ChildReport(status="ok", engine=built, losses=losses, timing=timing, stopped_over=over)


def _time(request: ChildRequest, backend: Backend, progress: Progress) -> ChildReport:
    progress.enter(Phase.LOAD)
    with ExitStack() as stack:
        engines = {name: stack.enter_context(closing(backend.load(Path(path)))) for name, path in request.engines.items()}
        inputs: dict[str, Tensors] = {}
        for sample in _references(request):
            _keep(inputs, sample, request)
        progress.enter(Phase.MEASURE)
        return ChildReport(status="ok", timings=_measure(request, engines, inputs))


def _inspect(request: ChildRequest, backend: Backend, progress: Progress) -> ChildReport:
    """The first case stands for all: which layers an engine has does not depend on it."""
    inputs: dict[str, Tensors] = {}
    for sample in _references(request):
        _keep(inputs, sample, request)
    profiles = {}
    for name, path in request.engines.items():
        progress.enter(Phase.LOAD)
        with closing(backend.load(Path(path))) as engine:
            progress.enter(Phase.MEASURE)
            profiles[name] = engine.profile(_inputs_of(request, inputs, 0))
    return ChildReport(status="ok", layers=profiles)


def _references(request: ChildRequest) -> References:
    if not request.references:
        raise InputError(f"references: `{request.operation}` needs a references folder")
    opened = references.load(Path(request.references))
    if request.references_digest is not None and opened.digest != request.references_digest:
        raise InputError(f"{request.references}: digest {opened.digest} where {request.references_digest} was expected")
    return opened


def _check(request: ChildRequest, engine: Engine) -> tuple[Losses, dict[str, Tensors]]:
    """The losses over all samples, and the inputs that each case is timed with."""
    opened = _references(request)
    comparison = Comparison(opened, atol=request.atol, rtol=request.rtol, metric=request.metric, outputs=request.outputs)
    inputs: dict[str, Tensors] = {}
    for sample in opened:
        _keep(inputs, sample, request)
        comparison.add(sample, engine.run(sample.inputs))
    return comparison.losses(), inputs


def _keep(inputs: dict[str, Tensors], sample: Sample, request: ChildRequest) -> None:
    """A case is timed with its first sample that has its very shapes; samples may lie anywhere in its range."""
    case = next((case for case in request.cases if case.name == sample.case), None)
    if case is None or case.name in inputs:
        return
    if all(sample.inputs[name].shape == shape for name, shape in case.tensors.items() if name in sample.inputs):
        inputs[case.name] = sample.inputs


def _measure(
    request: ChildRequest, engines: Mapping[str, Engine], inputs: Mapping[str, Tensors]
) -> dict[str, tuple[Timing, ...]]:
    """Every engine at every case, all interleaved."""
    timers = {
        (name, case.name): engine.timer(_inputs_of(request, inputs, position), request.measure)
        for name, engine in engines.items()
        for position, case in enumerate(request.cases)
    }
    timings = measure(timers, request.measure, request.seed, time.perf_counter, len(request.cases), racing.ends(request))
    return {name: tuple(timings[name, case.name] for case in request.cases) for name in engines}


def _inputs_of(request: ChildRequest, inputs: Mapping[str, Tensors], position: int) -> Tensors:
    name = request.cases[position].name
    if name not in inputs:
        raise InputError(f"{request.references}: holds no sample with the shapes of shape case {name!r}")
    return inputs[name]


def report_on(request: ChildRequest, make: Callable[[], BackendFactory]) -> ChildReport:
    """`perform`, with every exception turned into a status. A want of disk space passes through as OSError."""
    progress = Progress()

    def ended(status: Failure, reason: str, **detail: str) -> ChildReport:
        line = " ".join(reason.split())[:2000]
        return ChildReport(status=status, phase=progress.phase, reason=line, seconds=progress.seconds(), detail=detail)

    try:
        try:
            factory = make()
            if request.operation == "inspect":
                os.environ.update(getattr(factory, "inspect_environment", {}))  # before the device is opened
            backend = factory(request.device)
        except InputError as error:
            return ended("invalidInput", str(error), fault=RUNTIME_FAULT)
        done = perform(request, backend, progress)
        return done.model_copy(update={"phase": progress.phase, "seconds": progress.seconds()})
    except Cancelled:
        raise
    except BuildRefused as error:
        return ended("refused", str(error))
    except DeviceBusy as error:
        return ended("busy", str(error))
    except NoDevice as error:
        return ended("failed" if request.operation == "describe" else "noDevice", str(error))
    except Unsupported as error:
        return ended("unsupported", str(error))
    except (BadModel, InputError) as error:
        return ended("invalidInput", str(error))
    except TrtfleetError as error:
        return ended("failed", str(error))
    except Exception as error:  # whatever a library raises ends this trial, and only this one
        if isinstance(error, OSError) and error.errno in _NO_SPACE:
            raise
        short_of_memory = isinstance(error, MemoryError) or _OUT_OF_MEMORY.search(str(error))
        return ended("outOfMemory" if short_of_memory else "failed", f"{type(error).__name__}: {error}")


def find_backend(name: str, backends: Mapping[str, BackendFactory] | None) -> BackendFactory:
    """By entry point, or among the given ones. Raises InputError."""
    if backends is not None:
        if name in backends:
            return backends[name]
        known = sorted(backends)
    else:
        installed = {point.name: point for point in entry_points(group=ENTRY_POINTS)}
        if name in installed:
            try:
                factory: BackendFactory = installed[name].load()
            except ImportError as error:
                raise InputError(f"backend {name}: cannot be imported: {error}; install its library in the worker") from error
            return factory
        known = sorted(installed)
    raise InputError(
        f"backend {name!r}: not installed (entry points {ENTRY_POINTS}: {', '.join(known) or 'none'}); "
        "install the package that brings it, or name a runtime of another family"
    )


def preload(factory: BackendFactory, device: Literal["CPU", "GPU"]) -> None:
    """Have the backend's libraries loaded while this child waits, where that takes more than the import of the factory.

    A factory says so by a function `preload(device)` of its own. It must open no device: the child that runs meanwhile would see
    a context there, and refuse to work beside it.
    """
    if (load := getattr(factory, "preload", None)) is not None:
        load(device)


def main(arguments: Sequence[str] | None = None, backends: Mapping[str, BackendFactory] | None = None) -> int:
    """Run the child; returns its exit code. `backends` takes the place of the entry points."""
    parser = argparse.ArgumentParser(prog="tuner_job.backends.child")
    parser.add_argument("scratch", type=Path)
    parser.add_argument("--wait", metavar="BACKEND")
    parser.add_argument("--device", choices=["CPU", "GPU"], default="CPU", help="that the awaited request is for")
    parser.add_argument("--parent", type=int)
    options = parser.parse_args(arguments)
    if options.parent is not None:
        _die_with(options.parent)
    os.closerange(PHASE_FD + 1, os.sysconf("SC_OPEN_MAX"))  # whatever a library of the supervisor left inheritable
    _hold_phase_channel()
    faulthandler.enable()
    faulthandler.register(signal.SIGTERM, chain=True)  # works also while a library holds the interpreter
    os.chdir(options.scratch)
    if options.wait is not None:
        with contextlib.suppress(Exception):  # the request will meet it again and report it
            preload(find_backend(options.wait, backends), options.device)
        if not os.read(0, 1):
            return 0
    request = ChildRequest.from_json((options.scratch / REQUEST_FILE).read_bytes(), where=REQUEST_FILE)
    try:
        report = report_on(request, lambda: find_backend(request.backend, backends))
        aside = options.scratch / f"{REPORT_FILE}.part"
        aside.write_bytes(report.to_json())
        aside.rename(options.scratch / REPORT_FILE)
    except Cancelled:  # now die of it, as any other child would have at once
        faulthandler.unregister(signal.SIGTERM)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)
    except OSError as error:
        if error.errno not in _NO_SPACE:
            raise
        print(error, file=sys.stderr)  # noqa: T201
        return EXIT_NO_SPACE
    return 0


def _hold_phase_channel() -> None:
    """Started by hand there is none: then the number must not fall to a file of some library, which we would write into."""
    with contextlib.suppress(OSError):
        if stat.S_ISFIFO(os.fstat(PHASE_FD).st_mode):
            os.set_inheritable(PHASE_FD, False)
            return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != PHASE_FD:
        os.dup2(nowhere, PHASE_FD, inheritable=False)
        os.close(nowhere)


def _die_with(parent: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:  # it died before the call
        os._exit(1)


def leave(code: int) -> None:
    """Exit without the libraries' own teardown: all is written, and what hangs or crashes there must not spoil it."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    leave(main())
