from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from operator_jobs import rendered, tuning_job

from tuning_operator.jobs.names import job_name
from tuning_operator.snapshot import Stage

LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$")
OWNERS = st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True)
STAGES: st.SearchStrategy[Stage] = st.sampled_from(["discover", "explore", "final"])
PARTS = st.tuples(st.uuids().map(str), st.from_regex(r"[0-9a-f]{20}", fullmatch=True), STAGES, st.integers(1, 10**6))


@given(owner=OWNERS, parts=PARTS)
def test_names_of_pods_and_their_hosts_fit_for_every_legal_tuning_job(owner: str, parts: tuple[str, str, Stage, int]) -> None:
    name = job_name(owner, *parts)
    assert LABEL.match(f"{name}-1023-abcde"), "the pod of the last index"
    assert name.startswith(f"tj-{owner[:40].rstrip('-')}-")


@given(owner=OWNERS, one=PARTS, two=PARTS)
def test_another_job_run_stage_or_attempt_has_another_name(
    owner: str, one: tuple[str, str, Stage, int], two: tuple[str, str, Stage, int]
) -> None:
    assert (job_name(owner, *one) == job_name(owner, *two)) == (one == two)


@given(owner=OWNERS, target=OWNERS)
def test_every_label_of_a_job_is_a_legal_value(owner: str, target: str) -> None:
    labels = rendered(tuning_job(name=owner, target={"name": target}))["metadata"]["labels"]
    for value in labels.values():
        assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?", value)
