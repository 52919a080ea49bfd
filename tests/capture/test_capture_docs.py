"""docs/capture.md: its example runs, and its tables are those of the code."""

from __future__ import annotations

import functools
import re

import perfkit
from perfkit.capture.host import NAMES
from perfkit.capture.settings import Settings
from perfkit.store import Store
from tests.conftest import ROOT

TEXT = (ROOT / "docs/capture.md").read_text()


class Batch:
    def numel(self):
        return 8


def test_the_first_example_runs_and_records(tmp_path, monkeypatch, compacted, store):
    code = re.findall(r"```python\n(.*?)```", TEXT, flags=re.DOTALL)[0]
    quiet = functools.partial(perfkit.init, side_process=False)
    monkeypatch.setattr(perfkit, "init", quiet)
    code = code.replace('store="runs/"', f"store={str(store)!r}")
    exec(code, {"loader": [Batch(), Batch()], "model": lambda batch: 1.5, "save": lambda: None})
    tables: Store = compacted()
    assert tables.read("steps", run="llama-8b")["tokens"].to_pylist() == [8, 8]
    kinds = tables.read("lifecycle", run="llama-8b")["kind"].to_pylist()
    assert kinds.count("checkpoint_save") == 2


def test_every_host_counter_is_listed():
    for name, what in NAMES.items():
        assert f"| `{name}` | {what} |" in TEXT


def test_every_setting_that_the_page_names_exists():
    known = set(Settings.__dataclass_fields__)
    named = {
        "buffer_records",
        "spool",
        "profile",
        "log_every",
        "loggers",
        "metrics_port",
        "host_seconds",
        "ingest_traces",
    }
    assert named <= known
    assert all(name in TEXT for name in named)
