"""Lease election against the fake API server, in virtual time. `Net` is one candidate's way to the server."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from fake_api import FakeApi
from virtual_time import run

from tuning_operator.kube.api import LEASES, Conflict, Forbidden, KubeApi, Object, Unavailable
from tuning_operator.kube.lease import Elector, LeaseLost


class Net:
    """KubeApi over a connection that can be cut, or that swallows what is sent."""

    def __init__(self, api: FakeApi) -> None:
        self.api = api
        self.cut = False
        self.hangs = False

    def __getattr__(self, verb: str) -> Any:
        async def call(*args: Any, **kwargs: Any) -> Any:
            if self.hangs:
                await asyncio.sleep(10_000)
            if self.cut:
                raise Unavailable("no connection")
            return await getattr(self.api, verb)(*args, **kwargs)

        return call


def elector(api: KubeApi | Net, identity: str, **options: Any) -> Elector:
    return Elector(api, namespace="op", name="lease", identity=identity, **options)  # type: ignore[arg-type]


def lease(api: FakeApi) -> Object:
    found = api.peek(LEASES, "lease", "op")
    assert found is not None
    return found["spec"]  # type: ignore[no-any-return]


def now() -> float:
    return asyncio.get_running_loop().time()


async def lost_at(candidate: Elector) -> float:
    with pytest.raises(LeaseLost):
        await candidate.hold()
    return now()


def test_the_times_follow_from_the_duration() -> None:
    candidate = elector(FakeApi(), "a", lease_seconds=15.0)
    assert (candidate.duration, candidate.renew, candidate.retry) == (15.0, 10.0, 2.0)


def test_the_first_candidate_creates_the_lease_and_keeps_it() -> None:
    async def main() -> None:
        api = FakeApi()
        first = elector(api, "a")
        await first.acquire()
        assert first.leading
        spec = lease(api)
        assert (spec["holderIdentity"], spec["leaseDurationSeconds"], spec["leaseTransitions"]) == ("a", 15, 0)
        holding = asyncio.ensure_future(first.hold())
        second = asyncio.ensure_future(elector(api, "b").acquire())
        await asyncio.sleep(600)
        assert not holding.done()
        assert not second.done()
        assert lease(api)["holderIdentity"] == "a"
        assert lease(api)["leaseTransitions"] == 0
        holding.cancel()
        second.cancel()

    run(main())


def test_a_standby_only_reads() -> None:
    async def main() -> None:
        api = FakeApi()
        await elector(api, "a").acquire()
        before = len(api.writes)
        standby = asyncio.ensure_future(elector(api, "b").acquire())
        await asyncio.sleep(12)
        assert len(api.writes) == before
        standby.cancel()

    run(main())


def test_a_leader_that_is_cut_off_stops_before_another_begins() -> None:
    async def main() -> None:
        api = FakeApi()
        net = Net(api)
        leader, standby = elector(net, "a"), elector(api, "b")
        await leader.acquire()
        end = asyncio.ensure_future(lost_at(leader))
        waiting = asyncio.ensure_future(standby.acquire())
        await asyncio.sleep(31)
        net.cut = True
        cut_at = now()
        await waiting
        taken_at = now()
        assert end.done()
        assert cut_at < end.result() < taken_at
        assert end.result() - cut_at <= leader.renew + leader.retry
        assert not leader.leading
        assert lease(api)["holderIdentity"] == "b"
        assert lease(api)["leaseTransitions"] == 1

    run(main())


def test_a_call_that_never_answers_costs_the_lease_in_time() -> None:
    async def main() -> None:
        api = FakeApi()
        net = Net(api)
        leader = elector(net, "a")
        await leader.acquire()
        net.hangs = True
        assert await lost_at(leader) <= leader.duration

    run(main())


def test_an_outage_shorter_than_the_renewal_deadline_is_survived() -> None:
    async def main() -> None:
        api = FakeApi()
        net = Net(api)
        leader = elector(net, "a")
        await leader.acquire()
        holding = asyncio.ensure_future(leader.hold())
        await asyncio.sleep(5)
        net.cut = True
        await asyncio.sleep(7)
        net.cut = False
        await asyncio.sleep(60)
        assert not holding.done()
        assert leader.leading
        holding.cancel()

    run(main())


def test_clocks_that_disagree_do_not_matter() -> None:
    async def main() -> None:
        api = FakeApi()
        leader = elector(api, "a")
        await leader.acquire()
        api.edit(LEASES, "lease", "op", lambda body: body["spec"].update(renewTime="1999-01-01T00:00:00.000000Z"))
        standby = asyncio.ensure_future(elector(api, "b").acquire())
        await asyncio.sleep(14)
        assert not standby.done()  # the record is ancient, but it was seen to be there for 14 s only
        await standby
        assert lease(api)["holderIdentity"] == "b"

    run(main())


def test_a_lease_that_another_took_is_lost_at_once() -> None:
    async def main() -> None:
        api = FakeApi()
        leader = elector(api, "a")
        await leader.acquire()
        api.edit(LEASES, "lease", "op", lambda body: body["spec"].update(holderIdentity="thief"))
        with pytest.raises(LeaseLost, match="lease op/lease: taken by thief"):
            await leader.hold()
        assert now() <= leader.retry + 0.001
        assert lease(api)["holderIdentity"] == "thief"

    run(main())


def test_a_renewal_whose_answer_was_lost_is_no_loss() -> None:
    async def main() -> None:
        api = FakeApi()
        leader = elector(api, "a")
        await leader.acquire()
        holding = asyncio.ensure_future(leader.hold())
        api.fail(Unavailable("answer lost"), "replace", after=True)
        await asyncio.sleep(60)
        assert not holding.done()
        holding.cancel()

    run(main())


def test_a_conflict_is_tried_again_and_is_no_error() -> None:
    async def main() -> None:
        api = FakeApi()
        leader = elector(api, "a")
        await leader.acquire()
        holding = asyncio.ensure_future(leader.hold())
        api.fail(Conflict("modified", code=409), "replace", times=3)
        await asyncio.sleep(60)
        assert not holding.done()
        holding.cancel()

    run(main())


def test_of_two_that_find_no_lease_one_gets_it() -> None:
    async def main() -> None:
        api = FakeApi()
        candidates = [elector(api, name) for name in "abc"]
        tasks = [asyncio.ensure_future(each.acquire()) for each in candidates]
        await asyncio.sleep(1)
        assert sum(each.done() for each in tasks) == 1
        assert [each.identity for each in candidates if each.leading] == [lease(api)["holderIdentity"]]
        for each in tasks:
            each.cancel()

    run(main())


def test_released_it_is_taken_at_the_next_try() -> None:
    async def main() -> None:
        api = FakeApi()
        leader, standby = elector(api, "a"), elector(api, "b")
        await leader.acquire()
        waiting = asyncio.ensure_future(standby.acquire())
        await asyncio.sleep(1)
        await leader.release()
        assert lease(api)["holderIdentity"] == ""
        assert not leader.leading
        released = now()
        await waiting
        assert now() - released <= standby.retry * 1.2
        await leader.release()
        assert lease(api)["holderIdentity"] == "b"  # what is no longer ours is left alone

    run(main())


def test_release_never_raises() -> None:
    async def main() -> None:
        api = FakeApi()
        net = Net(api)
        leader = elector(net, "a")
        await leader.acquire()
        net.hangs = True
        await leader.release()
        assert now() <= 6

    run(main())


def test_a_deleted_lease_is_made_again() -> None:
    async def main() -> None:
        api = FakeApi()
        leader = elector(api, "a")
        await leader.acquire()
        holding = asyncio.ensure_future(leader.hold())
        api.remove(LEASES, "lease", "op")
        await asyncio.sleep(60)
        assert not holding.done()
        assert lease(api)["holderIdentity"] == "a"
        holding.cancel()

    run(main())


def test_without_the_right_to_leases_it_waits_and_says_so_once(caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        api = FakeApi()
        api.fail(Forbidden("get Lease op/lease: forbidden", code=403), times=20)
        await elector(api, "a").acquire()
        assert now() > 20 * 2.0

    with caplog.at_level("INFO"):
        run(main())
    assert [each.message for each in caplog.records] == [
        "lease op/lease: get Lease op/lease: forbidden; trying again",
        "lease op/lease: held by this operator, a",
    ]


def test_a_longer_duration_of_the_holder_is_respected() -> None:
    async def main() -> None:
        api = FakeApi()
        await elector(api, "a", lease_seconds=60.0).acquire()
        standby = asyncio.ensure_future(elector(api, "b", lease_seconds=15.0).acquire())
        await asyncio.sleep(58)
        assert not standby.done()
        await standby

    run(main())
