"""What a page shows, as its URL says it: all state is here, so that a link shows a colleague the same view.

    view = View.parse("/run", "?cluster=a&run=b")
    view.href()                        -> "/run?cluster=a&run=b"
    view.to("ranks", rank=3).href()    -> a link to elsewhere that keeps the time range

Names are in the query and never in the path: browsers rewrite `.`, `..` and empty path segments, proxies refuse
`%2F`. A value that makes no sense is dropped, never an error: the rest of the link still works.
"""

from __future__ import annotations

import datetime
import re
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import parse_qs, quote, urlencode

PAGES = ("fleet", "cluster", "run", "ranks", "timeline", "collectives", "kernels", "compare", "node-health")
RANGES = {"24h": 1.0, "7d": 7.0, "30d": 30.0, "90d": 90.0, "1y": 365.0, "all": None}
"""Days before the newest data; None is everything."""
DEFAULT_RANGE = "30d"
GPU_QUANTITIES = ("mfu", "throttle", "temperature", "health")
RANK_QUANTITIES = ("own_work", "step_time", "data_wait", "compute", "exposed_comm", "idle")
ORDERS = ("mesh", "rank", "slowest")
LANES = ("device", "all")
OF_A_RUN = ("run", "ranks", "timeline", "collectives", "kernels", "compare", "node-health")
"""Pages that may show one run."""
DAY_NS = 86_400 * 10**9
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_CHOICES: dict[str, tuple[str, ...]] = {"range": tuple(RANGES), "gpu": GPU_QUANTITIES, "quantity": RANK_QUANTITIES,
                                        "order": ORDERS, "lanes": LANES}  # fmt: skip
_NUMBERS = ("attempt", "rank", "first", "last", "step", "lo", "hi", "instance", "device")
_KEPT_BY_LINKS = ("range", "since", "until", "live")


@dataclass(frozen=True, slots=True)
class View:
    """One view. A field at its default is not in the URL."""

    page: str = "fleet"
    cluster: str | None = None
    run: str | None = None
    attempt: int | None = None
    """None is the newest attempt."""
    rank: int | None = None
    range: str = DEFAULT_RANGE
    since: str | None = None
    """First day (UTC), in place of `range`."""
    until: str | None = None
    """Last day (UTC), inclusive."""
    clusters: tuple[str, ...] = ()
    """Fleet: only these; none is all."""
    search: str = ""
    """Fleet: only runs whose name, user or model contains it."""
    gpu: str = "mfu"
    """Cluster: what the heat map of GPUs shows."""
    quantity: str = RANK_QUANTITIES[0]
    """Ranks: what the heat map of ranks shows."""
    order: str = "mesh"
    """Ranks: how the rows are arranged."""
    first: int | None = None
    """Ranks, run: first step shown."""
    last: int | None = None
    step: int | None = None
    """Timeline: the step; None is the middle one."""
    ranks: str = ""
    """Timeline: which ranks, as `0-3,7`; empty is the first ones."""
    lo: int | None = None
    """Timeline: first moment shown, in ns after the start of the step."""
    hi: int | None = None
    lanes: str = "device"
    """Timeline: devices, or host threads too."""
    group: str = ""
    """Collectives: role of the group; empty is all."""
    op: str = ""
    """Collectives: the operation. Kernels: the op that launched them."""
    instance: int | None = None
    """Collectives: one instance."""
    family: str = ""
    """Kernels: one family."""
    kernel: str = ""
    """Kernels: one kernel, by its name."""
    base: str = ""
    """Compare: the run to compare with."""
    base_cluster: str = ""
    """Compare: the cluster of that run; empty is the same."""
    node: str = ""
    """Health: one node."""
    device: int | None = None
    """Health: one GPU of the node."""
    live: bool = True
    """Look for new data while the tab is visible."""

    @classmethod
    def parse(cls, path: str | None, search: str | None, prefix: str = "/") -> View:
        """Read a URL; what makes no sense in it is left at its default. An unknown path is the page `missing`."""
        name = (path or "/").removeprefix(prefix.rstrip("/")).strip("/") or "fleet"
        query = parse_qs((search or "").removeprefix("?"), keep_blank_values=True, errors="replace", max_num_fields=200)
        found: dict[str, Any] = {"page": name if name in PAGES else "missing"}
        for field in fields(cls)[1:]:
            if field.name in query:
                value = _read(field.name, query[field.name])
                if value is not None:
                    found[field.name] = value
        return cls(**found)

    @staticmethod
    def quantity_default() -> str:
        """Return the quantity of a link that names none."""
        return RANK_QUANTITIES[0]

    def query(self) -> str:
        """Return `?…`, or nothing where all is at its default."""
        pairs: list[tuple[str, str]] = []
        for field in fields(self)[1:]:
            value = getattr(self, field.name)
            if value == field.default:
                continue
            if field.name == "clusters":
                pairs += [("clusters", one) for one in value]
            else:
                pairs.append((field.name, {True: "1", False: "0"}[value] if field.name == "live" else str(value)))
        return "?" + urlencode(pairs, quote_via=quote) if pairs else ""

    def href(self, prefix: str = "/") -> str:
        """Return the link to this view."""
        return f"{prefix.rstrip('/')}/{'' if self.page == 'fleet' else self.page}{self.query()}"

    def to(self, page: str, **state: Any) -> View:
        """Return another view over the same time range; cluster and run go along where the page has them."""
        kept = {name: getattr(self, name) for name in _KEPT_BY_LINKS}
        if page != "fleet":
            kept["cluster"] = self.cluster
        if page in OF_A_RUN and self.run is not None:
            kept |= {"run": self.run, "attempt": self.attempt}
        return View(page=page, **{**kept, **state})

    def names(self) -> list[tuple[str, str | None]]:
        """Return every cluster that the link is about, each with its run where it names one."""
        found = [(self.cluster, self.run)]
        if self.base or self.base_cluster:
            found.append((self.base_cluster or self.cluster, self.base or None))
        return [(cluster, run) for cluster, run in found if cluster is not None]

    def change(self, **state: Any) -> View:
        """Return this view with other values."""
        return replace(self, **state)

    def window_ns(self, as_of_ns: int | None) -> tuple[int, int] | None:
        """Return [start, end) of the time range, which ends with the newest data; None is everything."""
        if self.since or self.until:
            first, last = sorted((self.since or self.until or "", self.until or self.since or ""))
            start, end = _day_ns(first), _day_ns(last) + DAY_NS
            return (start if self.since else 0), (end if self.until else 2**62)
        days = RANGES[self.range]
        if days is None or as_of_ns is None:
            return None
        return as_of_ns - round(days * DAY_NS), as_of_ns


def _read(name: str, values: list[str]) -> Any:
    value = values[-1]
    if name == "clusters":
        return tuple(dict.fromkeys(values))
    if name in _CHOICES:
        return value if value in _CHOICES[name] else None
    if name in _NUMBERS:
        return int(value) if re.fullmatch(r"\d{1,15}", value, re.ASCII) else None
    if name in ("since", "until"):
        return value if _is_day(value) else None
    if name == "live":
        return value != "0"
    return value


def _is_day(text: str) -> bool:
    try:
        return bool(_DATE.fullmatch(text)) and datetime.date.fromisoformat(text).year >= 1970
    except ValueError:
        return False


def _day_ns(text: str) -> int:
    return (datetime.date.fromisoformat(text) - datetime.date(1970, 1, 1)).days * DAY_NS
