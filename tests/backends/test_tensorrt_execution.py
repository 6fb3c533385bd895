"""Binding inputs to a context and bringing outputs back, for engines that the stand-in cannot make."""

from __future__ import annotations

from pathlib import Path

import pytest
from stand_in_process import Process, gpu

__all__ = ["gpu"]

FAKE = f"""
import sys, tempfile
from pathlib import Path
sys.path.insert(0, {str(Path(__file__).parent)!r})
import ml_dtypes
import tensorrt_fake as fake
from tuner_job.backends.tensorrt.engine import TensorRTEngine
from tuner_job.api.child import MeasureSettings
file = Path(tempfile.mkdtemp()) / "engine"
file.write_bytes(b"plan")
def load(*engine, says="", **more):
    made = fake.Engine(*engine, **more)
    found, log = fake.library(made, says)
    loaded = TensorRTEngine(found, file, log)
    loaded.made = made
    return loaded
IN, OUT, HOST, DEVICE = True, False, True, False
"""
POSITIVE = """
def positive(context):
    x = context.read("x", np.float32)
    found = x[x > 0]
    allocator = context.allocators["y"]
    address = allocator.reallocate_output_async("y", 0, found.nbytes or 1, 256, 0)
    if not address: return False
    context.write_at(address, found)
    allocator.notify_shape("y", found.shape)
    return True
engine = load({"x": ("FLOAT", (4,), IN, DEVICE), "y": ("FLOAT", (-1,), OUT, DEVICE)}, positive)
"""


def test_an_output_whose_size_depends_on_data_comes_back_whole(gpu: Process):
    told = gpu.tell(f"""{FAKE}{POSITIVE}
tell(found=[engine.run({{"x": np.array(x, np.float32)}})["y"].tolist() for x in ([1, -1, 2, 3], [-1, -1, -1, 9], [-1] * 4)])
engine.close()
""")
    assert told["found"] == [[1, 2, 3], [9], []]


def test_an_allocator_that_finds_no_room_ends_the_inference_and_not_the_process(gpu: Process):
    told = gpu.tell(
        f"""{FAKE}{POSITIVE.replace("found.nbytes or 1", "1 << 40")}
tell(end=attempt(lambda: engine.run({{"x": np.ones(4, np.float32)}})))
""",
        ["memory_total = 1073741824"],
    )
    assert told["end"] == "RuntimeError: TensorRT 11.2.1.2 cannot run the engine: it does not say why"


def test_shapes_that_are_values_stay_in_host_memory(gpu: Process):
    told = gpu.tell(f"""{FAKE}
copies = []
def compute(context):
    size = context.read("size", np.int64)
    context.write("twice", 2 * size)
    context.write("y", context.read("x", np.float32) * np.float32(size[0]))
    return True
engine = load({{"x": ("FLOAT", (2,), IN, DEVICE), "size": ("INT64", (1,), IN, HOST),
    "y": ("FLOAT", (2,), OUT, DEVICE), "twice": ("INT64", (1,), OUT, HOST)}}, compute)
sent = cuda.Stream.send
cuda.Stream.send = lambda self, to, source, size: (copies.append(size), sent(self, to, source, size))[1]
runs = [engine.run({{"x": np.array([1, 2], np.float32), "size": np.array([n])}}) for n in (3, 5)]
tell(y=[run["y"].tolist() for run in runs], twice=[run["twice"].tolist() for run in runs], copies=copies)
""")
    assert told == {"y": [[3, 6], [5, 10]], "twice": [[6], [10]], "copies": [8, 8]}


def test_every_type_of_whole_bytes_keeps_its_bits(gpu: Process):
    told = gpu.tell(f"""{FAKE}
from tuner_job.backends.tensorrt.execution import DTYPES
bits = np.arange(32, dtype=np.uint8) % 2
tensors, inputs = {{}}, {{}}
for name, dtype in DTYPES.items():
    inputs[f"in_{{name}}"] = bits.view(dtype)
    tensors[f"in_{{name}}"] = (name, inputs[f"in_{{name}}"].shape, IN, DEVICE)
    tensors[f"out_{{name}}"] = (name, inputs[f"in_{{name}}"].shape, OUT, DEVICE)
def copy(context):
    for name, dtype in DTYPES.items():
        context.write(f"out_{{name}}", context.read(f"in_{{name}}", dtype))
    return True
got = load(tensors, copy).run(inputs)
outputs = {{name: got[f"out_{{name}}"] for name in DTYPES}}
tell(same={{name: one.dtype == DTYPES[name] and one.tobytes() == bits.tobytes() for name, one in outputs.items()}})
""")
    assert len(told["same"]) == 10
    assert all(told["same"].values())


def test_scalars_and_empty_tensors_keep_their_shapes(gpu: Process):
    told = gpu.tell(f"""{FAKE}
def compute(context):
    context.write("y", context.read("x", np.float32) + 1)
    return True
engine = load({{"x": ("FLOAT", (), IN, DEVICE), "none": ("FLOAT", (0, 3), IN, DEVICE),
    "y": ("FLOAT", (), OUT, DEVICE), "empty": ("FLOAT", (3, 0), OUT, DEVICE)}}, compute)
got = engine.run({{"x": np.array(2, np.float32), "none": np.zeros((0, 3), np.float32)}})
tell(y=got["y"].tolist(), shapes=[got["y"].shape, got["empty"].shape])
""")
    assert told == {"y": 3.0, "shapes": [[], [3, 0]]}


def test_a_copy_that_is_not_contiguous_is_sent_in_order(gpu: Process):
    told = gpu.tell(f"""{FAKE}
def copy(context):
    context.write("y", context.read("x", np.float32))
    return True
engine = load({{"x": ("FLOAT", (3, 2), IN, DEVICE), "y": ("FLOAT", (3, 2), OUT, DEVICE)}}, copy)
tell(y=engine.run({{"x": np.arange(6, dtype=np.float32).reshape(2, 3).T}})["y"].tolist())
""")
    assert told["y"] == [[0, 3], [1, 4], [2, 5]]


PROFILES = """
def compute(context):
    context.write("y", np.float32([context.active_optimization_profile]))
    return True
engine = load({"x": ("FLOAT", (-1,), IN, DEVICE), "y": ("FLOAT", (1,), OUT, DEVICE)}, compute,
    profiles=[{"x": [(1,), (2,), (8,)]}, {"x": [(1,), (4,), (8,)]}, {"x": [(9,), (16,), (32,)]}])
run = lambda n: engine.run({"x": np.zeros(n, np.float32)})["y"].tolist()
"""


def test_shapes_use_the_profile_that_is_made_for_them_else_the_first_that_takes_them(gpu: Process):
    told = gpu.tell(f"{FAKE}{PROFILES}\ntell(used=[run(n) for n in (2, 4, 3, 20, 4)], switches=engine.made.contexts[0].switches)")
    assert told["used"] == [[0], [1], [0], [2], [1]]
    assert told["switches"] == [1, 0, 2, 1]


def test_a_profile_that_cannot_be_set_is_told_in_the_librarys_own_words(gpu: Process):
    told = gpu.tell(f"""{FAKE}{PROFILES}
context = engine.made.contexts[0]
def refuse(index, stream):
    engine._loaded.log.add("ERROR", "Requested amount of GPU memory could not be allocated: out of memory")
    raise RuntimeError("Error in set optimization profile async.")
context.set_optimization_profile_async = refuse
tell(end=attempt(lambda: run(20)))
""")
    assert told["end"].startswith("MemoryError: TensorRT 11.2.1.2 does not take optimisation profile 2: Requested amount")


def test_shapes_that_no_profile_takes_are_wrong_input(gpu: Process):
    told = gpu.tell(f"{FAKE}{PROFILES}\ntell(end=attempt(lambda: run(64)), after=run(2))")
    assert told["end"] == "InputError: x [64]: no optimisation profile of the engine takes these shapes"
    assert told["after"] == [0]


SIMPLE = """
def compute(context):
    context.write("y", context.read("x", np.float32))
    return True
engine = load({"x": ("FLOAT", (2,), IN, DEVICE), "y": ("FLOAT", (2,), OUT, DEVICE)}, compute)
good = {"x": np.zeros(2, np.float32)}
"""


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ("{}", "input x: not given, and the engine needs it"),
        ("{'x': np.zeros(2)}", "input x: is float64, but the engine takes float32"),
        ("good | {'z': np.zeros(1)}", "input z: the engine has none of that name; it has x"),
    ],
)
def test_inputs_that_the_engine_does_not_take_are_named(gpu: Process, inputs, message):
    told = gpu.tell(f"{FAKE}{SIMPLE}tell(end=attempt(lambda: engine.run({inputs})), after=engine.run(good)['y'].tolist())")
    assert told == {"end": f"InputError: {message}", "after": [0, 0]}


def test_what_the_shapes_still_lack_is_named(gpu: Process):
    told = gpu.tell(f"{FAKE}{SIMPLE}engine.made.contexts[0].missing = ['x']\ntell(end=attempt(lambda: engine.run(good)))")
    assert told["end"].startswith("InputError: input x: the engine's shapes do not follow")


@pytest.mark.parametrize("kind", ["INT4", "FP4"])
def test_types_of_half_a_byte_are_refused(gpu: Process, kind):
    told = gpu.tell(f"{FAKE}tell(end=attempt(lambda: load({{'y': ('{kind}', (2,), OUT, DEVICE)}}, None)))")
    assert told["end"] == f"InputError: engine: tensor y is {kind}, which cannot be compared; cast it in the model"


def test_an_engine_of_another_model_of_gpu_is_refused(gpu: Process):
    told = gpu.tell(f"""{FAKE}
says = "Using an engine plan file across different models of devices is not recommended and is likely to affect performance."
tell(end=attempt(lambda: load({{"y": ("FLOAT", (2,), OUT, DEVICE)}}, None, says=says)))
""")
    assert told["end"].startswith("InputError: engine: built on another model of GPU")


def test_an_engine_is_judged_by_refittable_alone_where_its_weights_cannot_be_counted(gpu: Process):
    told = gpu.tell(f"""{FAKE}
def uncountable(self, stat):
    raise TypeError("cannot create weak reference to 'int' object")
fake.Engine.get_engine_stat = uncountable
made = {{"y": ("FLOAT", (2,), OUT, DEVICE)}}
whole = attempt(lambda: load(made, None).close())
fake.Engine.refittable = True
tell(whole=whole, loose=attempt(lambda: load(made, None)))
""")
    assert told["whole"] == "None"
    assert told["loose"].startswith("InputError: engine: an engine whose weights can be replaced")


def test_an_engine_that_was_closed_has_given_its_memory_back(gpu: Process):
    told = gpu.tell(f"""{FAKE}
cuda.driver().use()
before = free()
{SIMPLE}
engine.run(good)
engine.timer(good, MeasureSettings(streams=2)).sample(4)
engine.run(good)
held = before - free()
engine.close()
tell(held=held, left=before - free(), after=attempt(lambda: engine.run(good)))
""")
    assert told["held"] > 0
    assert told["left"] == 0
    assert told["after"] == "RuntimeError: the engine is closed"
