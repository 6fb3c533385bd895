"""Which GPU each local worker gets."""

from __future__ import annotations

from pathlib import Path

import pytest

from tuner_job.api.base import InputError
from tuner_job.api.inputs import RunInputs
from tuner_job.campaign.gpus import deal, visible


def on_gpu(inputs: RunInputs, *, shared: bool = False) -> RunInputs:
    measure = inputs.measure.model_copy(update={"allow_shared": shared})
    return inputs.model_copy(update={"device_type": "GPU", "measure": measure})


def test_gpus_are_those_that_the_environment_lists(tmp_path: Path) -> None:
    (tmp_path / "nvidia0").touch()
    assert visible({"CUDA_VISIBLE_DEVICES": "3, GPU-8a1b"}, tmp_path) == ("3", "GPU-8a1b")
    assert visible({"CUDA_VISIBLE_DEVICES": ""}, tmp_path) == ()


def test_without_a_list_every_device_node_is_a_gpu_numbered_as_cuda_does(tmp_path: Path) -> None:
    for name in ("nvidia2", "nvidia5", "nvidiactl", "nvidia-uvm", "null"):
        (tmp_path / name).touch()
    assert visible({}, tmp_path) == ("0", "1")
    assert visible({}, tmp_path / "absent") == ()


def test_each_worker_gets_a_gpu_of_its_own(tiny_inputs: RunInputs) -> None:
    assert deal(on_gpu(tiny_inputs), 2, ("0", "1", "2")) == ("0", "1")


def test_more_workers_than_gpus_are_refused_with_what_to_do(tiny_inputs: RunInputs) -> None:
    with pytest.raises(
        InputError, match=r"--workers 3: this machine shows 2 GPUs \(0, 1\).*use --workers 2, or set .*allowShared"
    ):
        deal(on_gpu(tiny_inputs), 3, ("0", "1"))


def test_a_job_that_allows_it_shares_them(tiny_inputs: RunInputs) -> None:
    assert deal(on_gpu(tiny_inputs, shared=True), 3, ("0", "1")) == ("0", "1", "0")


def test_nothing_is_dealt_to_one_worker_to_cpu_workers_or_among_unknown_gpus(tiny_inputs: RunInputs) -> None:
    assert deal(on_gpu(tiny_inputs), 1, ("0", "1")) == ()
    assert deal(tiny_inputs, 2, ("0",)) == ()
    assert deal(on_gpu(tiny_inputs), 2, ()) == ()
