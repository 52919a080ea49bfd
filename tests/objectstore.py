"""A real S3 server on loopback (moto's, in a process of its own), and a proxy before it that breaks requests.

    with S3Server() as server, FaultyProxy(server.port) as proxy:
        proxy.fault = lambda request: "cut" if request.number % 5 == 0 and request.method == "GET" else None
        environment = server.environ | {"AWS_ENDPOINT_URL": proxy.url}

Faults: a number such as `500` is what the server answers, `slow` dribbles the answer, `cut` closes the connection in
the middle of it.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple

import pytest

from tests.conftest import IN_CI

SECRETS = {"AWS_ACCESS_KEY_ID": "tester", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_EC2_METADATA_DISABLED": "true"}
MAIN = "import sys; from moto.server import main; main(sys.argv[1:])"


class S3Server:
    """moto's server; `checks_credentials` makes it refuse whoever has none after its first requests."""

    def __init__(self, *, free_requests: int | None = None) -> None:
        try:
            import moto.server  # noqa: F401
        except ImportError as error:
            if IN_CI:
                raise
            pytest.skip(f"no S3 server here: {error}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        environ = {**os.environ, **SECRETS}
        if free_requests is not None:
            environ["INITIAL_NO_AUTH_ACTION_COUNT"] = str(free_requests)
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", MAIN, "-H", "127.0.0.1", "-p", str(self.port)],
            env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.url = f"http://127.0.0.1:{self.port}"
        self.environ = {**SECRETS, "AWS_ENDPOINT_URL": self.url}

    def __enter__(self) -> S3Server:
        end = time.monotonic() + 120
        while True:
            assert self._process.poll() is None, "the S3 server ended"
            try:
                self.request("GET", "/moto-api/data.json")
                return self
            except OSError:
                assert time.monotonic() < end, "the S3 server does not start"
                time.sleep(0.1)

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
    ) -> bytes:
        """Make one plain request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            connection.request(method, path, body=body, headers=headers or {})
            return connection.getresponse().read()
        finally:
            connection.close()

    def put(self, path: str, body: bytes | None = None) -> None:
        """Make a bucket (`/bucket`) or an object (`/bucket/key`)."""
        date = {"Host": "s3.amazonaws.com", "Content-Length": str(len(body or b""))}
        self.request("PUT", path, body, date)

    def users(self) -> dict[str, object]:
        """Return what the server knows of IAM."""
        return dict(json.loads(self.request("GET", "/moto-api/data.json")))

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


class Request(NamedTuple):
    """What a client asked."""

    number: int
    method: str
    path: str
    range: str | None


class FaultyProxy:
    """Passes requests on, and breaks those that `fault` names."""

    def __init__(self, port: int) -> None:
        self.requests: list[Request] = []
        self.broken: list[str] = []
        self.fault: Callable[[Request], str | None] = lambda request: None
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: object) -> None:
                pass

            def pass_on(self) -> None:
                body = self.body()
                kind = outer.note(self.command, self.path, self.headers.get("Range"))
                if kind and kind.isdecimal():
                    text = b"<Error><Code>InternalError</Code><Message>injected</Message></Error>"
                    self.answer(int(kind), {"Content-Type": "application/xml"}, text, None)
                    return
                upstream = http.client.HTTPConnection("127.0.0.1", port, timeout=120)
                try:
                    headers = {
                        k: v for k, v in self.headers.items() if k.lower() not in ("transfer-encoding", "expect")
                    }
                    headers["Content-Length"] = str(len(body))
                    upstream.request(self.command, self.path, body=body, headers=headers)
                    response = upstream.getresponse()
                    kept = {
                        k: v for k, v in response.getheaders() if k.lower() not in ("transfer-encoding", "connection")
                    }
                    self.answer(response.status, kept, response.read(), kind)
                finally:
                    upstream.close()

            do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = pass_on  # noqa: N815

            def body(self) -> bytes:
                if "chunked" not in (self.headers.get("Transfer-Encoding") or ""):
                    return self.rfile.read(int(self.headers.get("Content-Length") or 0))
                whole = b""
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    whole += self.rfile.read(size)
                    self.rfile.readline()
                while self.rfile.readline().strip():
                    pass
                return whole

            def answer(self, status: int, headers: dict[str, str], body: bytes, kind: str | None) -> None:
                self.send_response_only(status)
                for name, value in headers.items():
                    if name.lower() != "content-length" or self.command == "HEAD":
                        self.send_header(name, value)
                if self.command != "HEAD":
                    self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                if self.command == "HEAD":
                    return
                if kind == "cut":
                    self.wfile.write(body[: len(body) // 2])
                    self.wfile.flush()
                    self.close_connection = True
                    self.connection.shutdown(socket.SHUT_RDWR)
                    return
                step = max(1, len(body) // 8) if kind == "slow" else max(1, len(body))
                for start in range(0, len(body), step):
                    self.wfile.write(body[start : start + step])
                    self.wfile.flush()
                    time.sleep(0.05 if kind == "slow" else 0)

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *_: object) -> None:
                pass  # a client that went away

        self._server = Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def note(self, method: str, path: str, asked: str | None) -> str | None:
        """Write a request down, and say how to break it."""
        with self._lock:
            request = Request(len(self.requests), method, path, asked)
            self.requests.append(request)
            kind = self.fault(request)
            if kind:
                self.broken.append(kind)
            return kind

    def __enter__(self) -> FaultyProxy:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
