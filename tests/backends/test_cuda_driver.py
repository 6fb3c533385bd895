"""The calls of the CUDA driver, against the driver stand-in: memory, copies, graphs, errors, and when a context is made."""

from __future__ import annotations

from stand_in_process import Process, gpu

__all__ = ["gpu"]


def test_looking_at_the_device_makes_no_context(gpu: Process):
    told = gpu.tell(
        """
driver = cuda.driver()
tell(seen=[driver.compute_capability(), nvml.identify().product, nvml.state().uuid], use=attempt(driver.use))
""",
        ["fail = cuDevicePrimaryCtxRetain 46", "product = NVIDIA H200", "capability = 9.0"],
    )
    assert told["seen"][:2] == ["9.0", "NVIDIA H200"]
    assert told["seen"][2].startswith("GPU-")
    assert told["use"] == "NoDevice: cuDevicePrimaryCtxRetain failed: CUDA-capable device(s) is/are busy or unavailable (46)"


def test_what_goes_to_the_device_comes_back(gpu: Process):
    told = gpu.tell("""
driver = cuda.driver()
stream, there, back = cuda.Stream(driver), cuda.PinnedBuffer(driver, 12), cuda.PinnedBuffer(driver, 12)
buffer = cuda.DeviceBuffer(driver, 12)
there.array()[:] = np.array([1.5, -2, 3], np.float32).view(np.uint8)
stream.send(buffer, there.address, 12)
there.array()[:] = 0
stream.fetch(back.address, buffer, 12)
stream.wait()
tell(values=back.array().view(np.float32).tolist(), shape=back.array().shape)
""")
    assert told == {"values": [1.5, -2.0, 3.0], "shape": [12]}


def test_no_bytes_have_an_address_too(gpu: Process):
    told = gpu.tell("""
driver = cuda.driver()
made = [kind(driver, 0) for kind in (cuda.DeviceBuffer, cuda.PinnedBuffer)]
tell(addresses=[one.address for one in made], sizes=[one.size for one in made], shape=made[1].array().shape)
""")
    assert all(told["addresses"])
    assert told["sizes"] == [0, 0]
    assert told["shape"] == [0]


def test_a_graph_does_its_work_when_it_is_launched_and_on_what_is_there_then(gpu: Process):
    told = gpu.tell("""
driver = cuda.driver()
stream, there, back = cuda.Stream(driver), cuda.PinnedBuffer(driver, 1), cuda.PinnedBuffer(driver, 1)
buffer = cuda.DeviceBuffer(driver, 1)
def work():
    stream.send(buffer, there.address, 1)
    stream.fetch(back.address, buffer, 1)
there.array()[:], back.array()[:] = 7, 0
graph = stream.capture(work)
stream.wait()
seen = [int(back.array()[0])]
for value in (7, 8):
    there.array()[:] = value
    graph.launch(stream)
    stream.wait()
    seen.append(int(back.array()[0]))
graph.close()
graph.close()
tell(seen=seen)
""")
    assert told["seen"] == [0, 7, 8]


def test_work_that_fails_while_it_is_captured_leaves_a_stream_that_works(gpu: Process):
    told = gpu.tell("""
driver = cuda.driver()
stream = cuda.Stream(driver)
def broken():
    raise RuntimeError("no")
first = attempt(lambda: stream.capture(broken))
stream.mark_start()
stream.mark_end()
tell(first=first, again=attempt(lambda: stream.capture(lambda: None).launch(stream)), elapsed=stream.elapsed())
""")
    assert told["first"] == "RuntimeError: no"
    assert told["again"] == "None"
    assert told["elapsed"] == 0.0


def test_a_capture_that_the_driver_spoils_is_an_error_with_its_code(gpu: Process):
    told = gpu.tell(
        """
driver = cuda.driver()
stream = cuda.Stream(driver)
try:
    stream.capture(lambda: None)
except cuda.CudaError as error:
    tell(code=error.code, reason=error.reason, text=str(error))
""",
        ["fail = cuStreamEndCapture 901"],
    )
    assert told["code"] == 901
    assert told["reason"] == "CudaError"
    assert told["text"] == "cuStreamEndCapture failed: operation failed due to a previous error during capture (901)"


def test_a_device_without_room_is_a_want_of_memory(gpu: Process):
    told = gpu.tell(
        "tell(end=attempt(lambda: cuda.DeviceBuffer(cuda.driver(), 2 << 20)))", ["memory_total = 1048576", "memory_used = 0"]
    )
    assert told["end"] == "MemoryError: cuMemAlloc_v2 failed: out of memory (2)"


def test_closing_gives_everything_back_once(gpu: Process):
    told = gpu.tell("""
driver = cuda.driver()
driver.use()
before = free()
stream = cuda.Stream(driver)
made = [cuda.DeviceBuffer(driver, 1 << 20) for _ in range(3)] + [cuda.PinnedBuffer(driver, 64)]
graph = stream.capture(lambda: stream.send(made[0], made[3].address, 64))
meanwhile = free()
for one in (graph, stream, *made):
    one.close()
    one.close()
tell(meanwhile=before - meanwhile, after=before - free(), handles=[stream.handle, *(one.address for one in made)])
""")
    assert told["meanwhile"] == 3 << 20
    assert told["after"] == 0
    assert not any(told["handles"])


def test_what_cannot_be_freed_any_more_is_no_second_failure(gpu: Process):
    told = gpu.tell(
        "one = cuda.DeviceBuffer(cuda.driver(), 8)\ntell(end=attempt(one.close), address=one.address)", ["fail = cuMemFree 700"]
    )
    assert told == {"end": "None", "address": 0}


def test_a_machine_without_a_gpu_is_told_in_the_drivers_words(gpu: Process):
    told = gpu.tell("tell(end=attempt(cuda.driver), state=attempt(nvml.state))", ["product = none"])
    assert told["end"] == "CudaError: cuInit failed: no CUDA-capable device is detected (100)"
    assert told["state"] == told["end"]
