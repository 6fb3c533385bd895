"""Files that a job names, found from where the job lies."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest
from cli_jobs import Job
from tensorrt_run import RUNTIME, SPEC

from tuner_job.cli.jobfile import JobFile


@pytest.mark.parametrize("named", ["its name", "its URI"])
def test_a_plugin_beside_the_job_is_found_by(tmp_path: Path, named: str) -> None:
    job = Job(tmp_path / "a job")
    library = job.folder / "lib a.so"
    library.write_bytes(b"code")
    plugin = {"uri": library.name if named == "its name" else library.as_uri(), "digest": "sha256:" + "0" * 64}
    job.write({**SPEC, "model": {"uri": "model.onnx", "plugins": [plugin]}}, RUNTIME)
    with mock.patch.dict(os.environ, job.settings):
        file = JobFile.load(job.file)
        inputs = file.inputs(file.target(None))
    assert [one.uri for one in inputs.plugins] == [library.as_uri()]
