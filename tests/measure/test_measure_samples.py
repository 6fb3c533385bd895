import base64
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuner_job.api.base import InputError
from tuner_job.measure.samples import InvalidTiming, pack, session, unpack

seconds = st.floats(min_value=2.0**-24, max_value=1024.0, width=32)


@given(st.lists(seconds, min_size=1, max_size=200))
def test_unpacking_gives_back_what_was_packed(values: list[float]) -> None:
    assert unpack(pack(np.array(values))).tolist() == values


@given(st.lists(seconds, min_size=1, max_size=50))
def test_a_session_states_what_a_reader_of_its_samples_would_compute(values: list[float]) -> None:
    one = session(1.5, np.array(values))
    assert (one.at, one.count, one.throttled) == (1.5, len(values), False)
    assert one.median == np.median(unpack(one.samples))
    assert one.mean == np.mean(unpack(one.samples))


def test_stored_bytes_are_little_endian_float32_whatever_the_machine() -> None:
    assert zlib.decompress(base64.b64decode(pack(np.array([1.0, 0.5])))) == b"\x00\x00\x80\x3f\x00\x00\x00\x3f"


@pytest.mark.parametrize("text", ["", "not base64!", "AAAA", pack(np.array([1.0]))[:-4]])
def test_damaged_samples_are_named_as_such(text: str) -> None:
    with pytest.raises(InputError, match="samples") as caught:
        unpack(text)
    assert caught.value.reason == "PoisonedRecord"


def test_samples_that_inflate_without_end_are_not_inflated_to_the_end() -> None:
    squeezed = zlib.compressobj(9)
    bomb = b"".join(squeezed.compress(bytes(1 << 20)) for _ in range(65)) + squeezed.flush()
    with pytest.raises(InputError, match="more than 67108864 bytes"):
        unpack(base64.b64encode(bomb).decode())


@pytest.mark.parametrize("values", [[], [0.001, 0.0], [-1.0], [float("nan")], [float("inf")], [[0.1, 0.2]]])
def test_what_is_no_latency_is_refused(values: list[float]) -> None:
    with pytest.raises(InvalidTiming):
        session(0.0, np.array(values))
