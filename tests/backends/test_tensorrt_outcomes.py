"""Each way in which a build or an engine can fail ends as the outcome that it should: the stand-in fails, the rest is real."""

from __future__ import annotations

import threading

import pytest
from tensorrt_trials import DEAD, LIVE, QUICK, STATIC, Trials, seconds, trials, write_model, write_references

from tuner_job.api.child import Phase
from tuner_job.api.inputs import AccuracyInput
from tuner_job.api.outcome import Outcome
from tuner_job.campaign.trials import screen
from tuner_job.trial.supervisor import Supervisor

__all__ = ["trials"]

MiB = 1 << 20
ACCURACY = AccuracyInput(source="Generated", samples=2, metric="cosine", threshold=1e-3, screening_threshold=4e-3)


def test_a_good_trial_is_feasible_and_hands_over_a_measured_engine(trials: Trials, tmp_path):
    end = trials.run(route=LIVE, output=str(tmp_path / "out"))
    assert (end.outcome, end.reason) == (Outcome.FEASIBLE, "")
    assert end.report is not None
    assert end.report.engine is not None
    assert (tmp_path / "out" / "engine").stat().st_size == end.report.engine.size
    assert end.report.losses is not None
    assert screen(end.report.losses, ACCURACY)[0] is Outcome.FEASIBLE
    [timing] = end.report.timing
    assert (timing.clock, timing.launch, len(timing.sessions)) == ("device", "cudaGraph", 2)
    assert timing.sessions[0].median == pytest.approx(0.001 * 0.8187, rel=0.05), "the planted truth: e to the -0.2"
    assert timing.sessions[0].host_median is not None


@pytest.mark.parametrize(
    ("action", "outcome", "phase", "reason"),
    [
        ("refuse", Outcome.REFUSED, Phase.BUILD, "Could not find any implementation for node {ForeignNode[scripted]}"),
        ("empty", Outcome.REFUSED, Phase.BUILD, "empty engine"),
        ("raise", Outcome.REFUSED, Phase.BUILD, "std::exception"),
        ("outOfDeviceMemory", Outcome.OUT_OF_MEMORY, Phase.BUILD, "could not be allocated: out of memory"),
        ("segfault", Outcome.CRASHED, Phase.BUILD, "died of SIGSEGV in phase build"),
        ("killed", Outcome.INFRASTRUCTURE, Phase.BUILD, "killed from outside (SIGKILL)"),
        ("loadFails", Outcome.CRASHED, Phase.LOAD, "magicTagRead == kMAGIC_TAG"),
        ("contextFails", Outcome.OUT_OF_MEMORY, Phase.LOAD, "out of memory"),
        ("executeFails", Outcome.CRASHED, Phase.CHECK, "Cask convolution execution"),
        ("executeFaults", Outcome.CRASHED, Phase.CHECK, "illegal memory access"),
        ("nan", Outcome.INVALID_OUTPUT, Phase.CHECK, "NaN"),
        ("inf", Outcome.INVALID_OUTPUT, Phase.CHECK, "Inf"),
        ("stripped", Outcome.REFUSED, Phase.BUILD, "weight"),
        ("refittable", Outcome.REFUSED, Phase.BUILD, "weights can be replaced"),
    ],
)
def test_a_failing_candidate(trials: Trials, tmp_path, action, outcome, phase, reason):
    trials.script({"when": {DEAD: action}})
    end = trials.run(route=DEAD, output=str(tmp_path / "out"))
    assert (end.outcome, end.phase) == (outcome, phase), end.reason
    assert reason in end.reason
    assert "\n" not in end.reason
    assert not end.bad_input
    assert end.retriable == (outcome is Outcome.INFRASTRUCTURE)
    assert trials.run().outcome is Outcome.FEASIBLE, "the next one is clean"


def test_a_faster_engine_with_wrong_outputs_is_infeasible(trials: Trials):
    trials.script({"when": {DEAD: "wrong"}})
    wrong, default = trials.run(route=DEAD), trials.run()
    assert wrong.report is not None
    assert wrong.report.losses is not None
    outcome, why = screen(wrong.report.losses, ACCURACY)
    assert outcome is Outcome.INFEASIBLE
    assert "y" in why
    assert seconds(wrong) < 0.8 * seconds(default), "it would have won"


def test_a_hanging_build_that_asks_ends_by_itself(trials: Trials, tmp_path):
    trials.script({"when": {DEAD: "hang"}})
    patient = Supervisor(tmp_path / "patient", extra_environment=trials.stage.environment, grace_seconds=3600)
    end = patient.run(trials.request(route=DEAD), trials.hurried(Phase.BUILD, 0.5))  # killed, it would take that hour
    assert (end.outcome, end.phase) == (Outcome.HUNG, Phase.BUILD)
    assert end.reason == "went over its deadline of 0.5 s in phase build"


def test_a_build_that_holds_the_interpreter_is_killed(trials: Trials):
    trials.script({"when": {DEAD: "hangDeaf"}})
    end = trials.run(route=DEAD, limits=trials.hurried(Phase.BUILD, 0.5))
    assert (end.outcome, end.phase) == (Outcome.HUNG, Phase.BUILD)


def test_a_build_in_progress_can_be_stopped_without_blame(trials: Trials):
    trials.script({"when": {DEAD: "hang"}})
    stop = threading.Event()
    end = trials.supervisor.run(trials.request(route=DEAD), trials.limits, stop=stop, on_phase=lambda phase: stop.set())
    assert (end.outcome, end.stopped) == (Outcome.INFRASTRUCTURE, True)


def test_a_build_that_takes_all_memory_is_out_of_memory(trials: Trials):
    trials.script({"when": {DEAD: "memoryBomb"}})
    end = trials.run(route=DEAD, limits=trials.limits.model_copy(update={"memory_bytes": 400 * MiB}))
    assert (end.outcome, end.phase) == (Outcome.OUT_OF_MEMORY, Phase.BUILD)


def test_a_device_without_memory_for_the_buffers_is_out_of_memory(trials: Trials):
    trials.script(device=["memory_total = 1000", "memory_used = 1000"])
    end = trials.run()
    assert end.outcome is Outcome.OUT_OF_MEMORY, end.reason


def test_kernels_that_cannot_be_captured_are_timed_as_launched_from_the_host(trials: Trials):
    trials.script({"when": {"always": "captureFails"}})
    end = trials.run()
    assert end.outcome is Outcome.FEASIBLE, end.reason
    assert end.report is not None
    assert end.report.timing[0].launch == "direct"


def test_every_parser_error_is_in_the_reason_and_the_input_is_to_blame(trials: Trials):
    errors = [
        {"node": 3, "name": "norm", "operator": "LayerNormalization", "text": "axis is not supported"},
        {"node": 7, "name": "pick", "operator": "NonZero", "text": "data-dependent shapes are not supported"},
        {"node": 9, "name": "tail", "operator": "StringSplit", "text": "strings are not supported"},
    ]
    trials.script({"parserErrors": errors})
    end = trials.run()
    assert end.bad_input
    assert end.phase is Phase.BUILD
    for error in errors:
        assert error["text"] in end.reason
        assert error["name"] in end.reason
    assert trials.stage.count("build") == 0


def test_models_that_cannot_be_read_are_bad_input(trials: Trials, tmp_path):
    garbage = tmp_path / "garbage.onnx"
    garbage.write_bytes(b"no model at all")
    end = trials.run(model=str(garbage))
    assert end.bad_input
    assert "garbage.onnx" in end.reason
    end = trials.run(model=str(tmp_path / "absent.onnx"))
    assert end.bad_input
    assert "absent.onnx" in end.reason


def test_an_operator_without_its_plugin_is_bad_input_and_with_it_runs(trials: Trials, tmp_path):
    model = str(write_model(tmp_path / "foreign.onnx", foreign=True))
    end = trials.run(model=model)
    assert end.bad_input
    assert "Plugin not found" in end.reason
    assert "polish" in end.reason
    assert trials.run(model=model, plugins=(str(trials.stage.plugin),)).outcome is Outcome.FEASIBLE
    end = trials.run(model=model, plugins=(str(tmp_path / "model.onnx"),))
    assert end.bad_input
    assert "model.onnx" in end.reason


def test_shapes_outside_the_engines_profile_are_told(trials: Trials, tmp_path):
    model = str(write_model(tmp_path / "dynamic.onnx", batch="n"))
    case = STATIC.model_copy(update={"minimum": {"x": (2, 16)}, "maximum": {"x": (4, 16)}})
    larger = STATIC.model_copy(update={"tensors": {"x": (8, 16)}})
    references = str(write_references(tmp_path / "larger", (larger,)))
    end = trials.run(model=model, cases=(case,), references=references)
    assert end.outcome is not Outcome.FEASIBLE
    assert "x" in end.reason


def test_thermal_slowdown_invalidates_a_session_which_is_taken_again(trials: Trials):
    trials.script(device=["throttle = 0 0x0", "throttle = 12 0x40", "throttle = 16 0x0"])
    end = trials.run(measure=QUICK.model_copy(update={"sessions": 6}))
    assert end.outcome is Outcome.FEASIBLE, end.reason
    assert end.report is not None
    sessions = end.report.timing[0].sessions
    assert sum(not one.throttled for one in sessions) == 6
    assert sum(one.throttled for one in sessions) >= 1


def test_a_software_power_cap_is_recorded_and_used(trials: Trials):
    trials.script(device=["throttle = 0 0x4"])
    end = trials.run()
    assert end.report is not None
    assert [one.power_capped for one in end.report.timing[0].sessions] == [True, True]
    assert not any(one.throttled for one in end.report.timing[0].sessions)


def test_a_busy_device_is_nobodys_fault(trials: Trials):
    trials.script(device=["process = 4242 734003200"])
    end = trials.run()
    assert (end.outcome, end.retriable) == (Outcome.INFRASTRUCTURE, True)
    assert "4242 (700 MiB)" in end.reason
    assert trials.stage.count("build") == 0
    shared = trials.run(measure=QUICK.model_copy(update={"allow_shared": True}))
    assert shared.outcome is Outcome.FEASIBLE
    assert shared.report is not None
    assert shared.report.state is not None
    assert shared.report.state.processes[0].pid == 4242


def test_a_machine_without_a_gpu_says_so(trials: Trials):
    trials.script(device=["product = none"])
    end = trials.run("describe")
    assert end.outcome is not Outcome.FEASIBLE
    assert "no CUDA-capable device" in end.reason


@pytest.mark.parametrize(
    ("device", "phase", "reason"),
    [
        ("product = none", Phase.START, "no CUDA-capable device"),
        ("fail = cuDevicePrimaryCtxRetain 46", Phase.LOAD, "busy or unavailable"),
    ],
)
def test_a_device_that_no_longer_answers_is_nobodys_fault(trials: Trials, device, phase, reason):
    trials.script(device=[device])
    end = trials.run(route=LIVE)
    assert (end.outcome, end.phase, end.retriable) == (Outcome.INFRASTRUCTURE, phase, True), end.reason
    assert reason in end.reason
