"""The signed result file."""

from __future__ import annotations

import base64
import json

import pytest

from tuner_job.api.base import InputError, canonical_json
from tuner_job.api.measurement import BuilderSetting
from tuner_job.doctor.choice import chosen_knobs, chosen_setting
from tuner_job.doctor.known import KNOWN_LISTS, facts_of
from tuner_job.doctor.record import Check, DoctorRecord, read_result, require_trusted, write_result
from tuner_job.routes.knobs import no_knobs, parse_knob_list
from tuner_job.store.attest import VerificationFailed
from tuner_job.store.keys import PublicKey, Signer, TrustRoot

SIGNER = Signer.generate()


def record(*statuses: str) -> DoctorRecord:
    checks = [Check.model_validate({"name": f"c{k}", "status": status, "detail": ""}) for k, status in enumerate(statuses)]
    return DoctorRecord(
        trtfleet="1", family="TensorRT", device_type="GPU", machine={}, model="built in", model_digest="a" * 64,
        checks=tuple(checks), started_at="now", seconds=1.0,
    )  # fmt: skip


def test_a_result_reads_back_with_the_key_that_signed_it() -> None:
    written = write_result(record("confirmed"), SIGNER)
    assert written.count(b"\n") == 1, "one line, so that it is the last line of a pod's log"
    found, key = read_result(written, "result.json")
    assert (found, key.key_id) == (record("confirmed"), SIGNER.key_id)


@pytest.mark.parametrize(
    ("statuses", "confirmed"),
    [
        (("confirmed", "absent"), True),
        (("confirmed", "failed"), False),
        (("confirmed", "untried"), False),
    ],
)
def test_what_was_not_tried_is_not_confirmed(statuses: tuple[str, ...], confirmed: bool) -> None:
    assert record(*statuses).confirmed is confirmed


def changed(payload: dict) -> bytes:
    file = json.loads(write_result(record("failed"), SIGNER))
    inner = json.loads(base64.b64decode(file["envelope"]["payload"])) | payload
    file["envelope"]["payload"] = base64.b64encode(canonical_json(inner)).decode()
    return json.dumps(file).encode()


def test_a_changed_word_breaks_the_signature() -> None:
    with pytest.raises(VerificationFailed, match=r"result\.json: .* signature does not hold; the content was changed"):
        read_result(changed({"checks": [{"name": "c0", "status": "confirmed", "detail": ""}]}), "result.json")


def test_another_key_in_the_file_does_not_help() -> None:
    file = json.loads(write_result(record("failed"), SIGNER))
    file["publicKey"] = Signer.generate().public.pem.decode()
    with pytest.raises(VerificationFailed, match="signed by"):
        read_result(json.dumps(file).encode(), "result.json")


def test_an_envelope_of_another_kind_is_no_result() -> None:
    from tuner_job.store.attest import seal

    envelope = json.loads(seal(record("confirmed").to_json(), (SIGNER,)))
    file = {"envelope": envelope, "publicKey": SIGNER.public.pem.decode()}
    with pytest.raises(VerificationFailed, match="payload type"):
        read_result(json.dumps(file).encode(), "result.json")


def test_a_private_key_by_mistake_is_refused() -> None:
    file = json.loads(write_result(record("failed"), SIGNER))
    file["publicKey"] = "-----BEGIN PRIVATE KEY-----"
    with pytest.raises(InputError, match="holds a private key"):
        read_result(json.dumps(file).encode(), "result.json")


@pytest.mark.parametrize(
    "data",
    [b"", b"nonsense", b"[]", b"{}", b'{"envelope": 1}', b'{"publicKey": "a", "publicKey": "b"}', b"[" * 200_000, b"\xff"],
    ids=range(8),
)
def test_files_that_are_no_result_are_one_clear_line(data: bytes) -> None:
    with pytest.raises(InputError) as caught:
        read_result(data, "result.json")
    assert str(caught.value).startswith("result.json")
    assert "\n" not in str(caught.value)


def test_a_result_of_another_version_says_so() -> None:
    later = record("confirmed").model_copy(update={"schema_version": 2})
    with pytest.raises(InputError, match="schema version 2 is newer"):
        read_result(write_result(later, SIGNER), "result.json")


def test_only_the_readers_own_trust_root_says_whom_to_believe() -> None:
    written = write_result(record("confirmed"), SIGNER)
    _, key = read_result(written, "result.json")
    require_trusted(key, TrustRoot([PublicKey.from_pem(SIGNER.public.pem, "here")]), "result.json")
    told = rf"signed by {key.key_id[:16]}, but that key is not in my keys; .*publicKey.* --trust"
    with pytest.raises(VerificationFailed, match=told):
        require_trusted(key, TrustRoot([Signer.generate().public], "my keys"), "result.json")


def test_the_known_list_is_the_one_that_tests_use(real_list: str) -> None:
    facts = facts_of(parse_knob_list(real_list))
    assert (facts.count, facts.bounded, facts.known) == (211, 197, "TensorRT 11.2.1.2 on Linux")
    assert set(KNOWN_LISTS) == {facts.digest}
    other = parse_knob_list(real_list.replace('"default_value": "on"', '"default_value": "off"', 1))
    assert facts_of(other).known == ""
    assert facts_of(parse_knob_list(no_knobs("too old"))).missing == "too old"


def test_routes_are_from_all_over_the_list_and_never_the_default(real_list: str) -> None:
    knobs = parse_knob_list(real_list)
    chosen = chosen_knobs(knobs, 4)
    assert len({knob.name for knob, _ in chosen}) == 4
    assert all(knob.accepts(value) and value != knob.default for knob, value in chosen)
    places = [knobs.order(knob.name) for knob, _ in chosen]
    assert places == sorted(places)
    assert places[-1] - places[0] > 100
    assert len(chosen_knobs(knobs, 10_000)) == 197
    assert chosen_knobs(parse_knob_list(no_knobs("none")), 4) == []


def test_the_setting_is_never_the_default() -> None:
    level = BuilderSetting(name="optimizationLevel", low=0, high=5, default="3")
    flag = BuilderSetting(name="tf32", values=("on", "off"), default="on")
    own = BuilderSetting(name="maxAuxStreams", low=0, high=9, default="TensorRT's choice")
    assert chosen_setting((flag, level)) == ("optimizationLevel", "2")
    assert chosen_setting((flag,)) == ("tf32", "off")
    assert chosen_setting((own,)) == ("maxAuxStreams", "0")
    assert chosen_setting((level.model_copy(update={"default": "0"}),)) is None
    assert chosen_setting(()) is None


@pytest.mark.parametrize("data", [b"{}", b"[]", b'{"envelope": 1, "publicKey": "x"}', b"yaml: here"])
def test_another_file_is_told_from_a_damaged_result(data: bytes) -> None:
    with pytest.raises(InputError, match=r"^other\.json: .*not a result of `trtfleet doctor`"):
        read_result(data, "other.json")
