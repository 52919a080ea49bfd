"""A report as one HTML file that needs nothing else: no network, no plotting library, no server.

    to_html(report) -> str

Charts are SVG (perfkit.report.charts), with their numbers in a table below each; a small script adds
search, sorting, reading of columns and zoom, and without it everything is still there. The policy in the page's head
allows that script and that style sheet by their hashes and nothing else: a name that found a way to be markup could
still not run, load or send anything. A plotting library would put megabytes of script into every file.
"""

from __future__ import annotations

import base64
import hashlib
from importlib import resources
from typing import TYPE_CHECKING, Any

import perfkit
from perfkit.report import format as fmt
from perfkit.report.markup import raw, tag
from perfkit.report.sections import sections

if TYPE_CHECKING:
    from perfkit.report.report import Report


def to_html(report: Report) -> str:
    """Return the page."""
    document = report.document
    shown = [section for section in sections(report) if section.body]
    style, script = _asset("page.css"), _asset("page.js")
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="referrer", content="no-referrer"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", _title(document)),
        tag("style", raw(style)),
    )
    menu = tag("nav", [section.link for section in shown], class_="menu", aria_label="Sections")
    bar = tag(
        "header",
        tag("span", tag("strong", "perfkit"), " analyze", class_="brand"),
        menu,
        tag("button", "Theme", type="button", id="theme", class_="quiet", aria_label="Switch between light and dark"),
        class_="top",
    )
    synthetic = tag(
        "p", "SYNTHETIC: these traces were simulated. No machine ran this.", class_="synthetic", role="note"
    )
    body = tag(
        "body",
        bar,
        synthetic if document["synthetic"] else None,
        tag("main", [section.body for section in shown]),
        tag("footer", f"perfkit {perfkit.__version__} · schema {document['schema_version']} · self-contained, offline"),
        tag("div", id="tip", class_="tip", role="status", aria_live="polite", hidden=True),
        tag("script", raw(script)),
    )
    return f"<!doctype html>\n{tag('html', head, body, lang='en')}\n"


def _asset(name: str) -> str:
    return resources.files("perfkit.report").joinpath(name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"


def _title(document: dict[str, Any]) -> str:
    mfu = document["mfu"]["value"]
    return f"perfkit: MFU {fmt.percent(mfu)}" if mfu is not None else "perfkit: where the time went"
