"""Stores for the dashboard's tests, made once per worker."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.dashboards.made_stores import make_fleet, make_run


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
