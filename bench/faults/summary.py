"""The summary of a series, for people and for programs. The latter keeps what the former is written from."""

from __future__ import annotations

import fcntl
import json
import os
import platform
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.faults.drill import Drill
from bench.faults.rights import Quiet, Rights, together


@dataclass(frozen=True)
class Played:
    """How a drill ended."""

    ok: bool
    seen: str
    """What was seen, or what was wrong."""
    seconds: float
    at: str
    """When it ended, RFC 3339."""
    commit: str
    """Of the sources; with a `+` when files had been changed since."""


@dataclass
class Summary:
    path: Path
    """With .md and .json."""
    played: dict[str, Played] = field(default_factory=dict)
    stillness: Quiet | None = None
    asked: Rights | None = None

    @classmethod
    def load(cls, path: Path) -> Summary:
        """What a former series left; empty when there is none."""
        try:
            kept = json.loads(path.with_suffix(".json").read_text())
        except FileNotFoundError:
            return cls(path)
        return cls(
            path,
            {name: Played(**each) for name, each in kept["drills"].items()},
            Quiet(**kept["quiet"]) if kept["quiet"] else None,
            Rights(**kept["rights"]) if kept["rights"] else None,
        )

    def add(
        self,
        drills: Iterable[Drill],
        *,
        played: Mapping[str, Played] | None = None,
        stillness: Quiet | None = None,
        asked: Rights | None = None,
    ) -> None:
        """Beside whatever another series has written since. `drills`: all that there are, in their order."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        lock_file = Path(tempfile.gettempdir()) / "trtfleet-faults-summary.lock"
        with lock_file.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            now = Summary.load(self.path)
            self.played = {**now.played, **(played or {})}
            self.stillness = stillness or now.stillness
            self.asked = together(now.asked, asked) if now.asked and asked else asked or now.asked
            self._write(drills)

    def _write(self, drills: Iterable[Drill]) -> None:
        known = [*drills]
        self.path.with_suffix(".md").write_text("\n".join([*self._head(known), *self._quiet(), *self._rights()]) + "\n")
        document = {
            "drills": {drill.name: asdict(self.played[drill.name]) for drill in known if drill.name in self.played},
            "quiet": asdict(self.stillness) if self.stillness else None,
            "rights": asdict(self.asked) if self.asked else None,
        }
        self.path.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")

    def _head(self, drills: list[Drill]) -> list[str]:
        ended = [self.played[drill.name] for drill in drills if drill.name in self.played]
        lines = [
            "# Faults on a real cluster",
            "",
            "Written by `make e2e-faults`; [docs/faults.md](../../docs/faults.md) says what is done and checked.",
            "",
            f"{len(ended)} of {len(drills)} drills were played, {sum(each.ok for each in ended)} ended as expected, on",
            f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release().split('-')[0]}.",
            "",
            "The last column tells when a drill ended, and of which commit the product was (+: and changes not committed yet).",
            "",
            "| drill | fault | when | expected end | | seen | s | ended, commit |",
            "|---|---|---|---|---|---|---|---|",
        ]
        for drill in drills:
            each = self.played.get(drill.name)
            words = ("not played", "", "", "")
            if each is not None:
                words = ("ok" if each.ok else "**failed**", _cell(each.seen), f"{each.seconds:.0f}", f"{each.at} {each.commit}")
            lines.append(f"| {drill.name} | {drill.fault} | {drill.when} | {drill.expected} | {' | '.join(words)} |")
        return lines

    def _quiet(self) -> list[str]:
        if self.stillness is None:
            return ["", "## When there is nothing to do", "", "Not watched."]
        still = self.stillness
        reads = ", ".join(f"{count} × {what}" for what, count in still.reads.items()) or "none"
        return [
            *("", "## When there is nothing to do", ""),
            f"{still.jobs} finished TuningJobs, {still.seconds:.0f} s, from the audit log: "
            f"{still.lease_writes} writes of the Lease, {len(still.other_writes)} other writes. Reads: {reads}.",
            *(f"- {write}" for write in still.other_writes),
        ]

    def _rights(self) -> list[str]:
        if self.asked is None:
            return ["", "## Rights", "", "Not compared."]
        asked = self.asked
        never = ", ".join(f"`{each}`" for each in asked.never_asked) or "none"
        return [
            *("", "## Rights", ""),
            f"{len(asked.asked)} kinds of request by the operator in the audit log of all drills; "
            f"{len(asked.not_granted)} not granted by [docs/rbac.md](../../docs/rbac.md); "
            f"{len(asked.refused)} refused by the API server.",
            *(f"- not granted: {each}" for each in asked.not_granted),
            *(f"- refused: {each}" for each in asked.refused),
            *(f"- refused by an API server that was starting (it knows no roles yet): {each}" for each in asked.refused_early),
            *("", "| asked for | times |", "|---|---|"),
            *(f"| {what} | {count} |" for what, count in asked.asked.items()),
            "",
            f"Granted and never asked for (docs/rbac.md says why each is granted): {never}.",
        ]


def _cell(text: str) -> str:
    plain = " ".join(text.split()).replace("|", "/")
    return plain if len(plain) <= 500 else f"{plain[:500]} …"
