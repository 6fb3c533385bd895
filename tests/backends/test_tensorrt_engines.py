"""What comes out of an engine: every type, every output, every shape; what is said of its layers and of its device."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest
from onnx import TensorProto
from tensorrt_trials import DEAD, LIVE, QUICK, STATIC, Trials, seconds, trials, write_model, write_picking_model, write_references

from tuner_job.accuracy.references import Sample, save
from tuner_job.api.child import Phase
from tuner_job.api.outcome import Outcome
from tuner_job.backends.tensorrt.timers import agree

__all__ = ["trials"]

CASTS = {
    "half": (TensorProto.FLOAT16, np.float16),
    "brain": (TensorProto.BFLOAT16, ml_dtypes.bfloat16),
    "eight": (TensorProto.FLOAT8E4M3FN, ml_dtypes.float8_e4m3fn),
    "long": (TensorProto.INT64, np.int64),
    "flag": (TensorProto.BOOL, np.bool_),
}


@pytest.fixture
def of_every_type(trials: Trials, tmp_path):
    """Fields of a request for a model with an output of each type."""
    extra = [(name, kind) for name, (kind, _) in CASTS.items()]
    casts = {name: (lambda y, to=to: y.astype(to)) for name, (_, to) in CASTS.items()}
    return {
        "model": str(write_model(tmp_path / "typed.onnx", extra=extra)),
        "references": str(write_references(tmp_path / "typed", casts=casts)),
        "atol": 1e-2,
        "rtol": 1e-2,
    }


def test_every_output_is_compared_in_its_own_type(trials: Trials, of_every_type):
    end = trials.run(**of_every_type)
    assert end.outcome is Outcome.FEASIBLE, end.reason
    assert end.report is not None
    assert end.report.losses is not None
    assert {one.output for one in end.report.losses.outputs} == {"y", *CASTS}
    assert all(one.cosine < 0.01 for one in end.report.losses.outputs)


def test_wrong_values_of_every_type_are_seen(trials: Trials, of_every_type):
    trials.script({"when": {DEAD: "wrong"}})
    end = trials.run(route=DEAD, **of_every_type)
    assert end.report is not None
    assert end.report.losses is not None
    assert {one.output for one in end.report.losses.outputs if one.l0 > 0.3} == {"y", *CASTS}


def test_every_shape_is_checked_and_timed(trials: Trials, tmp_path):
    cases = tuple(
        STATIC.model_copy(update={"name": name, "tensors": {"x": (n, 16)}, "minimum": {"x": (1, 16)}, "maximum": {"x": (64, 16)}})
        for name, n in (("small", 2), ("large", 32))
    )
    fields = {
        "model": str(write_model(tmp_path / "dynamic.onnx", batch="n")),
        "references": str(write_references(tmp_path / "dynamic", cases)),
        "cases": cases,
    }
    end = trials.run(**fields)
    assert end.outcome is Outcome.FEASIBLE, end.reason
    assert end.report is not None
    assert end.report.losses is not None
    assert end.report.losses.samples == 4
    small, large = (timing.sessions[0].median for timing in end.report.timing)
    assert large > 2 * small, "the stand-in's time grows with the batch"


def test_outputs_whose_size_depends_on_data_are_compared_and_timed_from_the_host(trials: Trials, tmp_path):
    model, folder = write_picking_model(tmp_path / "picking.onnx"), tmp_path / "picking"
    x = [np.where(np.random.default_rng(n).random((2, 16)) < 0.1 * (n + 2), 1, 0).astype(np.float32) for n in range(3)]
    save(folder, [Sample("only", str(n), {"x": one}, {"where": np.array(np.nonzero(one))}) for n, one in enumerate(x)])
    end = trials.run(model=str(model), references=str(folder))
    assert end.outcome is Outcome.FEASIBLE, end.reason
    assert end.report is not None
    assert end.report.losses is not None
    assert [(one.output, one.l_inf) for one in end.report.losses.outputs] == [("where", 0.0)]
    assert end.report.timing[0].launch == "direct", "no graph can hold it"


@pytest.mark.parametrize("transfers", [False, True])
@pytest.mark.parametrize("streams", [1, 3])
@pytest.mark.parametrize("graph", [False, True])
def test_launches_streams_and_transfers_are_as_asked(trials: Trials, graph, streams, transfers):
    measure = QUICK.model_copy(update={"cuda_graph": graph, "streams": streams, "transfers": transfers})
    end = trials.run(measure=measure)
    assert end.outcome is Outcome.FEASIBLE, end.reason
    assert end.report is not None
    [timing] = end.report.timing
    assert (timing.launch, timing.streams) == ("cudaGraph" if graph else "direct", streams)
    assert timing.clock == ("host" if transfers else "device")
    assert all(one.median > 0 for one in timing.sessions)


def test_an_engine_that_a_graph_replays_wrongly_is_no_candidate(trials: Trials):
    trials.script({"when": {"always": "replayWrong"}})
    end = trials.run()
    assert (end.outcome, end.phase) == (Outcome.CRASHED, Phase.MEASURE)
    assert "of the replayed CUDA graph differs from that of a launch from the host" in end.reason
    direct = trials.run(measure=QUICK.model_copy(update={"cuda_graph": False}))
    assert direct.outcome is Outcome.FEASIBLE, direct.reason


@pytest.mark.parametrize(
    ("replayed", "same"),
    [
        ([1.0, 2.0, 100.0], True),
        ([1.0, 2.0, 104.0], True),
        ([1.0, 2.0, 106.0], False),
        ([1.0, 2.0, np.nan], False),
        ([1.0, 2.0], False),
    ],
)
def test_a_replay_may_differ_by_what_an_order_of_sums_explains(replayed, same):
    assert agree(np.array([1.0, 2.0, 100.0], np.float32), np.array(replayed, np.float32)) is same


def test_a_replay_may_order_equals_anew():
    one = np.arange(1000)
    other = one.copy()
    other[[3, 700]] = other[[700, 3]]
    assert agree(one, other)
    assert not agree(one, one[::-1])
    assert agree(np.array([np.inf, 1.0]), np.array([np.inf, 1.0]))
    assert agree(np.zeros((0, 4)), np.zeros((0, 4)))


def test_what_the_host_waits_for_is_kept_beside_the_devices_own_time(trials: Trials):
    trials.script({"when": {"always": "hostSlow"}})
    end = trials.run()
    assert end.report is not None
    for session in end.report.timing[0].sessions:
        assert session.median == pytest.approx(0.001, rel=0.1), "planted"
        assert session.host_median is not None
        assert session.host_median > 0.002, "it sleeps so long"


def test_engines_are_timed_together_and_inspected(trials: Trials, tmp_path):
    for name, route in (("default", ""), ("winner", LIVE)):
        assert trials.run("build", route=route, output=str(tmp_path / name)).outcome is Outcome.FEASIBLE
    engines = {name: str(tmp_path / name / "engine") for name in ("default", "winner")}
    timed = trials.run("time", engines=engines)
    assert timed.outcome is Outcome.FEASIBLE, timed.reason
    assert timed.report is not None
    medians = {name: timing[0].sessions[0].median for name, timing in timed.report.timings.items()}
    assert medians["winner"] < 0.9 * medians["default"]
    inspected = trials.run("inspect", engines=engines)
    assert inspected.outcome is Outcome.FEASIBLE, inspected.reason
    assert inspected.report is not None
    default, winner = (inspected.report.layers[name] for name in ("default", "winner"))
    assert {layer.tactic for layer in default.layers} != {layer.tactic for layer in winner.layers}
    assert any("slice_fusion" in layer.tactic for layer in winner.layers), "it says why it won"
    assert {"first", "relu", "second"} <= {node for layer in winner.layers for node in layer.nodes}
    assert all(layer.seconds is not None and layer.seconds > 0 for layer in winner.layers)
    assert winner.runs > 0


def test_an_engine_of_another_version_is_told(trials: Trials, tmp_path):
    assert trials.run("build", output=str(tmp_path / "old")).outcome is Outcome.FEASIBLE
    trials.script({"version": "11.3.0.99"})
    end = trials.run("time", engines={"old": str(tmp_path / "old" / "engine")})
    assert end.outcome is Outcome.CRASHED
    assert "expecting library version 11.3.0.99 got 11.2.1.2" in end.reason


def test_a_compiled_engine_is_neither_loaded_nor_checked(trials: Trials, tmp_path):
    end = trials.run("compile", output=str(tmp_path / "out"), references="")
    assert end.outcome is Outcome.FEASIBLE, end.reason
    assert (tmp_path / "out" / "engine").stat().st_size > 0
    assert end.report is not None
    assert end.report.losses is None


def test_the_device_is_identified_with_what_a_sample_needs_to_be_understood(trials: Trials):
    facts = {"product": "NVIDIA H200", "capability": "9.0", "driver": "590.1", "vbios": "96.00.AF", "sm_clock": 1200}
    facts |= {"power_limit_milliwatts": 500000, "ecc": 1, "persistence": 0, "utilization": 3, "temperature": 33}
    trials.script(device=[f"{name} = {value}" for name, value in facts.items()])
    end = trials.run("describe")
    assert end.report is not None
    device, state = end.report.device, end.report.state
    assert device is not None
    assert state is not None
    assert (device.type, device.product, device.compute_capability, device.driver, device.mig_profile) == (
        "GPU", "NVIDIA H200", "9.0", "590.1", "",
    )  # fmt: skip
    assert (state.vbios, state.sm_clock_mhz, state.power_limit_watts, state.ecc, state.persistence) == (
        "96.00.AF",
        1200,
        500.0,
        True,
        False,
    )
    assert (state.utilization_percent, state.temperature_celsius, state.uuid[:4]) == (3, 33, "GPU-")


def test_a_slice_of_a_gpu_has_its_own_class(trials: Trials):
    whole = trials.run("describe").report
    trials.script(device=["mig = 1g.12gb"])
    part = trials.run("describe").report
    assert whole is not None
    assert whole.device is not None
    assert part is not None
    assert part.device is not None
    assert part.device.mig_profile == "1g.12gb"
    assert part.device.class_id != whole.device.class_id


def test_a_device_that_says_little_is_still_used(trials: Trials):
    clocks = ["ClockInfo", "MaxClockInfo", "CurrentClocksEventReasons", "CurrentClocksThrottleReasons"]
    power = ["PowerUsage", "EnforcedPowerLimit", "EccMode", "Temperature"]
    use = ["UtilizationRates", "MemoryInfo", "ComputeRunningProcesses", "GraphicsRunningProcesses"]
    silent = ["VbiosVersion", *clocks, *power, *use]
    trials.script(device=[f"unsupported = nvmlDeviceGet{name}" for name in silent])
    end = trials.run()
    assert end.outcome is Outcome.FEASIBLE, end.reason
    assert seconds(end) > 0
    assert end.report is not None
    assert end.report.state is not None
    assert (end.report.state.vbios, end.report.state.sm_clock_mhz, end.report.state.ecc) == ("", None, None)
