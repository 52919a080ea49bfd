"""Fixtures of the hardware tests: a private configuration folder."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def config_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("PERFKIT_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path / "config"
