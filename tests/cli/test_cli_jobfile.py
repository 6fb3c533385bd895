"""Files that a job names, found from where the job lies."""

from __future__ import annotations

import os
from pathlib import Path
from unittest import mock

import pytest
from cli_jobs import Job
from tensorrt_run import RUNTIME, SPEC

from tuner_job.api.base import InputError
from tuner_job.cli.jobfile import JobFile, embedded_runtime


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


def test_two_builds_of_one_library_in_different_versions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = tmp_path / "onnxruntime_gpu-0.1.dist-info"
    other.mkdir()
    (other / "METADATA").write_text("Metadata-Version: 2.1\nName: onnxruntime-gpu\nVersion: 0.1\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=r"onnxruntime \S+ and onnxruntime-gpu 0\.1 are both installed .* uninstall them"):
        embedded_runtime()
