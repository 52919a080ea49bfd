"""What the tests of capture share: a recorder without a side process, and reading back what it wrote."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import perfkit
from perfkit.capture import api
from perfkit.sources.spool import compact_folder, find_spools
from perfkit.store import Store

LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "TORCHELASTIC", "SLURM_", "PET_", "OMPI_", "PMI", "PERFKIT")


@pytest.fixture(autouse=True)
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Neither the environment of a launcher nor a recorder of another test."""
    import os

    for name in list(os.environ):
        if name.startswith(LAUNCHERS) and name not in ("PERFKIT_TRACES", "PERFKIT_CI"):
            monkeypatch.delenv(name)
    yield
    perfkit.finish()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def init(store: Path) -> Callable[..., Any]:
    """`perfkit.init` without a side process: tests compact by themselves."""

    def start(**settings: Any) -> Any:
        defaults = {"run": "r", "store": store, "side_process": False, "host_seconds": 0, "gc_events": False}
        return api.init(**{**defaults, **settings})

    return start


@pytest.fixture
def compacted(store: Path) -> Callable[[], Store]:
    """End the recording, compact, and open the store."""

    def close() -> Store:
        recorder = perfkit.current()
        if recorder is not None:
            recorder.finish(timeout=60)
        for folder in find_spools(store / "spool"):
            assert not compact_folder(folder, str(store)).problems
        return Store(store)

    return close


@pytest.fixture
def said(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return the lines that perfkit has logged."""
    caplog.set_level(logging.INFO, logger="perfkit")
    return lambda: [record.getMessage() for record in caplog.records if record.name == "perfkit"]
