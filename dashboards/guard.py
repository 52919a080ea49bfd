"""What stands before and behind every answer: names that nothing knows, requests from other sites, headers.

    refuse_unknown(server, source, prefix)     404 for a cluster or run that is not there, or not for who asks: the same
    add_headers(app, private=True)             the browser runs only the scripts that this server sends

The content policy has no inline script but Dash's one line, by its hash, and no eval: nothing here compiles text while
it runs (plotly's WebGL traces would, and none is drawn). The component library sets styles, so inline ones stay.
"""

from __future__ import annotations

from html import escape
from typing import Any
from urllib.parse import quote

import flask
from dash import Dash

from perfkit.store.notes import FOLDER

from . import format as fmt
from .data import Source
from .view import View

UPDATE = "_dash-update-component"
_POLICY = (
    "default-src 'self'; img-src 'self' data: blob:; style-src 'self' 'unsafe-inline'; "
    "script-src 'self'{scripts}; connect-src 'self'; font-src 'self' data:; object-src 'none'; "
    "base-uri 'self'; form-action 'self'; frame-ancestors 'self'"
)


def refuse_unknown(server: flask.Flask, source: Source, prefix: str) -> None:
    """Answer 404 to everything about a cluster or run that is not there."""

    @server.before_request
    def look() -> flask.Response | None:
        request = flask.request
        inside = request.path.removeprefix(prefix)
        if inside == "health" or inside.startswith(("assets/", "_favicon", "_dash-component-suites/")):
            return None
        if request.method not in ("GET", "HEAD", "OPTIONS") and not _same_site(request):
            return flask.Response("Requests from other sites are not answered.\n", 403, mimetype="text/plain")
        if inside == UPDATE:
            views = _views_of(request.get_json(silent=True), prefix)
        else:
            views = [View.parse(f"/{inside}", request.query_string.decode("utf-8", "replace"))]
        missing = next((name for view in views if (name := source.missing(view)) is not None), None)
        if missing is None:
            return None
        if inside == UPDATE or inside.startswith(("export/", FOLDER)):
            return flask.Response("There is nothing of that name.\n", 404, mimetype="text/plain")
        return flask.Response(_missing_page(*missing, prefix), 404, mimetype="text/html")


def _same_site(request: flask.Request) -> bool:
    """Whether a page of this server sent it; a program that is no browser says nothing about it."""
    site = request.headers.get("Sec-Fetch-Site")
    if site is not None:
        return site in ("same-origin", "none")
    origin = request.headers.get("Origin")
    return origin is None or origin.split("://", 1)[-1] == request.host


def _views_of(body: Any, prefix: str) -> list[View]:
    """Return the views that a callback's request carries."""
    if not isinstance(body, dict):
        return []
    given = [one for name in ("inputs", "state") if isinstance(body.get(name), list) for one in body[name]]
    found = []
    for one in given:
        value = one.get("value") if isinstance(one, dict) and one.get("id") == "view" else None
        if isinstance(value, dict):
            found.append(View.parse(str(value.get("path") or ""), str(value.get("search") or ""), prefix))
    return found


def _missing_page(cluster: str, run: str | None, prefix: str) -> str:
    what = f"Run {fmt.clean(run, 80)}" if run is not None else f"Cluster {fmt.clean(cluster, 80)}"
    home = escape(quote(prefix))
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>perfkit: not found</title><link rel="stylesheet" href="{home}assets/style.css"></head>
<body><main class="pk-main"><div class="pk-card"><div class="pk-empty"><h2>{escape(what)} is not here</h2>
<p>The store knows nothing of that name, or it is not shown to you. The name may be misspelt.</p>
<p><a href="{home}">To the fleet</a></p></div></div></main></body></html>
"""


def add_headers(app: Dash, *, private: bool) -> None:
    """Send what browsers need to know with every answer; call it when all callbacks are there."""
    hashes = "".join(f" {one}" for one in app.csp_hashes())
    headers = {
        "Content-Security-Policy": _POLICY.format(scripts=hashes),
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "same-origin",
        "Cross-Origin-Opener-Policy": "same-origin",
        "Cross-Origin-Resource-Policy": "same-origin",
        "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    }

    @app.server.after_request
    def add(answer: flask.Response) -> flask.Response:
        for name, value in headers.items():
            answer.headers.setdefault(name, value)
        if private and not flask.request.path.rpartition("/_dash-component-suites/")[1]:
            answer.headers["Cache-Control"] = "no-store, private"
        return answer
