"""The command that prints the numbers of a view as JSON: for a script, a ticket, or who does not believe the picture.

    command_of(View(page="cluster", cluster="prod-a"), source)    -> "perfkit goodput runs/ --by cluster …"

A page that is about something else says so with `Page.command`.
"""

from __future__ import annotations

import datetime
import shlex

from .data import EVERYTHING, Source
from .view import View

ANALYSED = ("ranks", "timeline", "collectives", "kernels")


def command_of(view: View, source: Source) -> str | None:
    """Return the call that gives the numbers of a view; None where there is nothing to ask."""
    if view.page == "fleet":
        return _goodput(view, source, view.clusters)
    if not view.cluster:
        return None
    if view.page == "cluster":
        return _goodput(view, source, (view.cluster,))
    if view.page == "node-health":
        run = ["--run", view.run] if view.run else []
        return text("health", "--store", source.uri, "--cluster", view.cluster, *run)
    if not view.run:
        return None
    if view.page in ANALYSED:
        attempt = ["--attempt", str(view.attempt)] if view.attempt is not None else []
        if not _has_events(view, source):  # the analysis was made of files that the store does not hold
            return text("analyze", "PATH-OF-ITS-TRACES", *_cut(view))
        return text("analyze", view.run, "--store", source.uri, "--cluster", view.cluster, *attempt, *_cut(view))
    return text("goodput", f"{view.cluster}/{view.run}", "--store", source.uri)


def analyse_again(view: View, source: Source) -> str:
    """Return the call that puts a new analysis of a run into the store."""
    if not view.cluster or not view.run:
        return shlex.join(["perfkit", "analyze", "traces/", "--store", source.uri])
    attempt = ["--attempt", str(view.attempt)] if view.attempt is not None else []
    where = ["--store", source.uri, "--cluster", view.cluster, *attempt]
    words = [view.run, *where] if _has_events(view, source) else ["traces/", *where, "--run", view.run]
    return shlex.join(["perfkit", "analyze", *words])


def _has_events(view: View, source: Source) -> bool:
    key = source.run_key(view)
    return key is not None and any(commit.rows.get("events") for commit in source.engine.commits(key)[0])


def text(*words: str) -> str:
    """Return words as a shell takes them."""
    return shlex.join(["perfkit", *words, "--format", "json"])


def _goodput(view: View, source: Source, clusters: tuple[str, ...]) -> str:
    window = source.window(view)
    times = [] if window == EVERYTHING else ["--since", iso(window[0]), "--until", iso(window[1])]
    return text("goodput", source.uri, "--by", "cluster", *times, *(w for c in clusters for w in ("--of-cluster", c)))


def _cut(view: View) -> list[str]:
    if view.page == "timeline" and view.step is not None:
        return ["--steps", f"{view.step}:{view.step + 1}"]
    if view.first is None and view.last is None:
        return []
    return ["--steps", f"{'' if view.first is None else view.first}:{'' if view.last is None else view.last + 1}"]


def iso(time_ns: int) -> str:
    """Return a time as ISO 8601, in UTC; the first microsecond that is not before it."""
    seconds, ns = divmod(min(time_ns, 253_402_300_799 * 10**9), 10**9)
    moment = datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc) + datetime.timedelta(
        microseconds=-(-ns // 1000)
    )
    return moment.isoformat().replace("+00:00", "Z")
