"""What discover refuses about the machine that it is on."""

from __future__ import annotations

import pytest
from campaign_records import run_record

from tuner_job.api.base import InputError
from tuner_job.api.measurement import Device
from tuner_job.campaign.discover import require_hardware, require_offered

L40S = Device(type="GPU", product="NVIDIA L40S")
SLICE = Device(type="GPU", product="NVIDIA A100-SXM4-40GB", mig_profile="1g.5gb")


@pytest.mark.parametrize(
    ("asked", "device"),
    [
        ({}, L40S),
        ({"product": "NVIDIA-L40S", "count": "1"}, L40S),
        ({"product": "NVIDIA-L40S-SHARED"}, L40S),
        ({"product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb", "migProfile": "1g.5gb"}, SLICE),
        ({"label/zone": "a"}, L40S),
    ],
)
def test_hardware_that_was_asked_for_is_taken(asked: dict[str, str], device: Device) -> None:
    require_hardware(asked, device)


@pytest.mark.parametrize(
    ("asked", "device", "names"),
    [
        ({"product": "NVIDIA-L40"}, L40S, "NVIDIA L40S"),
        ({"product": "NVIDIA-H200"}, L40S, "NVIDIA-H200"),
        ({"migProfile": "2g.10gb"}, SLICE, "1g.5gb"),
        ({"migProfile": "1g.5gb"}, L40S, "whole GPU"),
        ({"count": "2"}, L40S, "gpu.count 2"),
    ],
)
def test_other_hardware_is_refused_by_name(asked: dict[str, str], device: Device, names: str) -> None:
    with pytest.raises(InputError, match=names):
        require_hardware(asked, device)


def test_what_the_backend_does_not_offer_is_refused_not_ignored() -> None:
    inputs = run_record().inputs
    require_offered(inputs)
    with pytest.raises(InputError, match="load none yet"):
        require_offered(inputs.model_copy(update={"plugins": ("0" * 64,)}))
    with pytest.raises(InputError, match="optimizationLevel"):
        require_offered(run_record(settings={"optimizationLevel": ("3", "5")}).inputs)
