"""Every store keeps the same promises: memory, a folder, a real S3 server."""

from __future__ import annotations

import hashlib
import os
import resource
import secrets
import signal
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from rig.faulty import answering
from rig.s3 import Address, S3Server

from tuner_job.api.base import InputError, TrtfleetError
from tuner_job.store.objects import (
    KEY_BYTES,
    SEGMENT_BYTES,
    ObjectStore,
    StoreCorrupt,
    StoreFull,
    StoreNotConditional,
    StoreReadOnly,
    StoreUnavailable,
)

RACERS = 8


def content(store: ObjectStore, key: str) -> bytes | None:
    found = store.get(key, 1 << 20)
    return None if found is None else found.data


def keys(store: ObjectStore, prefix: str = "") -> list[str]:
    return sorted(info.key for info in store.list(prefix))


class TestPromises:
    def test_an_object_that_was_never_written_is_absent(self, object_store: ObjectStore) -> None:
        assert object_store.get("a/b", 10) is None
        assert object_store.info("a/b") is None
        assert not object_store.exists("a/b")
        assert keys(object_store) == []
        object_store.delete("a/b")

    def test_what_is_put_can_be_read_back_and_overwritten(self, object_store: ObjectStore) -> None:
        object_store.put("a/b", b"one")
        assert content(object_store, "a/b") == b"one"
        object_store.put("a/b", b"three")
        assert content(object_store, "a/b") == b"three"
        info = object_store.info("a/b")
        assert info is not None
        assert (info.key, info.size) == ("a/b", 5)
        assert abs(info.modified.timestamp() - time.time()) < 60

    def test_the_empty_object_is_an_object(self, object_store: ObjectStore) -> None:
        assert object_store.create("empty", b"")
        assert content(object_store, "empty") == b""

    def test_a_second_create_fails_and_changes_nothing(self, object_store: ObjectStore) -> None:
        assert object_store.create("a", b"one")
        assert not object_store.create("a", b"two")
        assert content(object_store, "a") == b"one"

    def test_a_repeated_create_of_the_same_data_succeeds(self, object_store: ObjectStore) -> None:
        assert object_store.create("a", b"one")
        assert object_store.create("a", b"one")

    def test_of_many_simultaneous_creates_one_wins(self, object_store: ObjectStore) -> None:
        with ThreadPoolExecutor(RACERS) as pool:
            won = list(pool.map(lambda racer: object_store.create("race", b"%d" % racer), range(RACERS)))
        assert won.count(True) == 1
        assert content(object_store, "race") == b"%d" % won.index(True)

    def test_a_swap_needs_the_current_version(self, object_store: ObjectStore) -> None:
        object_store.put("p", b"one")
        first = object_store.get("p", 10)
        assert first is not None
        assert object_store.swap("p", b"two", first.tag)
        assert not object_store.swap("p", b"three", first.tag)
        assert content(object_store, "p") == b"two"

    def test_a_repeated_swap_to_the_same_data_succeeds(self, object_store: ObjectStore) -> None:
        object_store.put("p", b"one")
        first = object_store.get("p", 10)
        assert first is not None
        assert object_store.swap("p", b"two", first.tag)
        assert object_store.swap("p", b"two", first.tag)

    def test_a_swap_of_a_deleted_object_fails(self, object_store: ObjectStore) -> None:
        object_store.put("p", b"one")
        first = object_store.get("p", 10)
        assert first is not None
        object_store.delete("p")
        assert not object_store.swap("p", b"two", first.tag)
        assert content(object_store, "p") is None

    def test_no_increment_by_swap_is_lost(self, object_store: ObjectStore) -> None:
        object_store.put("counter", b"0")

        def increment(_: int) -> None:
            while True:
                found = object_store.get("counter", 100)
                assert found is not None
                number = int(found.data.split()[0]) + 1
                if object_store.swap("counter", b"%d %s" % (number, secrets.token_hex(4).encode()), found.tag):
                    return

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(increment, range(20)))
        assert (content(object_store, "counter") or b"").split()[0] == b"20"

    def test_a_listing_stays_inside_its_folder(self, object_store: ObjectStore) -> None:
        for key in ("m/x", "m/y/z", "m.onnx", "m-v2/x", "mm/x"):
            object_store.put(key, b"1")
        assert keys(object_store, "m") == ["m/x", "m/y/z"]
        assert keys(object_store, "m/y") == ["m/y/z"]
        assert keys(object_store, "nothing") == []
        assert len(keys(object_store)) == 5

    def test_a_folder_of_objects_is_no_object(self, object_store: ObjectStore, tmp_path: Path) -> None:
        object_store.put("m/x", b"1")
        assert object_store.get("m", 10) is None
        assert object_store.info("m") is None
        assert object_store.get_file("m", tmp_path / "target") is None
        object_store.delete("m")
        assert object_store.get("m/x/below", 10) is None
        assert object_store.info("m/x/below") is None
        assert keys(object_store) == ["m/x"]

    def test_a_long_listing_is_whole(self, object_store: ObjectStore) -> None:
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda n: object_store.put(f"many/{n:04d}", b""), range(1100)))
        assert keys(object_store, "many") == [f"many/{n:04d}" for n in range(1100)]

    @pytest.mark.parametrize("key", ["a b+c.onnx", "100%25.onnx", "é=ü&x.onnx", "a%2Fb.onnx", "x~41~~.json", "k#1;,$@!'()"])
    def test_odd_characters_in_keys_survive(self, object_store: ObjectStore, key: str) -> None:
        assert object_store.create(f"models/{key}", b"x")
        assert content(object_store, f"models/{key}") == b"x"
        assert keys(object_store) == [f"models/{key}"]
        object_store.delete(f"models/{key}")
        assert keys(object_store) == []

    @pytest.mark.parametrize(
        "key",
        [
            *("", "/a", "a/", "a//b", "../a", "a/../b", ".", "a\nb", "a\\b", ".aside-x"),
            "x" * (SEGMENT_BYTES + 1),
            "y/" * KEY_BYTES + "y",
        ],
    )
    def test_a_key_that_some_store_cannot_hold_is_refused(self, object_store: ObjectStore, key: str) -> None:
        for call in (lambda: object_store.get(key, 1), lambda: object_store.put(key, b""), lambda: object_store.create(key, b"")):
            with pytest.raises(InputError, match="object key"):
                call()

    def test_a_longer_object_than_expected_is_refused_by_name(self, object_store: ObjectStore) -> None:
        object_store.put("big", b"x" * 100)
        with pytest.raises(InputError, match=r"big in .*: 100 bytes where at most 99"):
            object_store.get("big", 99)

    @pytest.mark.parametrize("size", [0, 1, 20 << 20])
    def test_files_of_any_size_travel_whole(self, object_store: ObjectStore, tmp_path: Path, size: int) -> None:
        source, target = tmp_path / "source", tmp_path / "target"
        source.write_bytes(os.urandom(size))
        digest = hashlib.sha256(source.read_bytes()).hexdigest()
        put = object_store.put_file("blobs/x", source, digest=digest)
        assert (put.digest, put.size) == (digest, size)
        assert object_store.get_file("blobs/x", target, digest=digest) == put
        assert target.read_bytes() == source.read_bytes()

    def test_a_file_with_another_digest_is_not_uploaded(self, object_store: ObjectStore, tmp_path: Path) -> None:
        for size in (10, 20 << 20):
            source = tmp_path / "source"
            source.write_bytes(os.urandom(size))
            with pytest.raises(StoreCorrupt, match="SHA-256"):
                object_store.put_file("blobs/x", source, digest="0" * 64)
        assert keys(object_store) == []

    def test_a_failed_upload_leaves_the_old_object(self, object_store: ObjectStore, tmp_path: Path) -> None:
        object_store.put("x", b"old")
        source = tmp_path / "source"
        source.write_bytes(os.urandom(20 << 20))
        with pytest.raises(StoreCorrupt):
            object_store.put_file("x", source, digest="0" * 64)
        assert content(object_store, "x") == b"old"

    def test_a_damaged_object_leaves_no_file(self, object_store: ObjectStore, tmp_path: Path) -> None:
        object_store.put("blobs/x", b"damaged")
        target = tmp_path / "downloads" / "target"
        target.parent.mkdir()
        with pytest.raises(StoreCorrupt, match=r"blobs/x in .* SHA-256"):
            object_store.get_file("blobs/x", target, digest="0" * 64)
        with pytest.raises(InputError, match="7 bytes where at most 6"):
            object_store.get_file("blobs/x", target, max_bytes=6)
        assert list(target.parent.iterdir()) == []

    def test_a_missing_object_is_no_file(self, object_store: ObjectStore, tmp_path: Path) -> None:
        assert object_store.get_file("nothing", tmp_path / "target") is None
        assert list(tmp_path.iterdir()) == [] or not (tmp_path / "target").exists()

    def test_two_views_of_one_address_share_objects(self, store_address: Address) -> None:
        store_address.open().put("a", b"1")
        assert content(store_address.open(), "a") == b"1"

    def test_a_prefix_is_part_of_the_address(self, store_address: Address) -> None:
        deeper = ObjectStore.open(f"{store_address.url}/deeper", store_address.options)
        deeper.put("a", b"1")
        assert content(store_address.open(), "deeper/a") == b"1"
        assert keys(deeper) == ["a"]


class TestFolder:
    @pytest.fixture
    def root(self) -> Iterator[Path]:
        # pytest's own folders cannot be entered by another user
        with tempfile.TemporaryDirectory() as folder:
            Path(folder).chmod(0o755)
            yield Path(folder, "store")

    def test_a_killed_writer_leaves_every_object_whole_and_no_lock(self, root: Path) -> None:
        writer = (
            "import sys, itertools\n"
            "from tuner_job.store.objects import ObjectStore\n"
            "store = ObjectStore.open(sys.argv[1])\n"
            "store.put('p', b'0' * 300000)\n"
            "print('ready', flush=True)\n"
            "for n in itertools.count():\n"
            "    data = b'%d' % (n % 10) * 300000\n"
            "    store.swap('p', data, store.get('p', 1 << 20).tag)\n"
            "    store.put('q', data)\n"
            "    store.create(f'made/{n}', data)\n"
        )
        store = ObjectStore.open(root.as_uri())
        for delay in (0.0, 0.003, 0.011, 0.03):
            process = subprocess.Popen([sys.executable, "-c", writer, root.as_uri()], stdout=subprocess.PIPE)
            assert process.stdout is not None
            assert process.stdout.readline() == b"ready\n"
            time.sleep(delay)
            process.send_signal(signal.SIGKILL)
            process.wait()
            process.stdout.close()
            for info in store.list(""):
                data = content(store, info.key)
                assert data is not None
                assert len(data) == 300000
                assert len(set(data)) == 1
            found = store.get("p", 1 << 20)
            assert found is not None
            assert store.swap("p", b"9" * 300000, found.tag)
        store.sweep(older_than_seconds=-1)
        assert not [path for path in root.rglob(".aside-*") if path.name != ".aside-lock"]

    def test_a_sweep_spares_what_may_still_be_written(self, root: Path) -> None:
        store = ObjectStore.open(root.as_uri())
        store.put("a/b", b"1")
        aside = root / "a" / ".aside-0123"
        aside.write_bytes(b"half")
        assert store.sweep(older_than_seconds=3600) == 0
        assert keys(store) == ["a/b"]
        assert store.sweep(older_than_seconds=-1) == 1
        assert not aside.exists()

    def test_processes_do_not_lose_each_others_swaps(self, root: Path) -> None:
        racer = (
            "import sys\n"
            "from tuner_job.store.objects import ObjectStore\n"
            "store = ObjectStore.open(sys.argv[1])\n"
            "for n in range(20):\n"
            "    while True:\n"
            "        found = store.get('counter', 100)\n"
            "        number = int(found.data.split()[0]) + 1\n"
            "        if store.swap('counter', f'{number} {sys.argv[2]} {n}'.encode(), found.tag):\n"
            "            break\n"
        )
        store = ObjectStore.open(root.as_uri())
        store.put("counter", b"0")
        racers = [subprocess.Popen([sys.executable, "-c", racer, root.as_uri(), str(n)]) for n in range(3)]
        assert [process.wait(60) for process in racers] == [0, 0, 0]
        assert (content(store, "counter") or b"").split()[0] == b"60"

    def test_a_folder_that_cannot_be_written_is_read_only(self, root: Path) -> None:
        store = ObjectStore.open(root.as_uri())
        store.put("a/b", b"1")
        for path in (root, root / "a"):
            path.chmod(0o555)
        try:
            with unprivileged():
                assert content(store, "a/b") == b"1"
                for call in (
                    lambda: store.put("a/c", b""),
                    lambda: store.create("d/c", b""),
                    lambda: store.delete("a/b"),
                ):
                    with pytest.raises(StoreReadOnly, match=r"file://.*: cannot (write|delete) \w/\w: Permission denied; make"):
                        call()
        finally:
            for path in (root, root / "a"):
                path.chmod(0o755)

    def test_a_full_disk_is_named_and_leaves_nothing(self, root: Path, tmp_path: Path) -> None:
        store = ObjectStore.open(root.as_uri())
        store.put("a", b"1")
        source = tmp_path / "source"
        source.write_bytes(b"x" * (1 << 20))
        with largest_file(64 << 10):
            with pytest.raises(StoreFull, match="cannot write b: File too large; make room"):
                store.put("b", b"x" * (1 << 20))
            with pytest.raises(StoreFull):
                store.put_file("b", source)
        assert keys(store) == ["a"]
        assert not [path for path in root.rglob(".aside-*") if path.name != ".aside-lock"]

    def test_a_file_in_the_place_of_the_folder_is_named(self, root: Path) -> None:
        root.write_text("not a folder")
        store = ObjectStore.open(root.as_uri())
        for call in (lambda: store.get("a/b", 1), lambda: store.create("a/b", b""), lambda: keys(store)):
            with pytest.raises(StoreUnavailable, match="a file stands where a folder should be"):
                call()

    def test_a_holder_of_the_lock_that_hangs_is_not_waited_for_without_end(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import fcntl

        monkeypatch.setattr("tuner_job.store.folder.LOCK_SECONDS", 0.05)
        store = ObjectStore.open(root.as_uri())
        store.put("a", b"1")
        with (root / ".aside-lock").open("rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            with pytest.raises(StoreUnavailable, match="another process has held"):
                store.put("a", b"2")
        store.put("a", b"3")
        assert content(store, "a") == b"3"


class TestAddresses:
    @pytest.mark.parametrize(
        ("url", "options", "says"),
        [
            ("ftp://x/y", {}, "unknown kind of store; use one of file://"),
            ("/some/folder", {}, "unknown kind of store"),
            ("file://relative", {}, "three slashes"),
            ("file:///tmp/x", {"endpoint": "https://x"}, "takes no options, but endpoint"),
            ("s3://", {}, "s3://name/prefix"),
            ("s3://key:secret@bucket", {}, "without credentials"),
            ("s3://bucket/a?b=c", {}, "without credentials or query"),
            ("s3://bucket", {"endpiont": "x"}, "endpiont is not one of s3://'s"),
            ("s3://bucket", {"endpoint": "minio:9000"}, "'minio:9000': write it as https://host"),
            ("s3://bucket", {"endpoint": "ftp://minio"}, "write it as https://host"),
            ("s3://bucket", {"endpoint": "https://minio:port"}, "write it as https://host"),
            ("s3://bucket", {"endpoint": "http://minio:9000"}, "unencrypted; use https, or set insecureHttp"),
            ("s3://bucket", {"endpoint": "https://minio:9000"}, "no credentials; set AWS_ACCESS_KEY_ID"),
            ("s3://bucket", {"accessKeyId": "x"}, "go together"),
            ("s3://bucket", {"timeoutSeconds": "soon"}, "timeoutSeconds is 'soon'"),
            ("s3://bucket", {"pathStyle": "yes"}, "pathStyle is 'yes'; write true or false"),
            ("s3://bucket", {"caFile": "/nowhere/ca.pem"}, "caFile: cannot read /nowhere/ca.pem"),
            ("az://account", {}, "az://account/container/prefix"),
        ],
    )
    def test_a_wrong_address_is_explained(
        self, url: str, options: dict[str, str], says: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            monkeypatch.delenv(name)
        with pytest.raises(InputError) as caught:
            ObjectStore.open(url, options)
        assert says in str(caught.value)
        assert "secret@" not in str(caught.value)

    @pytest.mark.parametrize(
        ("url", "options"),
        [
            ("gs://bucket/prefix", {"anonymous": "true"}),
            ("az://account/container/prefix", {"accountKey": "aGVsbG8="}),
            ("s3://bucket/prefix", {"endpoint": "https://s3.example.com", "accessKeyId": "a", "secretAccessKey": "b"}),
            ("s3://bucket", {"endpoint": "http://[::1]:9", "accessKeyId": "a", "secretAccessKey": "b", "multipart": "false"}),
            ("s3://bucket", {"endpoint": "http://minio:9", "allowHttp": "true", "accessKeyId": "a", "secretAccessKey": "b"}),
        ],
    )
    def test_every_kind_of_store_opens_without_a_request(self, url: str, options: dict[str, str]) -> None:
        assert ObjectStore.open(url, options).url == url

    @pytest.mark.parametrize("variable", ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT"])
    def test_one_providers_environment_is_not_anothers(self, variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(variable, "http://minio:9000")
        assert ObjectStore.open("gs://bucket", {"anonymous": "true"}).url == "gs://bucket"
        with pytest.raises(InputError, match="'http://minio:9000' would send results unencrypted"):
            ObjectStore.open("s3://bucket", {"anonymous": "true"})

    def test_endpoint_and_credentials_may_come_from_the_environment(
        self, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        address = s3_server.new_store()
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", address.options["endpoint"])
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", address.options["accessKeyId"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", address.options["secretAccessKey"])
        ObjectStore.open(address.url).put("a", b"1")
        assert content(address.open(), "a") == b"1"


class TestS3Answers:
    """What real servers say when something is wrong."""

    def test_a_server_that_is_not_there_is_unavailable(self) -> None:
        store = ObjectStore.open(
            "s3://bucket", {"endpoint": "http://127.0.0.1:1", "accessKeyId": "a", "secretAccessKey": "b", "timeoutSeconds": "1"}
        )
        with pytest.raises(StoreUnavailable, match=r"store s3://bucket: cannot read a: .*check that the store is up") as caught:
            store.get("a", 1)
        assert "\n" not in str(caught.value)

    def test_a_missing_bucket_is_not_a_missing_object(self, s3_server: S3Server) -> None:
        store = ObjectStore.open("s3://no-such-bucket/x", s3_server.options)
        for call in (lambda: store.get("a", 1), lambda: store.create("a", b""), lambda: keys(store)):
            with pytest.raises(StoreUnavailable, match=r"store s3://no-such-bucket/x: .*bucket"):
                call()

    def test_refused_credentials_are_named_but_not_shown(self, s3_server: S3Server) -> None:
        store = ObjectStore.open("s3://bucket/x", {**s3_server.options, "secretAccessKey": "wrong-password"})
        for call in (lambda: store.get("a", 1), lambda: store.put("a", b"")):
            with pytest.raises(StoreUnavailable, match="credentials are refused") as caught:
                call()
            assert "wrong-password" not in str(caught.value)

    @pytest.mark.parametrize(
        ("status", "body", "error"),
        [
            (403, b"<Error><Code>AccessDenied</Code></Error>", StoreReadOnly),
            (507, b"", StoreFull),
            (400, b"<Error><Code>QuotaExceeded</Code></Error>", StoreFull),
            (501, b"<Error><Code>NotImplemented</Code></Error>", StoreNotConditional),
            (400, b"<Error><Code>AuthorizationHeaderMalformed</Code></Error>", StoreUnavailable),
            (503, b"", StoreUnavailable),
            (500, b"", StoreUnavailable),
        ],
    )
    def test_a_refused_write_has_its_own_error(self, status: int, body: bytes, error: type[TrtfleetError]) -> None:
        with answering() as answers:
            answers.status, answers.body = status, body
            store = ObjectStore.open("s3://bucket", answers.options)
            with pytest.raises(error, match="store s3://bucket: "):
                store.create("a", b"1")

    @pytest.mark.parametrize("status", [304, 409, 412])
    def test_a_lost_race_is_never_taken_for_stored(self, status: int) -> None:
        with answering() as answers:
            answers.put_status, answers.body = status, b"x"
            store = ObjectStore.open("s3://bucket", answers.options)
            try:
                assert not store.create("a", b"1")
                assert not store.swap("a", b"1", '"other"')
            except StoreUnavailable:
                assert status == 409  # `another request is under way`: may be tried again, but is not stored either

    def test_a_lost_answer_to_a_create_is_found_out(self) -> None:
        with answering() as answers:
            answers.put_status, answers.body = 412, b"mine"
            assert ObjectStore.open("s3://bucket", answers.options).create("a", b"mine")

    def test_a_server_that_does_not_answer_is_given_up(self) -> None:
        import socket

        with socket.socket() as silent:
            silent.bind(("127.0.0.1", 0))
            silent.listen()
            options = {"accessKeyId": "a", "secretAccessKey": "b", "timeoutSeconds": "1"}
            options["endpoint"] = f"http://127.0.0.1:{silent.getsockname()[1]}"
            started = time.monotonic()
            with pytest.raises(StoreUnavailable):
                ObjectStore.open("s3://bucket", options).get("a", 1)
            assert time.monotonic() - started < 30


def test_stores_are_safe_for_threads(object_store: ObjectStore) -> None:
    problems: list[Exception] = []

    def work(n: int) -> None:
        try:
            for k in range(10):
                object_store.put(f"t/{n}", b"%d" % k)
                assert content(object_store, f"t/{n}") == b"%d" % k
        except Exception as error:
            problems.append(error)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []


@contextmanager
def unprivileged() -> Iterator[None]:
    """As a user whom file modes bind; root is not one."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@contextmanager
def largest_file(size: int) -> Iterator[None]:
    """Writes past `size` fail half-way, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_stored_files_are_readable_by_the_umask_not_only_by_the_writer(tmp_path: Path) -> None:
    store = ObjectStore.open((tmp_path / "s").as_uri())
    old = os.umask(0o022)
    try:
        store.put("a", b"")
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "s" / "a").stat().st_mode) == 0o644
