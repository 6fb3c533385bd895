"""Building: one network, one fresh config, one engine file."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from tuner_job.api.base import InputError
from tuner_job.backends.protocol import BuildOrder, BuildRefused, NoDevice, Unsupported
from tuner_job.backends.tensorrt import settings
from tuner_job.backends.tensorrt.cancel import monitor, stoppable
from tuner_job.backends.tensorrt.layers import fingerprint
from tuner_job.backends.tensorrt.library import Library, NoBuilder
from tuner_job.backends.tensorrt.log import Log, one_line
from tuner_job.backends.tensorrt.network import add_profiles, parse
from tuner_job.routes.knobs import parse_knob_list
from tuner_job.routes.route import parse_route

_DRIVER = re.compile(r"CUDA (?:initialization|driver)|cudaError|CUDA error", re.IGNORECASE)


def build_engine(library: Library, order: BuildOrder, log: Log, *, loadable: bool = True) -> str:
    """Write the engine file; returns its fingerprint. `loadable`: this machine can load it, else the fingerprint is "".

    Raises BuildRefused with the library's own words, Unsupported, BadModel, Cancelled, MemoryError where the library says that
    memory ran out, or NoDevice where there is no GPU to build on.
    """
    try:
        builder = library.builder(log)
    except NoBuilder as error:
        if _DRIVER.search(str(error)):
            raise NoDevice(str(error)) from None
        raise BuildRefused(str(error)) from None
    config = builder.create_builder_config()
    _set_route(library, config, order.candidate.route)
    settings.apply(library.module, config, order.candidate.settings)
    parsed = parse(library, builder, order.model, log)
    add_profiles(builder, config, parsed.network, order.cases, order.model.name)
    _set_verbosity(library, config)
    caching = _set_timing_cache(library, config, order.timing_cache, log)
    plan = _built(library, builder, config, parsed.network, log)
    if caching and order.timing_cache_out is not None:
        _keep_timing_cache(config, order.timing_cache_out, log)
    _write(order.engine, plan)
    return _inspected(library, plan, log) if loadable else ""


def _set_route(library: Library, config: Any, text: str) -> None:
    """Checked here, since the property takes any string (measured on 11.2.1.2); the builder's answer is the judge.

    The empty route leaves the property alone: it is the true default.
    """
    try:
        route = str(parse_route(text, parse_knob_list(library.knob_text(config)), "route"))
    except InputError as error:
        raise Unsupported(str(error)) from None
    if not route:
        return
    config.build_route = route
    if config.build_route != route:
        raise BuildRefused(f"{library.title} does not take the route {route}; it keeps {config.build_route!r}")


def _set_verbosity(library: Library, config: Any) -> None:
    """DETAILED for every build, since tactics are told only then and a fingerprint without them says nothing.

    It is not free: NVIDIA documents (IExecutionContext::setNvtxVerbosity) that it raises the latency of a launch from the host.
    Replayed CUDA graphs launch nothing, baseline and candidate pay alike, and a server can lower it (context.nvtx_verbosity).
    """
    config.profiling_verbosity = library.module.ProfilingVerbosity.DETAILED


def _built(library: Library, builder: Any, config: Any, network: Any, log: Log) -> Any:
    log.clear()
    with stoppable() as stop:
        config.progress_monitor = monitor(library.module, stop)
        try:
            plan = builder.build_serialized_network(network, config)
        except (RuntimeError, TypeError, ValueError) as error:
            raise BuildRefused(f"{library.title}: {one_line(str(error))}{_because(log)}") from None
    if plan is None:
        if log.short_of_memory:
            raise MemoryError(f"{library.title} ran out of memory while it built: {log.text()}")
        raise BuildRefused(f"{library.title} built nothing: {log.text() or 'it does not say why'}")
    if plan.nbytes == 0:
        raise BuildRefused(f"{library.title} built an empty engine{_because(log)}")
    return plan


def _because(log: Log) -> str:
    return f"; {text}" if (text := log.text()) else ""


def _set_timing_cache(library: Library, config: Any, start_from: Path | None, log: Log) -> bool:
    """Whether the config now has a cache whose contents can be kept.

    A cache that does not fit (another version, another device, damaged) is a note in the log and a build without it.
    """
    if library.is_rtx or not hasattr(config, "create_timing_cache"):
        return False  # RTX times nothing when it builds: its caches are deprecated and do nothing
    for data in (start_from.read_bytes(), b"") if start_from is not None else (b"",):
        try:
            cache = config.create_timing_cache(data)
            if cache is not None and config.set_timing_cache(cache, ignore_mismatch=False):
                return True
        except (RuntimeError, TypeError, ValueError) as error:
            log.add("WARNING", str(error))
        if data:
            log.add("WARNING", f"{library.title} does not take the timing cache of an earlier build; building without it")
    return False


def _keep_timing_cache(config: Any, path: Path, log: Log) -> None:
    try:
        cache = config.get_timing_cache()
        data = cache.serialize() if cache is not None else None
    except (RuntimeError, TypeError, ValueError) as error:
        log.add("WARNING", f"the timing cache cannot be kept: {one_line(str(error))}")
        return
    if data is not None:
        _write(path, data)


def _write(path: Path, data: Any) -> None:
    """`data`: a buffer of the library's. Written aside, then renamed."""
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with aside.open("wb") as file:
            file.write(data)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def _inspected(library: Library, plan: Any, log: Log) -> str:
    """The fingerprint of a plan. One that cannot be loaded has none, and the load that follows says why.

    Raises BuildRefused for an engine whose weights can be, or must be, put in later: what is timed would not be what is served.
    """
    runtime = library.module.Runtime(log.logger)
    engine = runtime.deserialize_cuda_engine(plan)
    if engine is None:
        return ""
    if problem := loose_weights(library.module, engine):
        raise BuildRefused(f"{library.title} built an engine {problem}")
    if library.is_rtx:  # it compiles kernels when it loads an engine: the tactics of layers are stubs, and tell too little
        return ""
    return fingerprint(engine.create_engine_inspector().get_engine_information(library.module.LayerInformationFormat.JSON))


def loose_weights(module: Any, engine: Any) -> str:
    """Why an engine's weights are not its own: it was built refittable or without weights (it would run, and give zeros). "" for
    an engine that is whole."""
    if hasattr(engine, "get_engine_stat") and hasattr(module, "EngineStat"):
        try:
            stripped = engine.get_engine_stat(module.EngineStat.STRIPPED_WEIGHTS_SIZE)
        except TypeError:  # 10.14 has it and cannot return its number; a plan without weights is refittable besides
            stripped = 0
        if stripped > 0:
            return f"without {stripped} bytes of its weights (STRIP_PLAN)"
    return "whose weights can be replaced (REFIT)" if engine.refittable else ""
