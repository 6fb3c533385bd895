"""Passes HTTP on to another port of the same address, but for what the fault file says, which is read at each request.

usage: faulty_proxy.py ADDRESS PORT UPSTREAM_PORT FAULT_FILE
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

UPSTREAM_SECONDS = 60
HOP_BY_HOP = frozenset({"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade"})
CHUNK = 1 << 20

address, port, upstream_port, fault_file = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4])


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = json.loads(fault_file.read_text())
        hit = (not fault["methods"] or self.command in fault["methods"]) and random.random() < fault["share"]
        if not hit:
            return self.pass_on(body, answer=True)
        time.sleep(fault["delay_seconds"])
        if not (fault["drop"] or fault["status"]):
            return self.pass_on(body, answer=True)
        if fault["after"]:
            self.pass_on(body, answer=False)
        if fault["drop"]:
            self.close_connection = True
            return None
        self.send_response(fault["status"])
        self.send_header("Content-Length", "0")
        self.end_headers()
        return None

    def pass_on(self, body: bytes, *, answer: bool) -> None:
        """With the Host that the client signed."""
        upstream = http.client.HTTPConnection(address, upstream_port, timeout=UPSTREAM_SECONDS)
        try:
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():
                if name.lower() not in HOP_BY_HOP:
                    upstream.putheader(name, value)
            upstream.endheaders(body)
            response = upstream.getresponse()
            if answer:
                self.send_back(response)
        except OSError:  # the server is away: so is this one
            self.close_connection = True
        finally:
            upstream.close()

    def send_back(self, response: http.client.HTTPResponse) -> None:
        self.send_response_only(response.status, response.reason)
        for name, value in response.getheaders():
            if name.lower() not in HOP_BY_HOP:
                self.send_header(name, value)
        if self.command == "HEAD" or response.status in (204, 304):
            self.end_headers()
            return
        if response.getheader("Content-Length") is None:  # of a length that only its end tells
            data = response.read()
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
            return
        self.end_headers()
        while chunk := response.read(CHUNK):
            self.wfile.write(chunk)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any

    def log_message(self, format: str, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


Server((address, port), Handler).serve_forever()
