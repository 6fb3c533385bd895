"""The fake API server keeps the promises that other tests rest on. test_operator_kube_real asks the real one the same."""

from __future__ import annotations

import asyncio

import pytest
from fake_api import FakeApi, Request

from tuning_operator.kube.api import (
    JOBS,
    PODS,
    TUNER_CHANNELS,
    TUNER_RUNTIMES,
    AlreadyExists,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    Object,
    Unavailable,
)

RUNTIME: Object = {
    "apiVersion": "trtfleet.dev/v1alpha1",
    "kind": "TunerRuntime",
    "metadata": {"name": "r"},
    "spec": {"family": "TensorRT", "version": "11"},
}
JOB: Object = {
    "apiVersion": "batch/v1",
    "kind": "Job",
    "metadata": {"name": "j", "labels": {"app": "x", "tier": "gpu"}},
    "spec": {"template": {"spec": {"restartPolicy": "Never"}}},
}


def pod(name: str, owner: Object) -> Object:
    reference = {"apiVersion": "batch/v1", "kind": "Job", "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"]}
    return {"metadata": {"name": name, "ownerReferences": [reference | {"controller": True}]}, "status": {"phase": "Running"}}


def test_create_fills_in_what_the_server_owns_and_ignores_a_status() -> None:
    async def main() -> None:
        api = FakeApi()
        made = await api.create(JOBS, {**JOB, "status": {"active": 7}}, "ns")
        assert made["metadata"]["generation"] == 1
        assert made["metadata"]["uid"]
        assert made["metadata"]["namespace"] == "ns"
        assert "status" not in made
        with pytest.raises(AlreadyExists):
            await api.create(JOBS, JOB, "ns")
        assert [str(each) for each in api.requests] == ["create Job ns/j"] * 2

    asyncio.run(main())


def test_generation_moves_with_the_spec_alone_and_nothing_moves_with_nothing() -> None:
    async def main() -> None:
        api = FakeApi()
        made = await api.create(TUNER_RUNTIMES, RUNTIME)
        same = await api.replace(TUNER_RUNTIMES, made)
        assert same == made
        labelled = await api.merge(TUNER_RUNTIMES, "r", None, {"metadata": {"labels": {"a": "b"}}})
        assert labelled["metadata"]["generation"] == 1
        assert labelled["metadata"]["resourceVersion"] != made["metadata"]["resourceVersion"]
        status = await api.apply_status(TUNER_RUNTIMES, "r", None, {"observedGeneration": 1})
        assert status["metadata"]["generation"] == 1
        again = await api.apply_status(TUNER_RUNTIMES, "r", None, {"observedGeneration": 1})
        assert again["metadata"]["resourceVersion"] == status["metadata"]["resourceVersion"]
        edited = await api.merge(TUNER_RUNTIMES, "r", None, {"spec": {"version": "12"}, "status": {"observedGeneration": 9}})
        assert edited["metadata"]["generation"] == 2
        assert edited["status"] == {"observedGeneration": 1}
        edited["status"] = {}
        edited["spec"]["version"] = "13"
        assert (await api.replace(TUNER_RUNTIMES, edited))["status"] == {"observedGeneration": 1}

    asyncio.run(main())


def test_a_stale_write_is_a_conflict() -> None:
    async def main() -> None:
        api = FakeApi()
        made = await api.create(TUNER_RUNTIMES, RUNTIME)
        api.edit(TUNER_RUNTIMES, "r", None, lambda body: body["metadata"].update(labels={"a": "b"}))
        with pytest.raises(Conflict):
            await api.replace(TUNER_RUNTIMES, made)
        with pytest.raises(Conflict):
            await api.merge(TUNER_RUNTIMES, "r", None, {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}})
        with pytest.raises(Conflict):
            await api.delete(TUNER_RUNTIMES, "r", None, uid="another")
        await api.delete(TUNER_RUNTIMES, "r", None, uid=made["metadata"]["uid"])
        await api.delete(TUNER_RUNTIMES, "r", None, uid=made["metadata"]["uid"])
        with pytest.raises(NotFound):
            await api.get(TUNER_RUNTIMES, "r")

    asyncio.run(main())


@pytest.mark.parametrize(
    "change",
    [
        {"spec": {"family": "Caffe"}},
        {"spec": {"version": None}},
        {"metadata": {"labels": {"a": "b c"}}},
        {"metadata": {"labels": {"a": "x" * 64}}},
        {"metadata": {"annotations": {"a": 1}}},
    ],
)
def test_what_the_schema_or_the_server_refuses_is_invalid(change: Object) -> None:
    async def main() -> None:
        api = FakeApi()
        await api.create(TUNER_RUNTIMES, RUNTIME)
        with pytest.raises(Invalid):
            await api.merge(TUNER_RUNTIMES, "r", None, change)

    asyncio.run(main())


def test_unknown_fields_of_our_kinds_are_pruned_and_statuses_checked() -> None:
    async def main() -> None:
        api = FakeApi()
        made = await api.create(TUNER_RUNTIMES, {**RUNTIME, "spec": {**RUNTIME["spec"], "colour": "red"}})
        assert "colour" not in made["spec"]
        condition = {
            "type": "Ready",
            "status": "True",
            "reason": "Fine",
            "message": "",
            "lastTransitionTime": "2026-11-30T10:00:00Z",
        }
        with pytest.raises(Invalid, match="observedGeneration"):
            await api.apply_status(TUNER_RUNTIMES, "r", None, {"conditions": [condition]})
        condition = {**condition, "observedGeneration": 1}  # type: ignore[dict-item]
        with pytest.raises(Invalid, match="duplicate"):
            await api.apply_status(TUNER_RUNTIMES, "r", None, {"conditions": [condition, condition]})
        await api.apply_status(TUNER_RUNTIMES, "r", None, {"conditions": [condition]})

    asyncio.run(main())


def test_a_jobs_template_never_changes() -> None:
    async def main() -> None:
        api = FakeApi()
        await api.create(JOBS, JOB, "ns")
        await api.merge(JOBS, "j", "ns", {"spec": {"suspend": True}})
        with pytest.raises(Invalid):
            await api.merge(JOBS, "j", "ns", {"spec": {"template": {"spec": {"restartPolicy": "OnFailure"}}}})

    asyncio.run(main())


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ("app=x", ["j"]),
        ("app!=x", []),
        ("app in (y, x),tier", ["j"]),
        ("!tier", []),
        ("app notin (x)", []),
        ("", ["j"]),
        ("none", []),
    ],
)
def test_lists_obey_label_selectors(labels: str, found: list[str]) -> None:
    async def main() -> None:
        api = FakeApi()
        await api.create(JOBS, JOB, "ns")
        assert [each["metadata"]["name"] for each in await api.list(JOBS, "ns", labels=labels)] == found
        assert await api.list(JOBS, "elsewhere", labels=labels) == []
        assert [each["metadata"]["name"] for each in await api.list(JOBS, labels=labels)] == found

    asyncio.run(main())


def test_lists_obey_field_selectors_that_the_server_has() -> None:
    async def main() -> None:
        api = FakeApi()
        api.seed(TUNER_CHANNELS, {"metadata": {"name": "a"}, "spec": {"runtimeRef": {"name": "r1"}}})
        api.seed(TUNER_CHANNELS, {"metadata": {"name": "b"}, "spec": {"runtimeRef": {"name": "r2"}}})
        assert [each["metadata"]["name"] for each in await api.list(TUNER_CHANNELS, fields="spec.runtimeRef.name=r2")] == ["b"]
        assert [each["metadata"]["name"] for each in await api.list(TUNER_CHANNELS, fields="metadata.name!=b")] == ["a"]
        with pytest.raises(Invalid):
            await api.list(TUNER_CHANNELS, fields="spec.colour=red")

    asyncio.run(main())


def test_dependents_go_with_their_owner() -> None:
    async def main() -> None:
        api = FakeApi()
        job = await api.create(JOBS, JOB, "ns")
        api.seed(PODS, pod("p", job), "ns")
        await api.delete(JOBS, "j", "ns", uid=job["metadata"]["uid"])
        assert api.all(PODS) == []

    asyncio.run(main())


def test_pods_may_linger_and_finalizers_keep() -> None:
    async def main() -> None:
        api = FakeApi()
        api.pods_linger = True
        job = api.seed(JOBS, {**JOB, "metadata": {**JOB["metadata"], "finalizers": ["a/b"]}}, "ns")
        api.seed(PODS, pod("p", job), "ns")
        await api.delete(JOBS, "j", "ns", uid=job["metadata"]["uid"])
        assert (await api.get(JOBS, "j", "ns"))["metadata"]["deletionTimestamp"]
        await api.merge(JOBS, "j", "ns", {"metadata": {"finalizers": None}})
        assert api.all(JOBS) == []
        (left,) = api.all(PODS)
        assert left["metadata"]["deletionTimestamp"]
        api.remove(PODS, "p", "ns", now=True)
        assert api.all(PODS) == []

    asyncio.run(main())


def test_faults_hit_before_or_after_the_write() -> None:
    async def main() -> None:
        api = FakeApi()
        api.fail(Unavailable("x"), "create", JOBS, times=2)
        for _ in range(2):
            with pytest.raises(Unavailable):
                await api.create(JOBS, JOB, "ns")
        assert api.all(JOBS) == []
        api.fail(Unavailable("x"), after=True)
        with pytest.raises(Unavailable):
            await api.create(JOBS, JOB, "ns")
        assert len(api.all(JOBS)) == 1
        api.down = True
        with pytest.raises(Unavailable):
            await api.get(JOBS, "j", "ns")

    asyncio.run(main())


def test_nothing_is_created_in_a_namespace_that_ends() -> None:
    async def main() -> None:
        api = FakeApi()
        api.terminating.add("ns")
        with pytest.raises(Forbidden):
            await api.create(JOBS, JOB, "ns")

    asyncio.run(main())


def test_listeners_hear_what_a_watch_would_tell_and_others_may_act_in_between() -> None:
    async def main() -> None:
        api = FakeApi()
        heard: list[tuple[str, str]] = []
        api.listeners.append(lambda event, resource, body: heard.append((event, body["metadata"]["name"])))
        job = await api.create(JOBS, JOB, "ns")

        def interfere(request: Request) -> None:
            if request.verb == "replace":
                api.edit(JOBS, "j", "ns", lambda body: body["spec"].update(suspend=True))

        api.before = interfere
        with pytest.raises(Conflict):
            await api.replace(JOBS, job)
        api.remove(JOBS, "j", "ns")
        assert heard == [("ADDED", "j"), ("MODIFIED", "j"), ("DELETED", "j")]

    asyncio.run(main())


def test_objects_go_in_and_come_out_as_copies() -> None:
    async def main() -> None:
        api = FakeApi()
        body: Object = {**JOB, "metadata": {"name": "j", "labels": {}}}
        made = await api.create(JOBS, body, "ns")
        body["metadata"]["labels"]["a"] = "1"
        made["metadata"]["labels"]["b"] = "2"
        (await api.get(JOBS, "j", "ns"))["spec"]["c"] = "3"
        assert api.all(JOBS)[0]["metadata"]["labels"] == {}
        assert "c" not in api.all(JOBS)[0]["spec"]
        assert "uid" not in body["metadata"]

    asyncio.run(main())
