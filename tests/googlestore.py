"""A Google Cloud Storage server on loopback: the emulator `gcp-storage-emulator`, in a process of its own.

with GoogleServer() as server:      # one bucket, `server.bucket`; the proxy of tests.objectstore fits before it
    environment = server.environ
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time

import pytest

from tests.conftest import IN_CI

MAIN = """
import sys
from gcp_storage_emulator import server
server.create_server("127.0.0.1", int(sys.argv[1]), in_memory=True, default_bucket=sys.argv[2]).run()
"""


class GoogleServer:
    """One emulator with one bucket."""

    bucket = "traces"

    def __init__(self) -> None:
        try:
            import gcp_storage_emulator  # noqa: F401
        except ImportError as error:
            if IN_CI:
                raise
            pytest.skip(f"no Google storage here: {error}")
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._folder = tempfile.TemporaryDirectory(prefix="perfkit-gs-")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", MAIN, str(self.port), self.bucket],
            cwd=self._folder.name, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        self.url = f"http://127.0.0.1:{self.port}"
        self.environ = {**os.environ, "STORAGE_EMULATOR_HOST": self.url}

    def __enter__(self) -> GoogleServer:
        end = time.monotonic() + 120
        while True:
            assert self._process.poll() is None, "the Google storage server ended"
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=5).close()
                return self
            except OSError:
                assert time.monotonic() < end, "the Google storage server does not start"
                time.sleep(0.1)

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._folder.cleanup()
