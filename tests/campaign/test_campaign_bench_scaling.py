from dataclasses import replace

import pytest
from campaign_records import KNOBS

from bench.scaling.campaign import KINDS, Scene, campaign
from bench.scaling.children import SLOW, Durations
from bench.scaling.report import efficiency, missed, rows
from bench.scaling.world import World


def test_the_clock_jumps_to_whoever_wakes_first() -> None:
    world, seen = World(), []

    def sleeper(name: str, *naps: float) -> None:
        for nap in naps:
            world.sleep(nap)
            seen.append((name, world.now))

    world.start(lambda: sleeper("a", 3.0, 3.0))
    world.start(lambda: sleeper("b", 4.0), after=1.0)
    world.run()
    assert seen == [("a", 3.0), ("b", 5.0), ("a", 6.0)]


def test_what_a_thread_of_the_world_raises_ends_it() -> None:
    world = World()

    def fails() -> None:
        world.sleep(1.0)
        raise LookupError

    world.start(fails)
    with pytest.raises(LookupError):
        world.run()


def test_recorded_trials_keep_their_shape_at_any_median() -> None:
    short, long = Durations.recorded(2.0), Durations.recorded(60.0)
    assert long.usual == pytest.approx([30 * one for one in short.usual])
    assert min(long.slow) > SLOW * max(long.usual) / 2
    assert max(long.control) < max(long.usual), "timing an engine that is there is a part of a trial"


SCENE = Scene(workers=4, trials=24, seed=3, planning=1.0)


def test_a_campaign_repeats_and_its_time_adds_up() -> None:
    first, second = (campaign(SCENE, KNOBS) for _ in range(2))
    assert first == second
    assert first.folded == 24
    whole = SCENE.workers * first.makespan
    assert 0.95 * whole < sum(first.seconds.values()) <= 1.001 * whole, "but for the last poll of each worker"


def test_the_trials_of_killed_workers_are_taken_over() -> None:
    calm = campaign(replace(SCENE, killed=0.0), KNOBS)
    assert (calm.repeated, calm.seconds["lost"], calm.seconds["down"]) == (0, 0, 0)
    harsh = campaign(replace(SCENE, killed=0.0, killed_tries=0.1), KNOBS)
    assert harsh.folded == 24
    assert harsh.repeated > 0
    assert harsh.seconds["lost"] > 0


def test_ideal_workers_are_as_busy_as_a_lone_one() -> None:
    alone = campaign(Scene(workers=1, trials=24, seed=3, killed=0.0, planning=0.0), KNOBS)
    assert efficiency(alone, alone) == pytest.approx(1.0)
    four = campaign(SCENE, KNOBS)
    assert 0.3 < efficiency(four, alone) < 1
    ideal = replace(four, makespan=four.makespan * efficiency(four, alone))
    assert efficiency(ideal, alone) == pytest.approx(1.0)


def test_a_pool_below_its_target_is_named_with_what_it_lost_most_by() -> None:
    alone = campaign(Scene(workers=1, trials=24, seed=3, killed=0.0, planning=0.0), KNOBS)
    small = campaign(SCENE, KNOBS)
    seconds = {**dict.fromkeys(KINDS, 0.0), "trials": alone.seconds["trials"], "ending": 1e6}
    slow = replace(small, scene=replace(SCENE, workers=32), seconds=seconds)
    [line] = missed(rows([alone, slow]))
    assert line.startswith("32 workers, 24 trials")
    assert "`ending`" in line
    assert missed(rows([alone, small])) == [], "small pools have no target"
