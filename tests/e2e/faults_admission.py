"""An admission webhook, in this process, at which the API server's requests can be held or refused."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from faults_gate import Gate
from rig.kube.control_plane import ControlPlane, Object

LABEL = "faults.trtfleet.dev/gated"
"""Only requests of namespaces with it are asked about."""
NAME = "faults.trtfleet.dev"
TIMEOUT_SECONDS = 30


class AdmissionGate(Gate):
    """A request reads `CREATE jobs namespace/name` or `UPDATE tuningjobs/status namespace/name`."""


@contextmanager
def admitting(plane: ControlPlane) -> Iterator[AdmissionGate]:
    """Creates of Jobs and status writes of TuningJobs pass it. Where it does not answer, the API server goes on without it."""
    gate = AdmissionGate()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            review = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
            asked = review["request"]
            what = "/".join(part for part in (asked["resource"]["resource"], asked.get("subResource", "")) if part)
            request = f"{asked['operation']} {what} {asked.get('namespace', '')}/{asked.get('name', '')}"
            allowed = gate.passes(request, self.connection)
            response = {"uid": asked["uid"], "allowed": allowed}
            body = json.dumps({"apiVersion": review["apiVersion"], "kind": review["kind"], "response": response}).encode()
            try:
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)
            except OSError:  # it waits no more
                self.close_connection = True

        def log_message(self, format: str, *args: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: object, client_address: object) -> None:
            """Of connections that the API server gave up."""

    pair = plane.authority.server("faults-admission", [plane.machine.host])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.certificate, pair.key)
    server = Server((plane.machine.host, 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
    thread.start()
    try:
        plane.apply(_configuration(plane, server.server_address[1]))
        yield gate
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _configuration(plane: ControlPlane, port: int) -> Object:
    def rule(group: str, resource: str, operation: str) -> Object:
        return {"apiGroups": [group], "apiVersions": ["*"], "resources": [resource], "operations": [operation]}

    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": NAME},
        "webhooks": [
            {
                "name": NAME,
                "clientConfig": {
                    "url": f"https://{plane.machine.host}:{port}/",
                    "caBundle": base64.b64encode(plane.authority.certificate.read_bytes()).decode(),
                },
                "rules": [rule("batch", "jobs", "CREATE"), rule("trtfleet.dev", "tuningjobs/status", "UPDATE")],
                "namespaceSelector": {"matchLabels": {LABEL: "true"}},
                "failurePolicy": "Ignore",
                "timeoutSeconds": TIMEOUT_SECONDS,
                "sideEffects": "None",
                "admissionReviewVersions": ["v1"],
            }
        ],
    }
