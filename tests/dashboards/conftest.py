"""Stores for the dashboard's tests, made once per worker, and a browser for those that need one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.dashboards.browsing import launch, new_page, settled
from tests.dashboards.made_stores import make_fleet, make_run
from tests.dashboards.traced_store import make_traced


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two clusters over four days; run `steady` of the first is captured and analysed. Read only."""
    path = tmp_path_factory.mktemp("fleet") / "store"
    make_run(make_fleet(path))
    return path


@pytest.fixture(scope="session")
def source(fleet: Path):
    from perfkit_dashboards.data import Source

    return Source(str(fleet))


@pytest.fixture(scope="session")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the events and the analysis of simulated runs `tp` and `pp` in cluster `lab`. Read only."""
    return make_traced(tmp_path_factory.mktemp("traced"))


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    yield from launch()


@pytest.fixture
def opened(browser: Any) -> Iterator[Callable[..., Any]]:
    """Open an address in a fresh profile, and wait until it is drawn."""
    pages = []

    def open_page(address: str, **look: Any) -> Any:
        page = new_page(browser, **look)
        pages.append(page)
        page.goto(address)
        settled(page)
        return page

    yield open_page
    for page in pages:
        page.context.close()
