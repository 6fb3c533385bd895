"""Fixtures for every test. `tests/` is on the path: `from rig.faulty import FaultyStore`."""

import signal

from rig.kube.fixtures import cluster, control_plane, pytest_collection_modifyitems
from rig.rtx import rtx_path
from rig.s3 import object_store, s3_server, store_address

__all__ = ["cluster", "control_plane", "object_store", "pytest_collection_modifyitems", "rtx_path", "s3_server", "store_address"]

# Started in the background or under nohup, the tests ignore these, and so would every command that a test stops.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)
