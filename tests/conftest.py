"""Fixtures for every test. `tests/` is on the path: `from rig.faulty import FaultyStore`."""

from rig.s3 import object_store, s3_server, store_address

__all__ = ["object_store", "s3_server", "store_address"]
