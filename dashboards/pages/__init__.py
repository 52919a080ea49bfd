"""The pages and their sections, by name."""

from __future__ import annotations

from ..section import Page, Section
from .cluster import PAGE as CLUSTER
from .fleet import PAGE as FLEET
from .ranks import PAGE as RANKS
from .run import PAGE as RUN

PAGES: dict[str, Page] = {page.name: page for page in (FLEET, CLUSTER, RUN, RANKS)}
SECTIONS: dict[str, Section] = {section.name: section for page in PAGES.values() for section in page.sections}
