"""Wire the pages into a Dash app.

    create_app("runs/").run(port=8050)                  a store, or a Source
    create_app("runs/", prefix="/perf/").server         WSGI, behind a proxy that keeps the prefix

The browser keeps the URL in the store `view`. One callback lays a page out; one draws each section, whatever it is:
it looks the section up by name, and turns an error into a card that says so. Rendered sections are kept by what they
depend on (view, theme, file versions), so that twenty people who watch the same page cost as much as one.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import OrderedDict
from pathlib import Path
from typing import Any

from dash import ALL, MATCH, ClientsideFunction, Dash, Input, Output, State, html, no_update
from dash.exceptions import PreventUpdate

from perfkit.errors import PerfkitError

from . import cards, shell
from .access import Access, protect
from .commands import command_of
from .data import Source
from .export import add_routes
from .guard import add_headers, refuse_unknown
from .limits import EXTENSION, HEAVY_PER_MINUTE, Limits, charge
from .notes import add_note_routes
from .pages import PAGES, SECTIONS
from .section import Context, Section
from .theme import LIGHT, THEMES
from .view import View

REFRESH_S = 30
KEPT_SECTIONS = 512
log = logging.getLogger("perfkit.dashboard")


def create_app(
    store: str | Source,
    *,
    prefix: str = "/",
    access: Access | None = None,
    limits: Limits | None = None,
    read_only: bool = False,
) -> Dash:
    """Return the app over a store; with `access` for those who may see it, each their own part."""
    source = store if isinstance(store, Source) else Source(store)
    prefix = "/" + prefix.strip("/") + "/" if prefix.strip("/") else "/"
    app = shell.Frame(
        __name__, title="perfkit", update_title="", url_base_pathname=prefix, serve_locally=True, use_pages=False,
        assets_folder=str(Path(__file__).parent / "assets"), assets_ignore=r"(theme|timeline)\.js", enable_mcp=False,
        health_endpoint="health", suppress_callback_exceptions=True, add_log_handler=False, compress=False,
        index_string=shell.index_string(prefix), on_error=None,
    )  # fmt: skip
    app.layout = shell.frame(source, prefix, REFRESH_S)
    if access is not None:
        source = protect(app.server, access, source, prefix)
        limits = limits or Limits(HEAVY_PER_MINUTE)
    if limits:
        app.server.extensions[EXTENSION] = limits
    refuse_unknown(app.server, source, prefix)
    _add_client_side(app)
    _add_pages(app, source, prefix)
    _add_sections(app, source, prefix)
    _add_status(app, source, prefix)
    for page in PAGES.values():
        if page.wire:
            page.wire(app, source, prefix)
    add_routes(app.server, source, prefix)
    add_note_routes(app.server, source, prefix, writable=not read_only)
    add_headers(app, private=access is not None)
    return app


def context(source: Source, view_data: dict[str, str], prefix: str) -> Context:
    """Return what a section is drawn from, as the browser's `view` says."""
    view = View.parse(str(view_data.get("path") or ""), str(view_data.get("search") or ""), prefix)
    return Context(source, view, THEMES.get(str(view_data.get("theme")), LIGHT), prefix)


def _add_client_side(app: Dash) -> None:
    def js(name: str) -> ClientsideFunction:
        return ClientsideFunction("perfkit", name)

    value, checked = {"control": ALL}, {"control": ALL, "kind": "switch"}
    app.clientside_callback(js("view"), Output("view", "data"), Input("url", "href"))
    app.clientside_callback(
        js("control"),
        Output("nothing", "data", allow_duplicate=True),
        Input(value, "value"),
        Input(checked, "checked"),
        State(value, "id"),
        State(checked, "id"),
        prevent_initial_call=True,
    )
    app.clientside_callback(
        js("show"), Output("nothing", "data", allow_duplicate=True), Input("view", "data"), State(value, "value"),
        State(value, "id"), State(checked, "checked"), State(checked, "id"), prevent_initial_call=True,
    )  # fmt: skip
    app.clientside_callback(
        js("tick"), Output("tick", "data"), Input("clock", "n_intervals"), prevent_initial_call=True
    )
    app.clientside_callback(js("refresh"), Output("refresh", "data"), Input("version", "data"))
    app.clientside_callback(
        js("click"), Output("nothing", "data", allow_duplicate=True), Input({"graph": ALL}, "clickData"),
        State({"graph": ALL}, "figure"), prevent_initial_call=True,
    )  # fmt: skip
    app.clientside_callback(
        js("zoom"), Output("nothing", "data", allow_duplicate=True), Input({"graph": ALL}, "relayoutData"),
        State({"graph": ALL}, "figure"), prevent_initial_call=True,
    )  # fmt: skip


def _add_pages(app: Dash, source: Source, prefix: str) -> None:
    @app.callback(
        Output("page", "children"), Output("crumbs", "children"), Output("shown", "data"),
        Input("view", "data"), State("shown", "data"),
    )  # fmt: skip
    def lay_out_page(view_data: dict[str, str] | None, shown: str | None) -> Any:
        if not view_data:
            raise PreventUpdate
        found = context(source, view_data, prefix)
        view = found.view
        key = json.dumps([view.page, view.cluster, view.run, view.attempt])
        if key == shown:
            raise PreventUpdate
        page = PAGES.get(view.page)
        if page is None:
            return shell.missing(found), shell.crumbs(found), key
        slots = html.Div(
            [
                cards.slot(section, render(section, found), _key(section, found))
                if section.at_once
                else cards.slot(section)
                for section in page.sections
            ],
            className="pk-grid",
        )
        return [guarded(page.name, lambda: page.head(found)), slots], shell.crumbs(found), key


def _add_sections(app: Dash, source: Source, prefix: str) -> None:
    kept: OrderedDict[str, Any] = OrderedDict()
    lock = threading.Lock()

    @app.callback(
        Output({"section": MATCH, "part": "body"}, "children"),
        Output({"section": MATCH, "part": "drawn"}, "data"),
        Input("view", "data"),
        Input("refresh", "data"),
        State({"section": MATCH, "part": "body"}, "id"),
        State({"section": MATCH, "part": "drawn"}, "data"),
    )
    def draw_section(
        view_data: dict[str, str] | None, refresh: str | None, name: dict[str, str], drawn: str | None
    ) -> Any:
        section = SECTIONS.get(name["section"])
        if not view_data or section is None:
            raise PreventUpdate
        found = context(source, view_data, prefix)
        if found.view.page != section.name.split(".")[0]:
            raise PreventUpdate
        key = _key(section, found)
        if key == drawn:
            raise PreventUpdate
        with lock:
            known = kept.get(key)
        if known is None:
            charge()
            known = render(section, found)
            with lock:
                kept[key] = known
                while len(kept) > KEPT_SECTIONS:
                    kept.popitem(last=False)
        return known, key


def _key(section: Section, found: Context) -> str:
    return f"{found.source.scope.name}|{section.key(found.view, found.theme, _version(found))}"


def render(section: Section, found: Context) -> Any:
    """Draw a section; an error becomes a card in its place."""
    return guarded(section.name, lambda: section.render(found))


def guarded(name: str, make: Any) -> Any:
    """Return what `make` makes, or a card that says why it could not."""
    try:
        return make()
    except PerfkitError as error:
        return cards.failure("This part cannot be shown.", str(error))
    except Exception as error:
        log.exception("section %s failed", name)
        return cards.failure(
            "This part failed; the rest of the page is not affected.", f"{type(error).__name__}: {error}"
        )


def _version(found: Context) -> str:
    try:
        return found.source.version(found.view)
    except PerfkitError:
        return "unreadable"


def _add_status(app: Dash, source: Source, prefix: str) -> None:
    @app.callback(
        Output("status", "children"), Output("version", "data"), Output("warnings", "children"),
        Output("command", "children"),
        Input("view", "data"), Input("tick", "data"), State("version", "data"),
    )  # fmt: skip
    def show_status(view_data: dict[str, str] | None, tick: int | None, version: str | None) -> Any:
        if not view_data:
            raise PreventUpdate
        found = context(source, view_data, prefix)
        now = _version(found)
        status = guarded("status", lambda: shell.status(found))
        page = PAGES.get(found.view.page)
        make = page.command if page and page.command else command_of
        command = guarded("command", lambda: shell.command(make(found.view, found.source)))
        warnings = guarded("warnings", lambda: shell.warnings(found))
        return status, no_update if now == version else now, warnings, command


def layout_for_tests(source: Source, path: str, search: str = "", theme: str = "light") -> list[Any]:
    """Return every section of a page as drawn, without a server: for tests and benchmarks."""
    found = context(source, {"path": path, "search": search, "theme": theme}, "/")
    page = PAGES[found.view.page]
    return [page.head(found), *(section.render(found) for section in page.sections)]


__all__ = ["create_app", "layout_for_tests", "render"]
