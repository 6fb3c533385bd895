"""A supervisor in a process of its own, for tests that kill it: `supervising.py ROOT REFERENCES NOTES SETTINGS`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tuner_job.api.child import ChildRequest, Limits, ShapeCase
from tuner_job.api.measurement import Candidate
from tuner_job.trial.supervisor import Supervisor

if __name__ == "__main__":
    root, references, notes, settings = sys.argv[1:]
    command = (sys.executable, str(Path(__file__).with_name("scripted.py")))
    with Supervisor(Path(root), command=command, extra_environment={"NOTES": notes}) as supervisor:
        end = supervisor.run(
            ChildRequest(
                operation="trial",
                backend="scripted",
                cases=(ShapeCase(name="only"),),
                candidate=Candidate(settings=json.loads(settings)),
                references=references,
                output="",
            ),
            Limits(),
            on_phase=lambda phase: (Path(notes) / f"phase-{phase}").touch(),
        )
    print(end.outcome, end.reason)
