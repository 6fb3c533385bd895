"""Layers of two engines, set side by side."""

from __future__ import annotations

import random

import pytest
from layer_profiles import MICRO, ONNXRUNTIME, TENSORRT, layer, profile

from tuner_job.api.layers import Layer
from tuner_job.report.layers import compare


def changes(baseline: tuple[Layer, ...], candidate: tuple[Layer, ...]) -> dict[str, str]:
    return {group.name: group.what for group in compare(profile(*baseline), profile(*candidate)).changed}


def test_tensorrts_layers_are_aligned_by_the_nodes_that_they_do():
    found = compare(*TENSORRT)
    assert {group.name: group.what for group in found.groups} == {
        "Reformatting CopyNode for Input Tensor 0": "same",
        "conv_0, relu_0": "tactic",
        "conv_1, relu_1": "fused",
        "fc": "format",
    }
    assert {group.name: round((group.saved or 0) / MICRO) for group in found.changed} == {
        "conv_1, relu_1": 16,
        "conv_0, relu_0": 15,
        "fc": -1,
    }
    assert [group.name for group in found.top] == ["conv_1, relu_1", "conv_0, relu_0", "fc"]
    assert found.saved == pytest.approx(30 * MICRO)
    assert found.explained == pytest.approx(1.0)
    assert found.counts == (5, 4)


def test_layers_whose_nodes_are_unknown_are_aligned_by_name_and_kind_and_order():
    found = compare(*ONNXRUNTIME)
    assert {group.name: group.what for group in found.groups} == {
        "/conv/Conv": "only in the default",
        "/relu/Relu": "only in the default",
        "/fc/Gemm": "same",
        "fused /conv/Conv": "only in the candidate",
    }
    assert found.saved == pytest.approx(25 * MICRO)


def test_equal_engines_do_not_differ_whatever_their_layers_are_called():
    first = [layer(f"copy {k}", kind="Reformat") for k in range(3)] + [layer("a", "n1", "n2", kind="Conv", tactic="t")]
    second = [layer(f"kopie {k}", kind="Reformat") for k in range(3)] + [layer("b", "n2", "n1", kind="Conv", tactic="t")]
    assert changes(tuple(first), tuple(second)) == {}


def test_a_split_and_a_regrouping_are_told_apart():
    assert changes((layer("x", "a", "b"),), (layer("y", "a"), layer("z", "b"))) == {"a, b": "split"}
    both = (layer("x", "a", "b"), layer("y", "c")), (layer("x", "a"), layer("y", "b", "c"))
    assert changes(*both) == {"a, b, c": "regrouped"}


def test_a_node_that_several_layers_do_in_both_engines_is_no_change():
    twice = (layer("x 1", "a", kind="Gemm"), layer("x 2", "a", kind="Gemm"))
    assert changes(twice, twice) == {}


def test_what_differs_in_several_ways_says_all_of_them():
    one, other = layer("x", "a", kind="Conv", tactic="t", formats=("Half",)), layer("x", "a", kind="Gemm", tactic="u")
    assert changes((one,), (other,)) == {"a": "kind and tactic and format"}


def test_a_layer_without_a_time_leaves_the_sums_unknown():
    found = compare(profile(layer("x", "a", us=None), layer("y", "b")), profile(layer("x", "a"), layer("y", "b", us=7)))
    assert (found.baseline_seconds, found.saved, found.explained) == (None, None, None)
    assert [group.name for group in found.top] == ["b"]


def test_no_saving_has_no_share_that_could_be_explained():
    found = compare(profile(layer("x", "a", tactic="1")), profile(layer("x", "a", tactic="2", us=12)))
    assert found.explained is None
    assert found.saved == pytest.approx(-2 * MICRO)


def test_every_layer_is_in_one_group_and_order_within_an_engine_does_not_matter():
    rng = random.Random(0)
    for _ in range(200):
        sides = [
            [
                layer(f"{side}{k}", *rng.sample("abcdefgh", rng.randint(0, 3)), kind=rng.choice("XYZ"), tactic=rng.choice("pq"))
                for k in range(rng.randint(0, 9))
            ]
            for side in "bc"
        ]
        found = compare(profile(*sides[0]), profile(*sides[1]))
        assert sorted(one.name for group in found.groups for one in group.baseline) == sorted(one.name for one in sides[0])
        assert sorted(one.name for group in found.groups for one in group.candidate) == sorted(one.name for one in sides[1])
        linked = [{n for one in (*group.baseline, *group.candidate) for n in one.nodes} for group in found.groups]
        both = {n for one in sides[0] for n in one.nodes} & {n for one in sides[1] for n in one.nodes}
        for node in both:
            assert sum(node in nodes for nodes in linked) == 1, "a node that both do is in one group"


def test_a_large_engine_is_compared_quickly_enough_to_be_on_a_page():
    many = tuple(layer(f"l{k}", f"n{k}", f"n{k + 1}", kind="Conv") for k in range(5_000))
    assert len(compare(profile(*many), profile(*many)).groups) == 1
    alone = tuple(layer(f"l{k}", kind="Conv") for k in range(5_000))
    assert len(compare(profile(*alone), profile(*alone)).groups) == 5_000
