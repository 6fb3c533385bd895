"""Stores that misbehave."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TypeVar

from tuner_job.store.objects import Content, Info, Object, ObjectStore, StoreUnavailable

T = TypeVar("T")


class FaultyStore(ObjectStore):
    """A real store with switches for outage, lost answers and ignored conditions."""

    def __init__(self, inner: ObjectStore) -> None:
        self.url = inner.url
        self.inner = inner
        self.down = False
        self.lose_next_answer = False
        self.ignores_conditions = False

    def _call(self, call: Callable[[], T], *, writes: bool = False) -> T:
        if self.down:
            raise StoreUnavailable(f"store {self.url}: down on purpose")
        answer = call()
        if writes and self.lose_next_answer:
            self.lose_next_answer = False
            raise StoreUnavailable(f"store {self.url}: answer lost on purpose")
        return answer

    def get(self, key: str, max_bytes: int) -> Object | None:
        return self._call(lambda: self.inner.get(key, max_bytes))

    def create(self, key: str, data: bytes) -> bool:
        if self.ignores_conditions:
            self.put(key, data)
            return True
        return self._call(lambda: self.inner.create(key, data), writes=True)

    def put(self, key: str, data: bytes) -> None:
        self._call(lambda: self.inner.put(key, data), writes=True)

    def swap(self, key: str, data: bytes, tag: str) -> bool:
        if self.ignores_conditions:
            self.put(key, data)
            return True
        return self._call(lambda: self.inner.swap(key, data, tag), writes=True)

    def list(self, prefix: str) -> Iterator[Info]:
        return iter(self._call(lambda: [*self.inner.list(prefix)]))

    def delete(self, key: str) -> None:
        self._call(lambda: self.inner.delete(key), writes=True)

    def info(self, key: str) -> Info | None:
        return self._call(lambda: self.inner.info(key))

    def put_file(self, key: str, path: Path, *, digest: str | None = None) -> Content:
        return self._call(lambda: self.inner.put_file(key, path, digest=digest), writes=True)

    def get_file(self, key: str, path: Path, *, digest: str | None = None, max_bytes: int | None = None) -> Content | None:
        return self._call(lambda: self.inner.get_file(key, path, digest=digest, max_bytes=max_bytes))

    def sweep(self, older_than_seconds: float) -> int:
        return self._call(lambda: self.inner.sweep(older_than_seconds))


@dataclass
class Answers:
    """What a stub S3 server says to every request."""

    endpoint: str
    status: int = 200
    body: bytes = b""
    put_status: int | None = None
    """Of PUT, if it differs."""
    heard: list[dict[str, str]] = field(default_factory=list)
    """Headers of every request, names in lower case."""

    @property
    def options(self) -> dict[str, str]:
        return {"endpoint": self.endpoint, "accessKeyId": "a", "secretAccessKey": "b", "timeoutSeconds": "2"}


@contextmanager
def answering(certificate: Path | None = None) -> Iterator[Answers]:
    """A server on loopback that gives the same answer to everything; by TLS with a PEM file of certificate and key."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _answer(self) -> None:
            answers.heard.append({name.lower(): value for name, value in self.headers.items()})
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            status = answers.put_status if self.command == "PUT" and answers.put_status else answers.status
            body = b"" if status == 304 else answers.body
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("ETag", '"stub"')
            self.send_header("Last-Modified", "Mon, 30 Nov 2026 10:00:00 GMT")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    answers = Answers(f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}")
    if certificate:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate)
        server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield answers
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
