"""The work queue, in virtual time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
from virtual_time import run

from tuning_operator.queue import Key, QueueClosed, WorkQueue

A: Key = ("ns", "a")
B: Key = ("ns", "b")


def quiet(**options: object) -> WorkQueue:
    return WorkQueue(jitter=lambda: 1.0, **options)  # type: ignore[arg-type]


def now() -> float:
    return asyncio.get_running_loop().time()


async def worked(
    queue: WorkQueue, seconds: float, work: Callable[[Key], dict[str, object]] = lambda _: {}
) -> list[tuple[float, Key]]:
    """What one worker takes within so long, and when. `work` says how each run ends."""
    taken: list[tuple[float, Key]] = []
    try:
        async with asyncio.timeout(seconds):
            while True:
                key = await queue.get()
                taken.append((round(now(), 3), key))
                queue.done(key, **work(key))  # type: ignore[arg-type]
    except TimeoutError:
        return taken


def test_a_key_that_is_added_many_times_runs_once() -> None:
    async def main() -> None:
        queue = quiet()
        for _ in range(50):
            queue.add(A)
            queue.add(B)
        assert queue.depth == 2
        assert await worked(queue, 100) == [(0.0, A), (0.0, B)]
        assert (queue.depth, queue.running, queue.planned) == (0, 0, 0)

    run(main())


def test_a_key_never_runs_twice_at_once_and_runs_again_if_it_was_touched() -> None:
    async def main() -> None:
        queue = quiet()
        running: list[Key] = []
        runs = 0

        async def worker() -> None:
            nonlocal runs
            while True:
                key = await queue.get()
                assert key not in running
                running.append(key)
                runs += 1
                await asyncio.sleep(5)
                running.remove(key)
                queue.done(key)

        workers = [asyncio.ensure_future(worker()) for _ in range(4)]
        queue.add(A)
        for _ in range(30):
            await asyncio.sleep(0.1)
            queue.add(A)
        await asyncio.sleep(100)
        assert runs == 2
        for each in workers:
            each.cancel()

    run(main())


def test_a_failing_key_backs_off_up_to_the_cap_and_recovers() -> None:
    async def main() -> None:
        queue = quiet(floor=0.0, base=0.5, cap=4.0)
        left = 6

        def work(_: Key) -> dict[str, object]:
            nonlocal left
            left -= 1
            return {"failed": left >= 0}

        queue.add(A)
        taken = await worked(queue, 1000, work)
        assert [at for at, _ in taken] == [0.0, 0.5, 1.5, 3.5, 7.5, 11.5, 15.5]
        assert queue.retries == 6
        assert queue.failing == 0
        queue.add(A)
        left = 1
        again = await worked(queue, 1000, work)
        assert again[1][0] - again[0][0] == pytest.approx(0.5)  # it starts over

    run(main())


def test_a_failing_key_waits_at_least_as_long_as_the_server_asks() -> None:
    async def main() -> None:
        queue = quiet()
        outcomes = [{"failed": True, "after": 30.0}, {}]
        queue.add(A)
        assert [at for at, _ in await worked(queue, 100, lambda _: outcomes.pop(0))] == [0.0, 30.0]

    run(main())


def test_a_noisy_child_cannot_make_a_failing_key_spin() -> None:
    async def main() -> None:
        queue = quiet(floor=1.0, base=60.0)
        stop = now() + 10.5

        async def noise() -> None:
            while now() < stop:
                queue.add(A)
                await asyncio.sleep(0.01)

        noisy = asyncio.ensure_future(noise())
        taken = await worked(queue, 10.5, lambda _: {"failed": True})
        await noisy
        assert len(taken) == 11  # bypasses the backoff, but not the floor
        assert all(later - earlier >= 1.0 for (earlier, _), (later, _) in itertools.pairwise(taken))

    run(main())


def test_an_event_brings_a_planned_run_forward_and_a_later_plan_does_not_delay_it() -> None:
    async def main() -> None:
        queue = quiet(floor=0.0)
        queue.add_after(A, 60)
        queue.add_after(A, 10)
        queue.add_after(A, 30)
        assert queue.planned == 1
        assert await worked(queue, 200) == [(10.0, A)]
        queue.add_after(B, 60)
        queue.add(B)
        assert len(await worked(queue, 200)) == 1

    run(main())


def test_a_key_runs_again_when_its_run_asked_for_it() -> None:
    async def main() -> None:
        queue = quiet()
        queue.add(A)
        assert [at for at, _ in await worked(queue, 46, lambda _: {"after": 15.0})] == [0.0, 15.0, 30.0, 45.0]

    run(main())


def test_what_is_forgotten_does_not_come_back_by_itself() -> None:
    async def main() -> None:
        queue = quiet()
        queue.add(A)
        queue.done(await queue.get(), failed=True)
        assert (queue.failing, queue.planned) == (1, 1)
        queue.forget(A)
        assert (queue.failing, queue.planned) == (0, 0)
        assert await worked(queue, 1000) == []
        queue.add(A)
        assert len(await worked(queue, 10)) == 1

    run(main())


def test_what_was_added_while_a_key_runs_survives_that_it_is_forgotten() -> None:
    async def main() -> None:
        queue = quiet()
        queue.add(A)
        key = await queue.get()  # reads that the object is gone …
        queue.add(A)  # … and it is created anew
        queue.forget(key)
        queue.done(key)
        assert len(await worked(queue, 10)) == 1

    run(main())


def test_the_wait_of_each_key_is_told() -> None:
    async def main() -> None:
        waits: list[float] = []
        queue = quiet(waited=waits.append)
        queue.add(A)
        queue.add_after(B, 4)
        await asyncio.sleep(3)
        assert await queue.get() == A
        assert await queue.get() == B
        assert waits == pytest.approx([3.0, 0.0])

    run(main())


def test_ten_thousand_keys_leave_nothing_behind() -> None:
    async def main() -> None:
        queue = quiet()
        for index in range(10_000):
            queue.add(("ns", str(index)))
            key = await queue.get()
            queue.done(key, failed=True)
            queue.forget(key)
        await asyncio.sleep(5)
        queue.add(A)
        queue.done(await queue.get())
        kept = [len(each) for each in vars(queue).values() if isinstance(each, dict)]
        assert sum(kept) == 1  # that A must cool

    run(main())


def test_closed_it_wakes_all_who_wait_and_hands_out_nothing() -> None:
    async def main() -> None:
        queue = quiet()
        waiting = [asyncio.ensure_future(queue.get()) for _ in range(3)]
        await asyncio.sleep(0)
        queue.close()
        assert all(isinstance(each, QueueClosed) for each in await asyncio.gather(*waiting, return_exceptions=True))
        queue.add(A)
        queue.add_after(B, 1)
        await asyncio.sleep(10)
        with pytest.raises(QueueClosed):
            await queue.get()

    run(main())


def test_closed_it_keeps_back_what_was_ready_and_what_was_planned() -> None:
    async def main() -> None:
        queue = quiet()
        queue.add(A)
        queue.add_after(B, 1)
        queue.close()
        with pytest.raises(QueueClosed):
            await queue.get()
        await asyncio.sleep(10)
        with pytest.raises(QueueClosed):
            await queue.get()

    run(main())


def test_it_is_idle_once_the_last_run_is_done() -> None:
    async def main() -> None:
        queue = quiet()
        await queue.idle()
        queue.add(A)
        key = await queue.get()
        queue.close()
        asyncio.get_running_loop().call_later(7, queue.done, key)
        await queue.idle()
        assert now() == pytest.approx(7)

    run(main())


def test_retries_of_many_keys_are_spread() -> None:
    async def main() -> None:
        queue = WorkQueue(floor=0.0, base=10.0)
        keys = [("ns", str(index)) for index in range(50)]
        for key in keys:
            queue.add(key)
        for _ in keys:
            queue.done(await queue.get(), failed=True)
        times = [at for at, _ in await worked(queue, 100)]
        assert len(set(times)) > 10
        assert min(times) >= 8
        assert max(times) <= 12

    run(main())
