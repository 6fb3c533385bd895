from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from store_cluster import OWNER, CountingStore, begun, counting_store, engine_of, finish

from tuner_job.api.base import digest_of
from tuner_job.api.inputs import Owner
from tuner_job.api.messages import RunRecord
from tuner_job.store import layout, pointers
from tuner_job.store.keys import Signer, TrustRoot
from tuner_job.store.objects import ObjectStore, StoreReadOnly, StoreUnavailable
from tuner_job.store.pointers import PointerName
from tuner_job.store.release import Wish
from tuner_job.store.verify import verify
from tuning_operator.kube.api import Unavailable
from tuning_operator.records.publisher import TRUSTED_KEYS, Publisher
from tuning_operator.snapshot import Problem, Publication, RuntimeView, StoreView, Wanted

NAME = PointerName(OWNER, "cpu", "1.23.2")
PLAIN = Wish()


@pytest.fixture
def store() -> CountingStore:
    return counting_store()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return new_key(tmp_path / "signing-key.pem")


def new_key(path: Path) -> Path:
    path.unlink(missing_ok=True)
    path.touch(mode=0o640)  # as a Secret that is mounted for the pod's group
    path.write_bytes(Signer.generate()._private_pem())
    return path


def trust(key: Path) -> TrustRoot:
    return TrustRoot([Signer.load(key, group_may_read=True).public])


def wanted(run: RunRecord) -> Wanted:
    return Wanted(
        inputs=run.inputs,
        digest=run.inputs_digest,
        run=run.run,
        rerun_token=run.rerun_token,
        runtime=RuntimeView("ort-1.23", "1.23.2", "image"),
        store=StoreView("main", "s3://tuning/team", {}),
    )


def put_out(
    key: Path,
    store: ObjectStore,
    run: RunRecord,
    wish: Wish = PLAIN,
    *,
    current: Callable[[], str] | None = None,
    owner: Owner = OWNER,
    target: str = "cpu",
) -> Publication | Problem:
    return Publisher(key).publish(store, owner, target, wanted(run), wish, current or (lambda: run.inputs_digest))


def publication(found: Publication | Problem) -> Publication:
    assert isinstance(found, Publication), found
    return found


def problem(found: Publication | Problem) -> Problem:
    assert isinstance(found, Problem), found
    return found


def test_a_proven_engine_is_served_signed_and_described(key: Path, object_store: ObjectStore) -> None:
    store = object_store
    run = begun(store)
    verdict = finish(store, run)
    found = publication(put_out(key, store, run))
    served = found.served
    assert served is not None
    assert (found.state, served.manifest, served.runtime) == ("Served", found.manifest, "ort-1.23")
    assert served.digest == f"sha256:{digest_of(engine_of(run))}"
    assert served.uri == f"{store.url}/{layout.blob(digest_of(engine_of(run)))}"
    assert verdict.engine_gain is not None
    assert served.speedup is not None
    assert float(served.speedup) == pytest.approx(verdict.engine_gain.estimate, abs=1e-4)
    assert served.interval is not None
    assert float(served.interval.low) < float(served.speedup) < float(served.interval.high)
    assert served.interval.confidence == "0.95"
    assert f"sha256:{verify(store, NAME, trust(key)).digest}" == found.manifest


def test_publishing_again_comes_to_the_same(key: Path, store: CountingStore) -> None:
    run = begun(store)
    finish(store, run)
    first = put_out(key, store, run)
    before = {info.key for info in store.list("")}
    assert put_out(key, store, run) == first
    assert {info.key for info in store.list("")} == before


def test_a_default_engine_is_served_without_a_speedup(key: Path, store: CountingStore) -> None:
    run = begun(store)
    finish(store, run, significant=False)
    served = publication(put_out(key, store, run)).served
    assert served is not None
    assert (served.speedup, served.interval) == (None, None)


def test_an_engine_waits_for_approval_beside_the_one_that_is_served(key: Path, store: CountingStore) -> None:
    old, new = begun(store, device_seconds=1), begun(store, device_seconds=2)
    finish(store, old)
    finish(store, new)
    first = publication(put_out(key, store, old))
    waiting = publication(put_out(key, store, new, Wish("Manual")))
    assert (waiting.state, waiting.served) == ("AwaitingApproval", first.served)
    approved = publication(put_out(key, store, new, Wish("Manual", approved=waiting.manifest.removeprefix("sha256:"))))
    assert approved.state == "Served"
    assert approved.served is not None
    assert approved.served.manifest == waiting.manifest


def test_nothing_is_served_before_the_first_approval(key: Path, store: CountingStore) -> None:
    run = begun(store)
    finish(store, run)
    assert publication(put_out(key, store, run, Wish("Manual"))).served is None


def test_a_rotated_key_signs_at_once_and_earlier_ones_may_stay_trusted(key: Path, store: CountingStore) -> None:
    publisher = Publisher(key)
    old, new = begun(store, device_seconds=1), begun(store, device_seconds=2)
    finish(store, old)
    finish(store, new)
    first = publication(publisher.publish(store, OWNER, "cpu", wanted(old), Wish("Manual"), lambda: old.inputs_digest))
    earlier = Signer.load(key, group_may_read=True).public.pem
    new_key(key)
    approve = Wish("Manual", approved=first.manifest.removeprefix("sha256:"))
    refused = problem(publisher.publish(store, OWNER, "cpu", wanted(new), approve, lambda: new.inputs_digest))
    assert refused.reason == "UntrustedKey"
    key.with_name(TRUSTED_KEYS).write_bytes(earlier)
    served = publication(publisher.publish(store, OWNER, "cpu", wanted(new), approve, lambda: new.inputs_digest)).served
    assert served is not None
    assert served.manifest == first.manifest
    publisher.publish(store, OWNER, "cpu", wanted(new), PLAIN, lambda: new.inputs_digest)
    assert verify(store, NAME, trust(key)).manifest.run == new.run


@pytest.mark.parametrize("state", ["missing", "open to all", "no key"])
def test_a_key_that_cannot_be_used_is_a_problem(key: Path, store: CountingStore, state: str) -> None:
    run = begun(store)
    finish(store, run)
    if state == "missing":
        key.unlink()
    elif state == "open to all":
        key.chmod(0o644)
    else:
        key.write_text("rubbish")
    found = problem(put_out(key, store, run))
    assert (found.reason, found.transient) == ("KeyUnusable", True), "mounting another one is enough"
    assert str(key) in found.message
    assert not list(store.list(layout.MANIFESTS))


@pytest.mark.parametrize(("owner", "target"), [(Owner(cluster="lab", namespace="team", name="other"), "cpu"), (OWNER, "gpu")])
def test_a_run_of_somebody_else_is_never_signed(key: Path, store: CountingStore, owner: Owner, target: str) -> None:
    run = begun(store)
    finish(store, run)
    found = problem(put_out(key, store, run, owner=owner, target=target))
    assert found.reason == "PoisonedRecord"
    assert not list(store.list(layout.MANIFESTS))


def test_a_run_whose_record_was_exchanged_is_never_signed(key: Path, store: CountingStore) -> None:
    run = begun(store)
    finish(store, run)
    plain = json.loads(run.to_json())
    plain["inputs"]["accuracy"]["threshold"] = 1e9
    store.put(layout.run(run.run), json.dumps(plain).encode())
    assert problem(put_out(key, store, run)).reason == "PoisonedRecord"
    assert not list(store.list(layout.MANIFESTS))


@pytest.mark.parametrize("key_of", [layout.run, layout.verdict])
def test_records_that_are_gone_are_named(key: Path, store: CountingStore, key_of: Callable[[str], str]) -> None:
    run = begun(store)
    finish(store, run)
    store.delete(key_of(run.run))
    found = problem(put_out(key, store, run))
    assert found.reason == "PoisonedRecord"
    assert key_of(run.run) in found.message


def test_a_verdict_that_contradicts_its_builds_is_refused(key: Path, store: CountingStore) -> None:
    run = begun(store)
    finish(store, run, latency_seconds=1e-9)
    found = problem(put_out(key, store, run))
    assert (found.reason, found.transient) == ("InconsistentVerdict", False)
    assert "latencySeconds" in found.message


def test_a_job_that_asks_for_something_else_by_now_is_waited_for(key: Path, store: CountingStore) -> None:
    run = begun(store)
    finish(store, run)
    found = problem(put_out(key, store, run, current=lambda: "f" * 64))
    assert (found.reason, found.transient) == ("NotCurrent", True)
    assert pointers.read(store, NAME) is None


def test_an_outage_is_no_answer(key: Path, store: CountingStore) -> None:
    run = begun(store)
    finish(store, run)
    store.down = True
    with pytest.raises(StoreUnavailable):
        put_out(key, store, run)


def test_an_engine_that_is_gone_is_a_problem(key: Path, store: CountingStore) -> None:
    run = begun(store)
    verdict = finish(store, run)
    store.delete(layout.blob(verdict.engine.digest))
    found = problem(put_out(key, store, run))
    assert (found.reason, found.transient) == ("EngineMissing", False)


def test_a_pin_to_nothing_is_a_problem(key: Path, store: CountingStore) -> None:
    run = begun(store)
    finish(store, run)
    put_out(key, store, run)
    assert problem(put_out(key, store, run, Wish(pinned="0" * 64))).reason == "ManifestMissing"


def test_a_pin_that_is_withdrawn_is_undone(key: Path, store: CountingStore) -> None:
    old, new = begun(store, device_seconds=1), begun(store, device_seconds=2)
    finish(store, old)
    finish(store, new)
    first = publication(put_out(key, store, old))
    pinned = publication(put_out(key, store, new, Wish(pinned=first.manifest.removeprefix("sha256:"))))
    assert (pinned.state, pinned.served) == ("Pinned", first.served)
    assert publication(put_out(key, store, new)).state == "Served"


def test_a_store_that_may_not_be_written_is_waited_for(key: Path, store: CountingStore) -> None:
    run = begun(store)
    finish(store, run)

    class ReadOnly(CountingStore):
        def create(self, key: str, data: bytes) -> bool:
            raise StoreReadOnly(f"{key}: these credentials may not")

    found = problem(put_out(key, ReadOnly(store.inner), run))
    assert (found.reason, found.transient) == ("StoreReadOnly", True)


def test_what_the_api_server_cannot_tell_is_not_guessed(key: Path, store: CountingStore) -> None:
    def away() -> str:
        raise Unavailable("away")

    run = begun(store)
    finish(store, run)
    with pytest.raises(Unavailable):
        put_out(key, store, run, current=away)
    assert pointers.read(store, NAME) is None
