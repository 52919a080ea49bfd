"""A section is a part of a page that is asked for, drawn, exported and fails on its own.

    Section(name="fleet.tiles", render=tiles, uses=("range", "clusters"), table=tiles_table)

`uses` names the fields of the view that change what it shows: a section is drawn again only when one of these, the
data or the theme changed. `table` gives the rows behind it, for CSV. `Context` is all that a section sees.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from .data import Rows, Source
from .theme import Theme
from .view import View


@dataclass(frozen=True)
class Context:
    """What a section is drawn from."""

    source: Source
    view: View
    theme: Theme
    prefix: str = "/"

    def href(self, page: str, **state: Any) -> str:
        """Return the link to another page that keeps the time range."""
        return self.view.to(page, **state).href(self.prefix)

    def link(self, **state: Any) -> str:
        """Return the link to this page with other values."""
        return self.view.change(**state).href(self.prefix)

    def csv(self, name: str) -> str:
        """Return the link to a section's rows."""
        return f"{self.prefix.rstrip('/')}/export/{name}.csv{self.view.query()}"


@dataclass(frozen=True)
class Section:
    """One part of a page."""

    name: str
    render: Callable[[Context], Any]
    uses: tuple[str, ...] = ()
    table: Callable[[Source, View], pa.Table] | None = None
    minimum: int = 120
    """Height in px that is kept free while it is drawn."""
    width: int = 12
    """Columns of twelve."""
    at_once: bool = False
    """Laid out with the page: it asks for nothing, because a script of its own brings what it shows."""

    def key(self, view: View, theme: Theme, version: str) -> str:
        """Return text that changes when the section has to be drawn again."""
        state = [getattr(view, name) for name in ("page", "cluster", "run", "attempt", "live", *self.uses)]
        return f"{self.name}|{theme.name}|{version}|{state!r}"


def rows_of(ask: Callable[[Source, View], Rows]) -> Callable[[Source, View], pa.Table]:
    """Return a question's rows as a table: what `Section.table` is where the rows are small."""

    def make(source: Source, view: View) -> pa.Table:
        return pa.Table.from_pylist(ask(source, view))

    return make


TIME = ("range", "since", "until")
"""Fields that set the time range."""


@dataclass(frozen=True)
class Page:
    """A page: its title, controls and sections, in order."""

    name: str
    head: Callable[[Context], Any]
    sections: tuple[Section, ...] = field(default=())
    wire: Callable[[Any, Source, str], None] | None = None
    """Adds callbacks of its own to an app (app, source, prefix)."""
    command: Callable[[View, Source], str | None] | None = None
    """The `perfkit … --format json` call that gives the page's numbers, if `commands.command_of` does not know it."""
