"""The summary of a series, for people and for programs."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bench.faults.drill import Drill
from bench.faults.rights import Quiet, Rights

if TYPE_CHECKING:
    from bench.faults.series import Played


def write_summary(
    path: Path, drills: Sequence[Drill], played: Sequence[Played], stillness: Quiet | None, asked: Rights | None, seconds: float
) -> None:
    """`path` with .md and .json."""
    done = {each.drill.name: each for each in played}
    failed = [each for each in played if not each.ok]
    lines = [
        "# Faults on a real cluster",
        "",
        "Written by `make e2e-faults` (docs/faults.md says what is done and what is checked at each drill's end).",
        "",
        f"{len(played)} of {len(drills)} drills were played, {len(played) - len(failed)} ended as expected, "
        f"in {seconds / 60:.0f} minutes, on",
        f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release().split('-')[0]}.",
        "",
        "| drill | fault | when | expected end | | seen | s |",
        "|---|---|---|---|---|---|---|",
    ]
    for drill in drills:
        each = done.get(drill.name)
        end = "not played" if each is None else "ok" if each.ok else "**failed**"
        seen = "" if each is None else _cell(each.seen)
        time = "" if each is None else f"{each.seconds:.0f}"
        lines.append(f"| {drill.name} | {drill.fault} | {drill.when} | {drill.expected} | {end} | {seen} | {time} |")
    lines += ["", "## When there is nothing to do", ""]
    if stillness is None:
        lines.append("Not watched in this series.")
    else:
        reads = ", ".join(f"{count} × {what}" for what, count in stillness.reads.items()) or "none"
        lines += [
            f"{stillness.jobs} TuningJobs, {stillness.seconds:.0f} s, from the audit log: "
            f"{stillness.lease_writes} writes of the Lease, "
            f"{len(stillness.other_writes)} other writes. Reads: {reads}.",
            *(f"- {write}" for write in stillness.other_writes),
        ]
    lines += ["", "## Rights", ""]
    if asked is None:
        lines.append("Not compared in this series.")
    else:
        lines += [
            f"{len(asked.asked)} kinds of request by the operator in the audit log of all drills; "
            f"{len(asked.not_granted)} not granted by docs/rbac.md; {len(asked.refused)} refused by the API server.",
            *(f"- not granted: {each}" for each in asked.not_granted),
            *(f"- refused: {each}" for each in asked.refused),
            "",
            "| asked for | times |",
            "|---|---|",
            *(f"| {what} | {count} |" for what, count in asked.asked.items()),
            "",
            "Granted and never asked for (docs/rbac.md says why each is granted): "
            + (", ".join(f"`{each}`" for each in asked.never_asked) or "none")
            + ".",
        ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".md").write_text("\n".join(lines) + "\n")
    document = {
        "seconds": round(seconds),
        "drills": [
            {
                "name": drill.name,
                "ok": done[drill.name].ok if drill.name in done else None,
                "seen": done[drill.name].seen if drill.name in done else "",
                "seconds": round(done[drill.name].seconds) if drill.name in done else None,
            }
            for drill in drills
        ],
        "quiet": asdict(stillness) if stillness else None,
        "rights": asdict(asked) if asked else None,
    }
    path.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")


def _cell(text: str) -> str:
    plain = " ".join(text.split()).replace("|", "/")
    return plain if len(plain) <= 500 else f"{plain[:500]} …"
