"""How many engines of a final are loaded at once."""

from __future__ import annotations

import pytest

from tuner_job.api.measurement import DeviceState
from tuner_job.campaign.final import ENGINE_FLOOR, ENGINE_MEMORY, batch_room

GIB = 1 << 30
SMALL_CARD = DeviceState(memory_total_bytes=24 * GIB, memory_used_bytes=0)


@pytest.mark.parametrize(
    ("sizes", "free", "state", "room"),
    [
        ([GIB], 16 * ENGINE_MEMORY * GIB, None, 8),
        ([1, GIB], 16 * ENGINE_MEMORY * GIB, None, 8),
        ([1], 20 * ENGINE_FLOOR, None, 10),
        ([GIB], 0, None, 3),
        ([GIB // 2], 256 * GIB, SMALL_CARD, 6),
        ([GIB // 2], 256 * GIB, SMALL_CARD.model_copy(update={"memory_used_bytes": 8 * GIB}), 4),
        ([GIB // 2], 16 * GIB, SMALL_CARD, 4),
        ([GIB // 2], 16 * GIB, DeviceState(), 4),
    ],
)
def test_the_largest_engine_fits_so_often_into_half_of_what_is_free_on_host_and_gpu(sizes, free, state, room):
    assert batch_room(sizes, free, state) == room
