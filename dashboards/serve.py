"""Serve the app with gunicorn's threads, or with werkzeug's where gunicorn does not run.

    serve("runs/", host="127.0.0.1", port=8050, workers=2, threads=4)     blocks until interrupted

Each worker makes its own app after the fork: a DuckDB connection and threads must not cross one. Who may see what, and
how much, is made before it, so that limits hold for all workers together.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from perfkit.errors import PerfkitError, UsageError


@dataclass(frozen=True)
class Options:
    """Who may see what, and how much; as the command line says it."""

    auth_file: str | None = None
    trust_header: str | None = None
    trust_proxies: tuple[str, ...] = ()
    heavy_per_minute: float | None = None
    read_only: bool = False

    def access(self) -> Any:
        """Return who may see what; None is everybody everything."""
        if self.auth_file is None:
            if self.trust_header or self.trust_proxies:
                raise UsageError("--trust-header needs --auth-file", next_step='with "others" in it, it names no users')
            return None
        from .access import Access

        return Access(self.auth_file, header=self.trust_header, proxies=self.trust_proxies)

    def settings(self) -> dict[str, Any]:
        """Return the arguments of `create_app`; once for all workers."""
        from .limits import HEAVY_PER_MINUTE, Limits

        access = self.access()
        rate = self.heavy_per_minute or (HEAVY_PER_MINUTE if access is not None else None)
        return {"access": access, "limits": Limits(rate) if rate else None, "read_only": self.read_only}


def serve(
    store: str, *, host: str = "127.0.0.1", port: int = 8050, prefix: str = "/", workers: int = 1, threads: int = 4,
    options: Options | None = None, say: Callable[[str], None] = lambda line: None,
) -> None:  # fmt: skip
    """Bind, say the address, and serve."""
    options = options or Options()
    settings = options.settings()  # what is wrong with it is said before anything is bound
    listener = bind(host, port)
    shown = "127.0.0.1" if host in ("0.0.0.0", "") else host  # a wildcard is no address to open
    path = "/" + prefix.strip("/") + "/" if prefix.strip("/") else "/"
    say(f"perfkit dashboard of {store}: http://{shown}:{listener.getsockname()[1]}{path}  (Ctrl-C ends it)")
    if host not in ("127.0.0.1", "localhost", "::1"):
        open_door = "and without a password; see --auth-file, or put a proxy in front of it"
        plain = "over plain HTTP; put a proxy with TLS in front of it, passwords are readable on the way"
        say(f"perfkit dashboard: reachable from other machines {open_door if options.auth_file is None else plain}")
    if importlib.util.find_spec("gunicorn"):
        _gunicorn(store, listener, prefix, workers, threads, settings)
    elif workers > 1:
        raise UsageError("--workers needs gunicorn", next_step="install it with `pip install gunicorn`")
    else:
        _werkzeug(store, listener, host, prefix, settings)


def bind(host: str, port: int) -> socket.socket:
    """Return a bound socket, so that the address is known and taken before anything is loaded."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise PerfkitError(
            f"cannot bind {host}:{port}: {error.strerror or error}", next_step="choose another --port or --host"
        ) from None
    return listener


def _gunicorn(
    store: str, listener: socket.socket, prefix: str, workers: int, threads: int, arguments: dict[str, Any]
) -> None:
    from gunicorn.app.base import BaseApplication

    class Server(BaseApplication):  # type: ignore[misc]
        def load_config(self) -> None:
            settings: dict[str, Any] = {
                "bind": f"fd://{listener.fileno()}", "workers": workers, "threads": threads, "worker_class": "gthread",
                "accesslog": None, "loglevel": "warning", "timeout": 120, "graceful_timeout": 5, "keepalive": 30,
                "preload_app": False, "proc_name": "perfkit-dashboard", "control_socket_disable": True,
            }  # fmt: skip
            settings["worker_exit"] = leave
            for name, value in settings.items():
                if name in self.cfg.settings:
                    self.cfg.set(name, value)

        def load(self) -> Any:
            from .app import create_app
            from .data import Source

            source = Source(store)
            threading.Thread(target=warm, args=(source,), daemon=True).start()
            return create_app(source, prefix=prefix, **arguments).server

    listener.set_inheritable(True)
    listener.listen(256)
    try:
        Server().run()
    except SystemExit as stop:
        if stop.code:
            raise PerfkitError("the server ended", next_step="see the lines above") from None


def leave(server: Any, worker: Any) -> None:
    """End a worker without tearing the interpreter down, when DuckDB's binding would print pages of leaks."""
    if worker.booted:
        os._exit(0)


def warm(source: Any) -> None:
    """Ask what the start page asks, then load a year: the first visitor does not wait. What fails, the page says."""
    from . import data_fleet
    from .view import View

    with suppress(Exception):
        data_fleet.clusters(source, View())
        data_fleet.runs(source, View(), count=1)
        for table in ("run_rollup", "cluster_rollup"):
            source.load(table, source.window(View(range="1y")))


def _werkzeug(store: str, listener: socket.socket, host: str, prefix: str, arguments: dict[str, Any]) -> None:
    from werkzeug.serving import make_server

    from .app import create_app

    listener.listen(256)
    app = create_app(store, prefix=prefix, **arguments)
    make_server(host, listener.getsockname()[1], app.server, threaded=True, fd=listener.fileno()).serve_forever()
