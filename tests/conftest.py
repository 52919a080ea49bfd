"""Fixtures for all tests."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

ROOT = Path(__file__).resolve().parents[1]
IN_CI = bool(os.environ.get("PERFKIT_CI"))
"""Set by .ci/run: a browser or server that is missing there is a failure, not a skip."""

# no deadlines: a loaded machine is not a bug; CI tries the same examples every time, developers new ones
_PATIENT = {"deadline": None, "suppress_health_check": [hypothesis.HealthCheck.too_slow]}
hypothesis.settings.register_profile("developer", **_PATIENT)
hypothesis.settings.register_profile("ci", **_PATIENT, derandomize=True)
hypothesis.settings.load_profile("ci" if IN_CI else "developer")


def pytest_make_parametrize_id(config: pytest.Config, val: object, argname: str) -> str | None:
    """Name bytes by their kind: packed data holds the time of packing, and workers must collect the same names."""
    return argname if isinstance(val, (bytes, bytearray)) else None


def real_traces() -> Path | None:
    """Folder of real traces: $PERFKIT_TRACES, else ../shared/traces beside the checkout."""
    for folder in (os.environ.get("PERFKIT_TRACES"), ROOT.parent / "shared" / "traces"):
        if folder and Path(folder).is_dir():
            return Path(folder)
    return None


@pytest.fixture(scope="session")
def traces() -> Path:
    folder = real_traces()
    if folder is None:
        pytest.skip("no real traces here (set PERFKIT_TRACES)")
    return folder


@pytest.fixture(scope="session")
def reference_data() -> Path:
    """Folder of published tables: $PERFKIT_REFERENCE_DATA, else ../shared/reference_data beside the checkout."""
    for folder in (os.environ.get("PERFKIT_REFERENCE_DATA"), ROOT.parent / "shared" / "reference_data"):
        if folder and Path(folder).is_dir():
            return Path(folder)
    pytest.skip("no reference data here (set PERFKIT_REFERENCE_DATA)")
