from __future__ import annotations

import json
from pathlib import Path

import pytest
from rig.s3 import S3Server

from tuner_job.api.base import InputError
from tuner_job.cli.jobfile import open_place
from tuner_job.store.connect import STORE_OPTIONS


def test_options_of_a_remote_store_come_from_the_variable(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    address = s3_server.new_store()
    monkeypatch.setenv(STORE_OPTIONS, json.dumps(address.options))
    place = open_place(address.url)
    place.store.put("a", b"1")
    assert address.open().exists("a")
    assert place.options == address.options, "workers are started with them"


@pytest.mark.parametrize("url", ["store", "file:"])
def test_a_folder_takes_none(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE_OPTIONS, '{"allowHttp": "true"}')
    monkeypatch.chdir(tmp_path)
    place = open_place(tmp_path.as_uri() if url == "file:" else url)
    assert place.options == {}


@pytest.mark.parametrize("text", ["{", "[]", '{"allowHttp": true}'])
def test_a_variable_that_is_no_object_of_strings_is_told(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(STORE_OPTIONS, text)
    with pytest.raises(InputError, match="TRTFLEET_STORE_OPTIONS: expected a JSON object of strings"):
        open_place("s3://bucket")
