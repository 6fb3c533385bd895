"""What a run makes of results that another one left in the ledger."""

from __future__ import annotations

from types import SimpleNamespace

from campaign_records import discovery_record, result_record, run_record, timing

from tuner_job.api.messages import Control, PlannedTrial, ResultRecord
from tuner_job.campaign.trials import TrialRunner
from tuner_job.measure.controls import scores


def test_a_reused_result_is_corrected_by_the_controls_of_the_worker_that_measured_it() -> None:
    """Two workers of an earlier run, one 20 % slower: their controls must not be mixed into one worker's."""
    run = run_record()
    discovery = discovery_record(run)
    planned = [PlannedTrial(trial=f"001-{k:05d}", candidate={"route": f"-k{k}=off"}, shard=0, reason="") for k in range(8)]

    def earlier(one: PlannedTrial) -> ResultRecord:
        k = int(one.trial[-1])
        slow = 1.2 if k % 2 else 1.0
        controls = tuple(Control(engine="0" * 64, timing=(timing(1e-3 * slow, seed=100 * k + j),)) for j in range(5))
        found = result_record(run, one, {f"-k{k}=off": slow})
        return found.model_copy(update={"worker": f"1-{k % 2}", "worker_id": f"process-{k % 2}", "controls": controls})

    store = {one.candidate.id: earlier(one) for one in planned}
    ledger = SimpleNamespace(lookup=lambda _identity, candidate: store[candidate.id])
    runner = TrialRunner(SimpleNamespace(run=run), discovery, ledger)  # type: ignore[arg-type]
    claim = SimpleNamespace(number=1, worker="1-0", worker_id="now")
    reused = [runner.run(one, claim, None) for one in planned]  # type: ignore[arg-type]
    assert all(one.cached for one in reused)
    found = scores(reused, discovery, "LatencyP50")
    assert all(abs(one.log_ratio) < 0.03 for one in found.values())
