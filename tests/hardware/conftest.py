"""Fixtures of the hardware tests: a private configuration folder, and the shared reference tables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def config_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFKIT_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path / "config"


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """Folder of published tables: $PERFKIT_REFERENCE_DATA, else ../shared/reference_data beside the checkout."""
    root = Path(__file__).resolve().parents[2]
    for folder in (os.environ.get("PERFKIT_REFERENCE_DATA"), root.parent / "shared" / "reference_data"):
        if folder and Path(folder).is_dir():
            return Path(folder)
    pytest.skip("no reference data here (set PERFKIT_REFERENCE_DATA)")
