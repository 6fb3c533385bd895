"""Which TuningJobs are known, who uses what, and what the watch owes."""

from __future__ import annotations

from tuning_operator.kube.api import Object
from tuning_operator.roster import UNTOLD_SECONDS, Roster

A, B = ("team", "a"), ("team", "b")


def job(name: str, version: int, *, store: str = "main", runtime: str = "", channel: str = "") -> Object:
    target: Object = {"name": "t", "device": {"type": "CPU"}}
    target |= {"runtimeRef": {"name": runtime}} if runtime else {}
    target |= {"channelRef": {"name": channel}} if channel else {}
    metadata = {"namespace": "team", "name": name, "resourceVersion": str(version)}
    return {"metadata": metadata, "spec": {"storeRef": {"name": store}, "targets": [target]}}


def listed(roster: Roster, *jobs: Object, now: float = 0.0, first: bool = False) -> set[tuple[str, str]]:
    return roster.listed(jobs, now, first=first)


def test_a_listing_asks_for_what_is_there_and_for_what_was_there() -> None:
    roster = Roster()
    assert listed(roster, job("a", 1), job("b", 2), first=True) == {A, B}
    assert listed(roster, job("b", 2)) == {A, B}
    roster.forget(A)
    assert listed(roster, job("b", 2)) == {B}


def test_users_of_a_cluster_object_are_those_that_name_it() -> None:
    roster = Roster()
    listed(roster, job("a", 1, runtime="trt"), job("b", 2, store="other", channel="stable"), first=True)
    assert roster.users("ArtifactStore", "main") == [A]
    assert roster.users("ArtifactStore", "other") == [B]
    assert roster.users("TunerChannel", "stable") == [B]
    assert roster.users("ArtifactStore", "nobodys") == []


def test_a_runtime_concerns_also_those_who_follow_a_channel() -> None:
    roster = Roster()
    listed(roster, job("a", 1, runtime="trt"), job("b", 2, channel="stable"), first=True)
    assert roster.users("TunerRuntime", "trt") == [A, B]
    assert roster.users("TunerRuntime", "another") == [B]


def test_a_job_whose_spec_is_not_what_this_version_knows_uses_what_can_be_read() -> None:
    roster = Roster()
    odd = {**job("a", 1), "spec": {"storeRef": {"name": "main"}, "targets": ["?", {"runtimeRef": "?"}, {"runtimeRef": {}}]}}
    listed(roster, odd, {**job("b", 1), "spec": None}, first=True)
    assert roster.users("ArtifactStore", "main") == [A]
    assert roster.entry(B).uses == frozenset()


def test_the_echo_of_what_is_known_is_no_news() -> None:
    roster = Roster()
    assert roster.told(A, 5)
    roster.entry(A).version = 7
    assert not roster.told(A, 5)
    assert not roster.told(A, 7)
    assert roster.told(A, 8)


def test_a_change_that_only_a_listing_shows_becomes_overdue() -> None:
    roster = Roster()
    listed(roster, job("a", 1), first=True)
    roster.entry(A).version = 1
    listed(roster, job("a", 9), now=100)
    assert roster.untold(100 + UNTOLD_SECONDS) == 0
    assert roster.untold(101 + UNTOLD_SECONDS) == 1
    roster.told(A, 9)
    assert roster.untold(1000) == 0


def test_an_older_event_does_not_settle_a_change() -> None:
    roster = Roster()
    roster.entry(A).version = 1
    listed(roster, job("a", 9), now=0)
    roster.told(A, 8)
    assert roster.untold(1000) == 1


def test_what_the_watch_has_told_before_the_listing_is_not_owed() -> None:
    roster = Roster()
    roster.told(A, 9)
    listed(roster, job("a", 9), now=0)
    assert roster.untold(1000) == 0


def test_what_was_looked_at_already_is_not_owed() -> None:
    roster = Roster()
    roster.entry(A).version = 9
    listed(roster, job("a", 9), now=0)
    assert roster.untold(1000) == 0


def test_a_new_job_that_only_a_later_listing_shows_is_owed() -> None:
    roster = Roster()
    listed(roster, first=True)
    listed(roster, job("a", 9), now=0)
    assert roster.untold(1000) == 1


def test_the_first_listing_owes_nothing_for_nobody_watched_before() -> None:
    roster = Roster()
    listed(roster, job("a", 9), now=0, first=True)
    assert roster.untold(1000) == 0


def test_what_is_gone_is_owed_nothing() -> None:
    roster = Roster()
    roster.entry(A).version = 1
    listed(roster, job("a", 9), now=0)
    roster.forget(A)
    assert roster.untold(1000) == 0
