"""The pages and their sections, by name."""

from __future__ import annotations

from ..section import Page, Section
from .cluster import PAGE as CLUSTER
from .collectives import PAGE as COLLECTIVES
from .compare import PAGE as COMPARE
from .fleet import PAGE as FLEET
from .health import PAGE as HEALTH
from .kernels import PAGE as KERNELS
from .ranks import PAGE as RANKS
from .run import PAGE as RUN
from .timeline import PAGE as TIMELINE

_ALL = (FLEET, CLUSTER, RUN, RANKS, TIMELINE, COLLECTIVES, KERNELS, COMPARE, HEALTH)
PAGES: dict[str, Page] = {page.name: page for page in _ALL}
SECTIONS: dict[str, Section] = {section.name: section for page in PAGES.values() for section in page.sections}
