"""A whole recording as a landscape."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bench.cpu.quiet import AA_SPREAD, LOAD_PER_CORE, OTHERS
from bench.h200.recordings import read, repeats
from bench.search.convert import from_h200
from bench.search.landscape import Landscape
from bench.search.noise import Noise, make


def from_cpu(path: Path) -> Landscape | None:
    """None while batches are missing. Raises InputError for a file that is no recording.

    Truths are those of bench.search.convert: the median over all batches of an engine's latency over the default's in the same
    batch, equal engines being one. Noise is that of the recording's A/A checks.
    """
    document = read(path)
    product, passes = document["product"], document["protocol"]["passes"]
    if document["batches"] < passes * math.ceil((product - 1) / document["protocol"]["batch"]):
        return None
    landscape = from_h200(path)
    device, checks = document["device"], document["noise"]
    between = f"{float(np.median(np.abs(again))):.2%}" if (again := repeats(document)) else "unknown"
    imputed = sum(row.imputed for row in landscape.rows.values())
    return replace(
        landscape,
        name=f"cpu-{document['model']}",
        noise=_noise(path.name, checks),
        provenance={
            "about": f"{document['model']} on {device['count']} cores of {device['product']}, {_list(document['versions'])}; "
            f"{len(landscape.rows) - imputed} of {product} configurations recorded, each built and timed in {passes} passes; "
            f"{'the machine was busy' if _busy(document) else 'the machine was idle'}",
            "source": path.name,
            "machine": f"{device['product']}, {device['count']} cores, kernel {device['driver']}, {device['compute_capability']}",
            "versions": _list(document["versions"]),
            "load": "; ".join(f"{one['at']}: {', '.join(map(str, one['load']))} before it" for one in document["sittings"]),
            "others": f"took {np.median(document['others']):.1%} of the cores in the median batch, more than {OTHERS:.0%} in "
            f"{sum(one > OTHERS for one in document['others'])} of {len(document['others'])}",
            "equal builds": f"A/A checks: standard deviations of {_percents([check['spread'] for check in checks])}",
            "repeats": f"{between} between the ratios of a configuration in the first two passes (median)",
            "seconds": str(document["seconds"]),
            "lost": str(len(document["lost"])),
            "imputed": str(imputed),
        },
    )


def _noise(name: str, checks: Sequence[Mapping[str, Any]]) -> Noise:
    """Sessions about their own build's median, build by build; builds of all checks, drift removed."""
    medians: list[float] = []
    means: list[float] = []
    for check in checks:
        rows = np.array(check["rows"])
        for build in np.unique(rows[:, 1]):
            logs = np.log(rows[rows[:, 1] == build][:, 3:5])
            medians += (logs[:, 0] - np.median(logs[:, 0])).tolist()
            means += (logs[:, 1] - np.median(logs[:, 0])).tolist()
    build_sd = float(np.sqrt(np.mean([check["build_sd"] ** 2 for check in checks])))
    return make(f"A/A checks of its own recording, {name}", build_sd, medians, means)


def _busy(document: Mapping[str, Any]) -> bool:
    """Whether any sitting began on a busy machine, any check found one, or half of the batches had one."""
    limit = LOAD_PER_CORE * document["device"]["count"]
    return (
        any(one["load"][0] > limit for one in document["sittings"])
        or any(check["spread"] > AA_SPREAD or check["others"] > OTHERS for check in document["noise"])
        or float(np.median(document["others"])) > OTHERS
    )


def _list(versions: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in versions.items())


def _percents(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2%}" for value in values)
