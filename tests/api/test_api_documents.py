"""A YAML file means the same here and on a cluster, or is refused with one line per mistake."""

from __future__ import annotations

import contextlib

import pytest
from api_resources import changed, full, minimal, text
from hypothesis import given, settings
from hypothesis import strategies as st

from tuner_job.api.base import InputError
from tuner_job.api.documents import Documents, InvalidDocuments, load_documents, parse_resource

MINIMAL = text("minimal")


def problems(yaml_text: str) -> tuple[str, ...]:
    with pytest.raises(InputError) as caught:
        load_documents(yaml_text, "job.yaml")
    assert "\n" not in str(caught.value)
    return caught.value.problems if isinstance(caught.value, InvalidDocuments) else (str(caught.value),)


def edited(old: str, new: str) -> str:
    assert old in MINIMAL
    return MINIMAL.replace(old, new)


def with_search(lines: str) -> str:
    return MINIMAL + "  search:\n    strategy: Adaptive\n" + lines


def test_the_minimal_file_is_one_job_that_names_its_runtime_and_store() -> None:
    documents = load_documents(MINIMAL, "job.yaml")
    assert [job.name for job in documents.jobs] == ["magika"]
    assert documents.job("magika").spec.store_ref.name == "local"
    assert (documents.runtimes, documents.stores, documents.channels) == ((), (), ())


def test_the_full_file_holds_every_kind_and_references_resolve() -> None:
    documents = load_documents(text("full"), "full.yaml")
    job = documents.job("encoder")
    assert [documents.runtime_of(job, target).name for target in job.spec.targets] == ["tensorrt-11.2.1"] * 3
    assert documents.store_of(job).spec.url == "s3://engines/trtfleet"
    assert documents.channel("stable").spec.runtime_ref.name == "tensorrt-11.2.1"


def test_the_full_file_sets_every_field_that_can_be_set_at_once() -> None:
    spec = load_documents(text("full"), "full.yaml").job("encoder").spec
    exclusive = {"generated"}  # of Accuracy, beside references
    for part in (
        spec,
        spec.model,
        spec.objective,
        spec.measurement,
        spec.accuracy,
        spec.budget,
        spec.publish,
        spec.worker_template,
    ):
        assert part is not None
        assert set(type(part).model_fields) - part.model_fields_set <= exclusive


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            ("device: {type: CPU}", "devise: {type: CPU}"),
            "job.yaml:11: TuningJob magika: spec.targets[cpu].devise: unknown field; did you mean `device`?",
        ),
        (
            ("  storeRef", "  maxTrials: 5\n  storeRef"),
            "job.yaml:12: TuningJob magika: spec.maxTrials: unknown field; it belongs to spec.budget.maxTrials",
        ),
        (
            ("type: CPU", "type: GPUs"),
            "job.yaml:11: TuningJob magika: spec.targets[cpu].device.type: `GPUs` is not allowed; did you mean `GPU`?",
        ),
        (
            ("type: CPU", "type: CPU, gpu: {}"),
            "job.yaml:11: TuningJob magika: spec.targets[cpu].device.gpu: gpu goes with type GPU only",
        ),
        (("  storeRef: {name: local}", ""), "job.yaml:5: TuningJob magika: spec.storeRef: required field is missing"),
        (
            ("kind: TuningJob", "kind: TuneJob"),
            "job.yaml:2: TuneJob magika: kind: kind TuneJob is unknown; did you mean `TuningJob`?",
        ),
        (
            ("trtfleet.dev/v1alpha1", "trtfleet.dev/v2"),
            "job.yaml:1: TuningJob magika: apiVersion: apiVersion trtfleet.dev/v2 is unknown; write trtfleet.dev/v1alpha1",
        ),
        (("name: magika", "nmae: magika"), "job.yaml:4: TuningJob: metadata.nmae: unknown field; did you mean `name`?"),
        (
            ("  storeRef", "  budget: {maxTrials: 20000}\n  storeRef"),
            "job.yaml:12: TuningJob magika: spec.budget.maxTrials: input should be less than or equal to 10000 (it is 20000)",
        ),
        (
            ("  storeRef", "  objective: {minImprovement: 0.02}\n  storeRef"),
            "job.yaml:12: TuningJob magika: spec.objective.minImprovement: "
            '0.02 is a number, but text is wanted; write "0.02" in quotes',
        ),
        (
            ("  storeRef", "  budget:\n  storeRef"),
            "job.yaml:12: TuningJob magika: spec.budget: empty; give a value or leave the field out",
        ),
        (
            ("  storeRef", "  workerTemplate: {scratchSize: lots}\n  storeRef"),
            "job.yaml:12: TuningJob magika: spec.workerTemplate.scratchSize: `lots` is no quantity; write 4, 500m or 16Gi",
        ),
        (
            ("  storeRef", "  suspend: true\n  suspend: false\n  storeRef"),
            "job.yaml:13: TuningJob magika: spec.suspend: written twice; remove one",
        ),
        (
            ("  storeRef", "  search: {strategy: Full, knobs: {values: {-a: []}}}\n  storeRef"),
            "job.yaml:12: TuningJob magika: spec.search.knobs.values.-a: 0 entries; at least 1 are needed",
        ),
        (
            ("  storeRef", "  search: {knobs: {include: [-a]}}\n  storeRef"),
            "job.yaml:12: TuningJob magika: spec.search.strategy: required field is missing; "
            "one of Adaptive, OneAtATime, Mixed, Full, Expression, Custom",
        ),
        (
            ("  storeRef", '  search: {strategy: Full, builder: {settings: {tf32: "off"}}}\n  storeRef'),
            'job.yaml:12: TuningJob magika: spec.search.builder.settings.tf32: a list is wanted; write ["off"]',
        ),
        (
            ("uri: ", "plugins: [{uri: a.so, digest: abc}]\n    uri: "),
            "job.yaml:7: TuningJob magika: spec.model.plugins[0].digest: "
            "`abc` has the wrong form; write sha256: and 64 lower-case hex digits",
        ),
    ],
)
def test_a_mistake_gets_one_line_with_its_place_and_a_remedy(changes: tuple[str, str], line: str) -> None:
    assert line in problems(edited(*changes))


def test_every_mistake_of_a_file_is_reported_and_the_first_is_the_message() -> None:
    broken = edited("type: CPU", "type: TPU").replace("storeRef", "storRef") + "---\nkind: Pod\napiVersion: v1\n"
    with pytest.raises(InvalidDocuments) as caught:
        load_documents(broken, "job.yaml")
    lines = caught.value.problems
    assert len(lines) == 4
    assert str(caught.value) == f"{lines[0]} (and 3 more)"
    assert any("storRef: unknown field; did you mean `storeRef`?" in line for line in lines)
    assert any("kind Pod is unknown" in line for line in lines)


@pytest.mark.parametrize("word", ["on", "off", "yes", "No", "y", "N"])
def test_words_that_kubernetes_reads_as_booleans_must_be_quoted(word: str) -> None:
    (line,) = problems(with_search(f"    knobs: {{values: {{-a: [{word}]}}}}\n"))
    assert (
        f'spec.search.knobs.values.-a[0]: unquoted `{word}` means true or false to Kubernetes; write "{word}" in quotes' in line
    )


def test_quoted_words_come_through_as_written() -> None:
    job = load_documents(with_search('    knobs: {values: {-a: ["on", \'off\', "3"]}}\n'), "job.yaml").jobs[0]
    assert job.spec.search is not None
    assert job.spec.search.knobs is not None
    assert job.spec.search.knobs.values == {"-a": ("on", "off", "3")}


def test_a_tensor_named_y_must_be_quoted_as_a_key() -> None:
    shapes = "    shapes: [{{name: a, tensors: {{{}: {{opt: [1]}}}}}}]\n  targets:"
    (line,) = problems(edited("  targets:", shapes.format("y")))
    assert 'unquoted `y` means true or false to Kubernetes; write "y" in quotes' in line
    job = load_documents(edited("  targets:", shapes.format('"y"')), "job.yaml").jobs[0]
    assert list(job.spec.model.shapes[0].tensors) == ["y"]


@pytest.mark.parametrize("number", ["0x10", "010", "1_000", "1:30", ".inf", ".nan", "0b11", "9" * 30 + ".0e400"])
def test_numbers_that_parsers_read_differently_must_be_quoted(number: str) -> None:
    (line,) = problems(edited("  storeRef", f"  priority: {number}\n  storeRef"))
    assert "number" in line
    assert "in quotes" in line


@pytest.mark.parametrize(("written", "shown"), [("true", "true"), ("3", "3"), ("1e-3", "0.001"), ("0.5", "0.5")])
def test_a_number_or_boolean_as_knob_value_is_told_to_be_quoted(written: str, shown: str) -> None:
    (line,) = problems(with_search(f"    knobs: {{values: {{-a: [{written}]}}}}\n"))
    assert f'write "{shown}" in quotes' in line


def test_dates_stay_text() -> None:
    assert (
        load_documents(edited("  storeRef", "  rerun: {token: 2026-11-30}\n  storeRef"), "job.yaml").jobs[0].spec.rerun
        is not None
    )


@pytest.mark.parametrize(
    ("yaml_text", "part"),
    [
        ("", "holds no document"),
        ("# nothing\n---\n", "holds no document"),
        ("a: [", "not YAML"),
        ("a: b: c", "not YAML"),
        ("a: \x01", "not YAML"),
        ("- a", "not a resource"),
        ("hello", "not a resource"),
        ("a: !!python/object/apply:os.system [x]", "is not supported"),
        ("a: !secret x", "is not supported"),
        ("a: !!float e5", "read differently"),
        ("a: !!int ''", "read differently"),
        ("a: &x {b: c}\nd: {<<: *x}", "`<<` is not supported"),
        ("a: &x [*x]", "an alias inside its own anchor"),
        ("? [a]\n: b", "name must be text"),
        ("1: b", '`1` as a name is not text; write "1" in quotes'),
        ("[" * 40 + "]" * 40, "nested deeper than 32 levels"),
        ("[" * 100_000, "nested deeper than 32 levels"),
        ("a: " + "x" * (1 << 18), "at most 262144"),
    ],
)
def test_text_that_is_no_resource_is_refused(yaml_text: str, part: str) -> None:
    assert part in problems(yaml_text)[0]


def test_an_alias_bomb_is_refused() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
    assert "50000 values" in problems(bomb)[0]


def test_harmless_aliases_work() -> None:
    again = edited(
        "      device: {type: CPU}", "      device: &cpu {type: CPU}\n    - {name: two, runtimeRef: {name: b}, device: *cpu}"
    )
    assert [target.device.type for target in load_documents(again, "job.yaml").jobs[0].spec.targets] == ["CPU", "CPU"]


def test_two_documents_of_one_name_are_refused() -> None:
    assert problems(f"{MINIMAL}---\n{MINIMAL}") == ("job.yaml: two documents are TuningJob magika; remove or rename one",)


def test_a_cluster_wide_kind_has_no_namespace() -> None:
    with pytest.raises(InputError, match="belongs to the whole cluster"):
        parse_resource(changed(full("ArtifactStore"), "metadata/namespace", "a"), "api")


def test_a_reference_to_nothing_names_the_field_and_the_nearest_name() -> None:
    documents = load_documents(text("full").replace("name: tensorrt-11.2.1}", "name: tensorrt-11.2.2}"), "full.yaml")
    job = documents.jobs[0]
    with pytest.raises(InputError) as caught:
        documents.runtime_of(job, job.spec.targets[1])
    where = "TuningJob encoder: spec.targets[h200-slice].runtimeRef"
    assert str(caught.value) == f"{where}: no TunerRuntime is named tensorrt-11.2.2; did you mean `tensorrt-11.2.1`?"
    with pytest.raises(InputError, match="there is no ArtifactStore at all"):
        Documents(jobs=(job,)).store_of(job)


def test_what_an_api_server_adds_to_an_object_is_no_mistake() -> None:
    obj = minimal()
    obj["metadata"] |= {
        "uid": "0c1c6a1e",
        "resourceVersion": "12",
        "generation": 3,
        "creationTimestamp": "2026-11-30T00:00:00Z",
        "managedFields": [{"manager": "kubectl", "fieldsV1": {"f:spec": {}}}],
        "ownerReferences": [{"kind": "Fleet", "controller": True}],
    }
    assert parse_resource(obj, "api").metadata.generation == 3


@settings(max_examples=100, deadline=None)
@given(
    st.integers(0, len(MINIMAL)),
    st.integers(0, 30),
    st.one_of(
        st.text(max_size=20),
        st.sampled_from(
            [
                "- ",
                "? ",
                ": ",
                "&a ",
                "*a",
                "!!int ",
                "!!float x",
                "<<: {}",
                "%YAML 9.9\n",
                "---\n",
                "...",
                "|\n",
                "{",
                "]",
                "=",
                "0o7",
            ]
        ),
    ),
)
def test_any_edit_of_a_file_gives_resources_or_an_input_error(at: int, cut: int, inserted: str) -> None:
    with contextlib.suppress(InputError):
        assert isinstance(load_documents(MINIMAL[:at] + inserted + MINIMAL[at + cut :], "job.yaml"), Documents)
