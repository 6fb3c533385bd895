"""Stores that a run cannot use."""

from __future__ import annotations

import ctypes
import hashlib
import os
import resource
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

CREDENTIALS = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}

_PR_CAPBSET_DROP = 24
_CAP_DAC_OVERRIDE = 1


def declared(endpoint: str) -> dict:
    """An ArtifactStore named `remote`."""
    return {
        "apiVersion": "trtfleet.dev/v1alpha1",
        "kind": "ArtifactStore",
        "metadata": {"name": "remote"},
        "spec": {"url": "s3://bucket/prefix", "endpoint": endpoint, "region": "us-east-1"},
    }


def closed_port() -> str:
    """An endpoint where nothing listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{free.getsockname()[1]}"


def bound_by_permissions() -> None:
    """For `preexec_fn`: root, too, may write only where the permissions say so."""
    if os.geteuid() == 0:
        ctypes.CDLL(None).prctl(_PR_CAPBSET_DROP, _CAP_DAC_OVERRIDE, 0, 0, 0)


def without_room() -> None:
    """For `preexec_fn`: a file gets no longer than this, as if the disk were full."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (64, 64))


@contextmanager
def small_disk(folder: Path) -> Iterator[bool]:
    """A file system of 16 MiB at `folder`; False where it cannot be mounted."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m", "tmpfs", folder], capture_output=True, check=False)
    try:
        yield mounted.returncode == 0
    finally:
        if mounted.returncode == 0:
            subprocess.run(["umount", "-l", folder], check=True)


@contextmanager
def lying_store() -> Iterator[str]:
    """The endpoint of an S3 server that stores everything and ignores every condition, as some real ones do."""
    objects: dict[str, bytes] = {}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_PUT(self) -> None:
            objects[self._key()] = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            self._answer(200, b"", tag=_tag(objects[self._key()]))

        def do_GET(self) -> None:
            query = parse_qs(urlsplit(self.path).query)
            if "list-type" in query:
                self._answer(200, _listing(objects, query.get("prefix", [""])[0]))
            elif self._key() in objects:
                data = objects[self._key()]
                self._answer(200, data, tag=_tag(data))
            else:
                self._answer(404, b"<Error><Code>NoSuchKey</Code></Error>")

        do_HEAD = do_GET

        def do_DELETE(self) -> None:
            objects.pop(self._key(), None)
            self._answer(204, b"")

        def _key(self) -> str:
            return unquote(urlsplit(self.path).path).removeprefix("/bucket/")

        def _answer(self, status: int, body: bytes, tag: str = "") -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Last-Modified", "Mon, 30 Nov 2026 10:00:00 GMT")
            if tag:
                self.send_header("ETag", tag)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _tag(data: bytes) -> str:
    return f'"{hashlib.md5(data).hexdigest()}"'


def _listing(objects: dict[str, bytes], prefix: str) -> bytes:
    entries = "".join(
        f"<Contents><Key>{key}</Key><Size>{len(data)}</Size><ETag>x</ETag>"
        "<LastModified>2026-11-30T10:00:00.000Z</LastModified></Contents>"
        for key, data in sorted(objects.items())
        if key.startswith(prefix)
    )
    head = '<?xml version="1.0"?><ListBucketResult><Name>bucket</Name><IsTruncated>false</IsTruncated>'
    return f"{head}{entries}</ListBucketResult>".encode()
