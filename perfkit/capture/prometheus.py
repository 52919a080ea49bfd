"""Serve `/metrics` from what ranks leave in a spool; `/healthz` answers 200.

    serve_in_thread(spool, host, port) -> server      (port 0: a free one; server.server_address)

Runs in a side process or in `perfkit serve-metrics`, never in the trainer. Reads small files and keeps nothing.
"""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from perfkit.capture.metrics import OPENMETRICS, TEXT, read_snapshots, render


class MetricsServer(ThreadingHTTPServer):
    """The endpoint of one spool."""

    daemon_threads = True

    def __init__(self, spool: Path, host: str, port: int) -> None:
        self.spool = spool
        super().__init__((host, port), _Handler)


class _Handler(BaseHTTPRequestHandler):
    server_version = "perfkit"
    sys_version = ""
    timeout = 10

    def do_GET(self) -> None:
        """Answer a scrape."""
        path = self.path.partition("?")[0]
        if path == "/metrics":
            openmetrics = "application/openmetrics-text" in self.headers.get("Accept", "")
            server = self.server
            assert isinstance(server, MetricsServer)
            body = render(read_snapshots(server.spool), openmetrics=openmetrics)
            self._answer(200, OPENMETRICS if openmetrics else TEXT, body)
        elif path == "/healthz":
            self._answer(200, TEXT, "ok\n")
        else:
            self._answer(404, TEXT, "perfkit serves /metrics and /healthz\n")

    def _answer(self, status: int, kind: str, body: str) -> None:
        data = body.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: a scrape every few seconds is no news."""


def serve_in_thread(spool: Path, host: str, port: int) -> MetricsServer:
    """Start serving; raises OSError if the port is taken."""
    server = MetricsServer(spool, host, port)
    threading.Thread(target=server.serve_forever, name="perfkit-metrics", daemon=True).start()
    return server
