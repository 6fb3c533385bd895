"""A real S3 server that is suspended, killed and started again, and workers that are processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rig.s3 import S3Server, serve_s3

from tuner_job.store import layout
from tuner_job.store.objects import ObjectStore, StoreUnavailable

RUN = "0" * 20

CLAIMANT = """
import sys
from tuner_job.api.measurement import Candidate
from tuner_job.store.objects import ObjectStore
from tuner_job.store.tries import Claim, Claims, Heart
url, endpoint, name = sys.argv[1:]
store = ObjectStore.open(url, {"endpoint": endpoint, "accessKeyId": "tester", "secretAccessKey": "testing-secret"})
with Heart(store, "0" * 20, worker=name, worker_id=f"process-{name}", stage="explore") as heart:
    claims = Claims(store, "0" * 20, heart)
    print("ready", flush=True)
    sys.stdin.readline()
    for n in range(10):
        if isinstance(claims.claim(f"001-{n:05d}", Candidate()), Claim):
            print(n, flush=True)
    print("all", flush=True)
    sys.stdin.read()
"""


def test_a_suspended_server_is_given_up_and_found_again(s3_server: S3Server) -> None:
    address = s3_server.new_store()
    store = ObjectStore.open(address.url, {**address.options, "timeoutSeconds": "1"})
    store.put("a", b"1")
    s3_server.process.send_signal(signal.SIGSTOP)
    try:
        with pytest.raises(StoreUnavailable, match="check that the store is up"):
            store.get("a", 1)
        with pytest.raises(StoreUnavailable):
            store.create("b", b"1")
    finally:
        s3_server.process.send_signal(signal.SIGCONT)
    found = store.get("a", 1)
    assert found is not None
    assert found.data == b"1"
    assert store.create("b", b"1")  # whether or not the first request got through


@pytest.mark.usefixtures("s3_server")  # skips where there is none
def test_a_server_that_is_killed_and_restarted_has_lost_nothing(tmp_path: Path) -> None:
    with serve_s3(tmp_path) as server:
        port = int(server.endpoint.rpartition(":")[2])
        address = server.new_store()
        store = ObjectStore.open(address.url, {**address.options, "timeoutSeconds": "2"})
        written = [f"k/{n}" for n in range(20)]
        for key in written:
            assert store.create(key, key.encode())
        server.process.kill()
        server.process.wait()
        with pytest.raises(StoreUnavailable):
            store.create("late", b"1")
    with serve_s3(tmp_path, port=port):
        assert sorted(info.key for info in store.list("k")) == sorted(written)
        assert not store.create("k/0", b"other")
        assert store.create("late", b"1")


def test_worker_processes_share_the_trials_of_a_run(s3_server: S3Server) -> None:
    address = s3_server.new_store()
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", CLAIMANT, address.url, address.options["endpoint"], f"1-{index}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(3)
    ]
    for worker in workers:
        assert worker.stdout is not None
        assert worker.stdout.readline() == "ready\n"
    for worker in workers:
        assert worker.stdin is not None
        worker.stdin.write("go\n")
        worker.stdin.flush()
    claimed = []
    for worker in workers:
        assert worker.stdout is not None
        claimed += [int(line) for line in iter(worker.stdout.readline, "all\n")]
    for worker in workers:
        worker.communicate(timeout=60)
    assert [worker.returncode for worker in workers] == [0, 0, 0]
    assert sorted(claimed) == list(range(10))
    assert len(list(address.open().list(layout.beats(RUN)))) == 3
