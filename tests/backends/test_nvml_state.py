"""What NVML says of a GPU, against the driver stand-in; what it does not say is None and never an error."""

from __future__ import annotations

import pytest
from stand_in_process import Process, gpu

from tuner_job.api.measurement import DeviceState, GpuProcess

__all__ = ["gpu"]

FACTS = {
    "uuid": "GPU-11111111-2222-3333-4444-555555555555",
    "vbios": "96.00.AF.00.01",
    "sm_clock": "1200",
    "max_sm_clock": "1980",
    "memory_clock": "3000",
    "max_memory_clock": "3201",
    "temperature": "33",
    "power_milliwatts": "76543",
    "power_limit_milliwatts": "500000",
    "default_power_limit_milliwatts": "700000",
    "ecc": "1",
    "persistence": "0",
    "utilization": "7",
    "memory_used": "1048576",
    "memory_total": "1073741824",
}
LINES = [f"{name} = {value}" for name, value in FACTS.items()]
SAY = "tell(**json.loads(nvml.state().to_json()))"


def state(gpu: Process, *device: str) -> DeviceState:
    return DeviceState.model_validate(gpu.tell(SAY, [*LINES, *device]))


def test_every_figure_is_there_in_its_unit(gpu: Process):
    assert state(gpu, "process = 7 1048576", "throttle = 0 0x24") == DeviceState(
        uuid=FACTS["uuid"],
        vbios="96.00.AF.00.01",
        sm_clock_mhz=1200,
        memory_clock_mhz=3000,
        max_sm_clock_mhz=1980,
        max_memory_clock_mhz=3201,
        temperature_celsius=33,
        power_watts=76.543,
        power_limit_watts=500.0,
        default_power_limit_watts=700.0,
        ecc=True,
        persistence=False,
        throttle_reasons=("swPowerCap", "swThermalSlowdown"),
        utilization_percent=7,
        memory_used_bytes=1048576,
        memory_total_bytes=1073741824,
        processes=(GpuProcess(pid=7, memory_bytes=1048576),),
    )


@pytest.fixture(scope="module")
def whole(gpu: Process) -> DeviceState:
    return state(gpu, "process = 7 1048576")


@pytest.mark.parametrize(
    ("question", "fields"),
    [
        ("nvmlDeviceGetUUID", {"uuid": ""}),
        ("nvmlDeviceGetVbiosVersion", {"vbios": ""}),
        ("nvmlDeviceGetClockInfo", {"sm_clock_mhz": None, "memory_clock_mhz": None}),
        ("nvmlDeviceGetMaxClockInfo", {"max_sm_clock_mhz": None, "max_memory_clock_mhz": None}),
        ("nvmlDeviceGetTemperature", {"temperature_celsius": None}),
        ("nvmlDeviceGetPowerUsage", {"power_watts": None}),
        ("nvmlDeviceGetEnforcedPowerLimit", {"power_limit_watts": None}),
        ("nvmlDeviceGetPowerManagementDefaultLimit", {"default_power_limit_watts": None}),
        ("nvmlDeviceGetEccMode", {"ecc": None}),
        ("nvmlDeviceGetPersistenceMode", {"persistence": None}),
        ("nvmlDeviceGetUtilizationRates", {"utilization_percent": None}),
        ("nvmlDeviceGetMemoryInfo", {"memory_used_bytes": None, "memory_total_bytes": None}),
        ("nvmlDeviceGetComputeRunningProcesses", {"processes": ()}),
    ],
)
def test_what_a_device_does_not_say_is_missing_and_all_else_is_there(gpu: Process, whole: DeviceState, question, fields):
    assert state(gpu, "process = 7 1048576", f"unsupported = {question}") == whole.model_copy(update=fields)
    assert whole != whole.model_copy(update=fields)


def test_a_driver_without_nvml_cannot_say_that_the_gpu_is_idle(gpu: Process):
    told = gpu.tell(
        "tell(state=attempt(nvml.state), reasons=nvml.reasons_source()(), identity=attempt(nvml.identify))",
        ["fail = nvmlInit 9"],
    )
    why = "TrtfleetError: nvmlInit_v2 failed: NVIDIA driver is not loaded (9)"
    assert told == {"state": why, "reasons": 0, "identity": why}


def test_processes_that_compute_or_draw_are_listed_once(gpu: Process):
    found = state(
        gpu, "process = 7 5242880", "process = 8", "graphics_process = 7 5242880", "graphics_process = 9 1024"
    ).processes
    assert [(one.pid, one.memory_bytes) for one in found] == [(7, 5242880), (8, None), (9, 1024)]


def test_reasons_are_asked_by_their_older_name_where_the_driver_has_no_newer(gpu: Process):
    old = ["unsupported = nvmlDeviceGetCurrentClocksEventReasons", "throttle = 0 0xe8"]
    assert state(gpu, *old).throttle_reasons == (
        "hwSlowdown", "swThermalSlowdown", "hwThermalSlowdown", "hwPowerBrakeSlowdown",
    )  # fmt: skip


@pytest.mark.parametrize("hidden", [0, 1], ids=["the driver names the slice", "the driver names the whole"])
def test_a_slice_has_its_own_name_memory_and_processes_and_the_clocks_of_the_whole(gpu: Process, hidden):
    whole = ["product = NVIDIA H200", "process = 7 1048576", "memory_used = 9999"]
    part = [
        "mig = 1g.18gb",
        "mig_uuid = MIG-99999999-0000-0000-0000-00000000abcd",
        "mig_process = 8 2048",
        "mig_memory_used = 4096",
    ]
    told = gpu.tell(
        "tell(device=json.loads(nvml.identify().to_json()), state=json.loads(nvml.state().to_json()))",
        [*LINES, *whole, *part, f"mig_hidden = {hidden}"],
    )
    assert (told["device"]["product"], told["device"]["migProfile"]) == ("NVIDIA H200", "1g.18gb")
    state = DeviceState.model_validate(told["state"])
    assert state.uuid == "MIG-99999999-0000-0000-0000-00000000abcd"
    assert state.processes == (GpuProcess(pid=8, memory_bytes=2048),)
    assert (state.memory_used_bytes, state.utilization_percent, state.sm_clock_mhz) == (4096, None, 1200)


def test_a_device_that_nvml_does_not_know_by_number_is_found_on_its_bus(gpu: Process):
    told = gpu.tell("tell(product=nvml.identify().product)", ["fail = nvmlDeviceGetHandleByUUID 6", "product = NVIDIA X"])
    assert told["product"] == "NVIDIA X"
