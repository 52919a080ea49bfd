"""Stores for the dashboard's tests, made once per worker."""

from __future__ import annotations

from pathlib import Path

import pytest

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
