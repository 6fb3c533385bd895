"""A proxy before the real S3 server, in this process: requests can be held, disturbed, or robbed of their conditions."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import random
import re
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote

from faults_gate import Gate
from rig.kube.object_store import S3_PORT, Fault, MachineS3

UPSTREAM_SECONDS = 60
_HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"})
_CONDITIONS = frozenset({"if-match", "if-none-match"})


class S3Gate(Gate):
    """A request reads `PUT /bucket/key`."""

    def __init__(self, s3: MachineS3) -> None:
        super().__init__()
        self.s3 = s3
        self.port = 0
        self._faults: list[tuple[re.Pattern[str], Fault]] = []
        self._liars: list[str] = []

    @property
    def endpoint(self) -> str:
        """As pods and tests reach it."""
        return f"http://{self.s3.machine.host}:{self.port}"

    @contextmanager
    def fault(self, pattern: str, fault: Fault) -> Iterator[None]:
        """Requests like this go wrong."""
        rule = (re.compile(pattern), fault)
        self._faults.append(rule)
        try:
            yield
        finally:
            self._faults.remove(rule)

    def lie(self, prefix: str) -> None:
        """From now on requests below a key prefix lose If-Match and If-None-Match, as if the server knew neither."""
        self._liars.append(prefix)

    def fault_of(self, request: str) -> Fault | None:
        method = request.partition(" ")[0]
        for pattern, fault in self._faults:
            concerns = pattern.search(request) and (not fault.methods or method in fault.methods)
            if concerns and random.random() < fault.share:
                return fault
        return None

    def lies_about(self, request: str) -> bool:
        return any(prefix in request for prefix in self._liars)


@contextmanager
def serving(s3: MachineS3) -> Iterator[S3Gate]:
    gate = S3Gate(s3)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def handle_any(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            request = f"{self.command} {unquote(self.path.partition('?')[0])}"
            fault = gate.fault_of(request)
            if fault is not None:
                time.sleep(fault.delay_seconds)
                if fault.after:
                    self._ask(body, honest=True)
                if fault.drop:
                    self.close_connection = True
                    return
                if fault.status:
                    self._answer(fault.status, [("Content-Length", "0")], b"")
                    return
            if not gate.passes(request, self.connection):
                self.close_connection = True
                return
            answer = self._ask(body, honest=not gate.lies_about(request))
            if answer is None or not gate.passes(request, self.connection, after=True):
                self.close_connection = True
                return
            self._answer(*answer)

        def _ask(self, body: bytes, *, honest: bool) -> tuple[int, list[tuple[str, str]], bytes] | None:
            """What the server answers; None when it is away."""
            headers = [(name, value) for name, value in self.headers.items() if name.lower() not in _HOP_BY_HOP]
            if not honest and any(name.lower() in _CONDITIONS for name, _ in headers):
                headers = [(name, value) for name, value in headers if name.lower() not in _CONDITIONS]
                headers = signed_anew(self.command, self.path, headers, s3.secret_key)
            upstream = http.client.HTTPConnection(s3.machine.address, S3_PORT, timeout=UPSTREAM_SECONDS)
            try:
                upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in headers:
                    upstream.putheader(name, value)
                upstream.endheaders(body)
                response = upstream.getresponse()
                answered = [(name, value) for name, value in response.getheaders() if name.lower() not in _HOP_BY_HOP]
                data = response.read()
                if response.getheader("Content-Length") is None:
                    answered.append(("Content-Length", str(len(data))))
                return response.status, answered, data
            except OSError:
                return None
            finally:
                upstream.close()

        def _answer(self, status: int, headers: list[tuple[str, str]], data: bytes) -> None:
            try:
                self.send_response_only(status)
                for name, value in headers:
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(data)
            except OSError:  # whoever asked is dead
                self.close_connection = True

        do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            """Of killed clients there are many."""

    server = Server((s3.machine.host, 0), Handler)
    gate.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        yield gate
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def signed_anew(method: str, path: str, headers: list[tuple[str, str]], secret_key: str) -> list[tuple[str, str]]:
    """The headers with a signature (AWS Signature Version 4, header form) for what is left of those that were signed."""
    values = {name.lower(): value.strip() for name, value in headers}
    found = re.fullmatch(
        r"AWS4-HMAC-SHA256 Credential=([^/]+)/([^,]+), ?SignedHeaders=([^,]+), ?Signature=[0-9a-f]+", values["authorization"]
    )
    assert found is not None, values["authorization"]
    access_key, scope, names = found[1], found[2], [name for name in found[3].split(";") if name in values]
    place, _, query = path.partition("?")
    canonical = "\n".join(
        [
            *(method, place, "&".join(sorted(part if "=" in part else f"{part}=" for part in query.split("&") if part))),
            *(f"{name}:{' '.join(values[name].split())}" for name in names),
            *("", ";".join(names), values["x-amz-content-sha256"]),
        ]
    )
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    text = "\n".join(["AWS4-HMAC-SHA256", values["x-amz-date"], scope, digest])
    key = f"AWS4{secret_key}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    signature = hmac.digest(key, text.encode(), "sha256").hex()
    own = f"AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={';'.join(names)}, Signature={signature}"
    return [(name, own if name.lower() == "authorization" else value) for name, value in headers]
