"""A candidate as a trtexec line. Flags and units: NVIDIA/TensorRT, samples/common/sampleOptions.cpp."""

from __future__ import annotations

import shlex
import subprocess

import pytest

from tuner_job.api.child import MeasureSettings, ShapeCase
from tuner_job.api.measurement import BASELINE, Candidate
from tuner_job.routes.trtexec import VERBOSITY, TrtexecLine, trtexec_line

ONE = ShapeCase(name="one", tensors={"x": (1, 3), "n": ()}, minimum={"x": (1, 3)}, maximum={"x": (8, 3)})

ALL = {
    "optimizationLevel": "5",
    "tilingOptimizationLevel": "FULL",
    "l2LimitForTiling": "1048576",
    "maxAuxStreams": "0",
    "maxNumTactics": "7",
    "avgTimingIterations": "4",
    "workspaceBytes": "268435456",
    "tacticSharedMemoryBytes": "49152",
    "tf32": "off",
    "sparseWeights": "on",
}


def line(
    candidate: Candidate = BASELINE, cases: tuple[ShapeCase, ...] = (ShapeCase(name="default"),), **fields: object
) -> TrtexecLine:
    given = {"onnx": "m.onnx", "engine": "e.plan", "measure": MeasureSettings()} | fields
    return trtexec_line(candidate, cases=cases, **given)  # type: ignore[arg-type]


def test_the_default_of_a_static_model_is_as_plain_as_can_be():
    assert line().argv == ("trtexec", "--onnx=m.onnx", "--avgTiming=1", VERBOSITY, "--saveEngine=e.plan")


def test_every_builder_setting_is_a_flag():
    given = line(Candidate(settings=ALL))
    assert set(given.argv[2:-2]) == {
        "--builderOptimizationLevel=5",
        "--tilingOptimizationLevel=3",
        "--l2LimitForTiling=1048576",
        "--maxAuxStreams=0",
        "--maxTactics=7",
        "--avgTiming=4",
        "--memPoolSize=workspace:268435456B,tacticSharedMem:49152B",
        "--noTF32",
        "--sparsity=enable",
    }
    assert not [note for note in given.notes if "no flag" in note]


def test_settings_at_trtexecs_own_default_need_no_flag():
    given = line(Candidate(settings={"tf32": "on", "sparseWeights": "off"}), default_average="2")
    assert given.argv[2:-2] == ("--avgTiming=2",)


def test_what_trtexec_has_no_flag_for_is_said():
    assert any("no flag for the builder setting novel=3" in note for note in line(Candidate(settings={"novel": "3"})).notes)
    large = line(Candidate(settings={"l2LimitForTiling": str(1 << 31)}))
    assert any("32-bit" in note for note in large.notes)


def test_dynamic_inputs_have_a_profile_and_fixed_ones_none():
    assert line(cases=(ONE,)).argv[2:-2] == (
        "--avgTiming=1", "--minShapes=x:1x3", "--optShapes=x:1x3", "--maxShapes=x:8x3", "--shapes=x:1x3",
    )  # fmt: skip


def test_each_different_range_is_a_profile_as_the_backend_builds_them():
    many = ShapeCase(name="many", tensors={"x": (8, 3), "n": ()}, minimum={"x": (1, 3)}, maximum={"x": (8, 3)}, weight=3)
    again = many.model_copy(update={"name": "again"})
    given = line(cases=(ONE, many, again))
    assert [word for word in given.argv if word.startswith(("--profile", "--opt"))] == [
        "--profile=0", "--optShapes=x:1x3", "--profile=1", "--optShapes=x:8x3",
    ]  # fmt: skip
    assert any("here one; the run weighted one (1), many (3), again (3)" in note for note in given.notes)


def test_names_that_trtexec_cannot_spell_are_said():
    odd = ShapeCase(
        name="odd", tensors={"a,b": (1,), "c:0": (2,)}, minimum={"a,b": (1,), "c:0": (2,)}, maximum={"a,b": (1,), "c:0": (2,)}
    )
    given = line(cases=(odd,))
    assert "--shapes=c:0:2" in given.argv
    assert any("cannot spell the inputs a,b" in note for note in given.notes)


def test_timing_as_the_run_timed():
    settings = MeasureSettings(streams=4, cuda_graph=False, transfers=True)
    assert line(measure=settings).argv[-5:-2] == ("--infStreams=4", "--noCudaGraph", "--includeDataTransfers")


def test_trtexec_10_is_told_what_11_does_by_itself():
    plain = MeasureSettings(cuda_graph=True)
    assert line(measure=plain, major=10).argv[2:-2] == ("--stronglyTyped", "--avgTiming=1", "--useCudaGraph", "--noDataTransfers")
    direct = MeasureSettings(cuda_graph=False, transfers=True)
    assert line(measure=direct, major=10).argv[2:-2] == ("--stronglyTyped", "--avgTiming=1")


ROUTE = "-conv_use_long_w=off -mha_fusion:v2:x=3"


@pytest.mark.parametrize("onnx", ["m.onnx", "a dir/it's $HOME `x`\nnew.onnx"])
def test_a_shell_gives_trtexec_exactly_these_words(onnx: str):
    given = line(Candidate(route=ROUTE), (ONE,), onnx=onnx, engine="e 1.plan", plugins=["/p/lib a.so"])
    told = subprocess.run(
        ["sh", "-c", f'trtexec() {{ printf "%s\\0" "$@"; }}\n{given.shell}'], capture_output=True, text=True, check=True
    ).stdout
    assert told.split("\0")[:-1] == list(given.argv[1:])
    assert f"--setBuildRoute='{ROUTE}'" in given.shell
    assert "'/p/lib a.so'" in given.shell


def test_a_note_is_one_comment_whatever_is_in_it():
    given = TrtexecLine(("trtexec", "--onnx=m"), ("first\n$(touch /tmp/x)",))
    assert given.shell.splitlines()[0] == "# first $(touch /tmp/x)"
    assert shlex.split(given.shell.replace("\\\n", ""), comments=True) == ["trtexec", "--onnx=m"]
