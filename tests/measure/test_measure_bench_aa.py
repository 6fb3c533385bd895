import json
from pathlib import Path

import pytest
from scipy import stats

from bench import aa, real, series
from tuner_job.api.base import InputError


@pytest.mark.parametrize(("successes", "count"), [(0, 59), (1, 93), (4, 200), (30, 40), (5, 5)])
def test_the_upper_bound_is_clopper_and_pearsons(successes: int, count: int) -> None:
    expected = stats.beta.ppf(0.95, successes + 1, count - successes) if successes < count else 1.0
    assert series.upper_bound(successes, count) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("finals", "false", "then"),
    [
        (0, 0, "continue"),
        (58, 0, "continue"),
        (59, 0, "passed"),
        (59, 1, "continue"),
        (92, 1, "continue"),
        (93, 1, "passed"),
        (12, 2, "failed"),
    ],
)
def test_the_preregistered_rule_stops_where_it_says(finals: int, false: int, then: str) -> None:
    assert series.stopping(finals, false) == then


def test_trtexecs_rule_takes_the_best_of_all_runs_at_its_word() -> None:
    assert aa.trtexec_claim([1.0, 1.1, 0.9, 0.95]) == pytest.approx(0.1)
    assert aa.trtexec_claim([1.0, 1.0, 1.2]) == 0


def test_fitted_noise_is_what_was_recorded() -> None:
    graph, host, *_ = aa.recorded()
    assert graph.build_sd == pytest.approx(0.003, abs=0.001)
    assert graph.raw_sd == pytest.approx(0.01, abs=0.003)
    assert host.raw_sd == pytest.approx(0.17, abs=0.01)
    assert host.pair_sd[1] < host.pair_sd[0] / 5


def test_a_simulated_final_repeats_by_its_seed() -> None:
    noise = aa.recorded()[0]
    assert aa.simulate(noise, 0.03, 0.01, 5) == aa.simulate(noise, 0.03, 0.01, 5)
    assert aa.simulate(noise, 0.03, 0.01, 5).decision.significant


def test_the_bench_writes_its_results(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    aa.main(["simulate", "--finals", "1", "--output", str(tmp_path)])
    cells = json.loads((tmp_path / "aa-simulated.json").read_text())["cells"]
    assert {one["true_gain"] for one in cells} == {0.0, *aa.GAINS}
    assert "False winners among 1 finals" in (tmp_path / "aa-simulated.md").read_text()


@pytest.mark.parametrize("name", ["aa-real-cnn-gpu", "aa-real-minilm-fp16-gpu"])
def test_stored_real_finals_still_say_what_they_decided(name: str) -> None:
    stored = real.Series.read(real.RESULTS / "h200" / f"{name}.json.gz")
    assert stored is not None
    assert stored.state == "continue"
    found = real.evaluate(stored.finals[0])
    assert not found.decision.significant
    assert found.trtexec > 0
    assert found.pair_sds[1] < found.pair_sds[0]
    forged = stored.finals[0].verdict.model_copy(update={"significant": True})
    with pytest.raises(InputError, match="another decision"):
        real.evaluate(stored.finals[0].model_copy(update={"verdict": forged}))


def test_a_series_is_written_whole_and_read_back(tmp_path: Path) -> None:
    stored = real.Series.read(real.RESULTS / "h200" / "aa-real-cnn-gpu.json.gz")
    assert stored is not None
    path = tmp_path / "new" / "series.json.gz"
    assert real.Series.read(path) is None
    stored.write(path)
    assert real.Series.read(path) == stored
    assert [one.name for one in path.parent.iterdir()] == [path.name]
