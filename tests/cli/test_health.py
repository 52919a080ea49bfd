from __future__ import annotations

import json
import os

import pytest

from perfkit.cli.main import main
from tests.capture.stub_library import StubGpus


@pytest.fixture
def stub(tmp_path, monkeypatch):
    pytest.importorskip("pynvml")
    gpus = StubGpus(tmp_path)
    gpus.set(gpus=1)
    for name, value in gpus.environ.items():
        monkeypatch.setenv(name, value)
    return gpus


def test_json_is_one_document_with_every_check(stub, capsys, tmp_path):
    code = main(["health", "--format", "json", "--expect-gpus", "1", "--path", str(tmp_path)])
    out = json.loads(capsys.readouterr().out)
    assert code in (0, 1)  # a container's clock may be unsynchronised
    assert {"gpu", f"disk {tmp_path}", "clock"} <= {check["name"] for check in out["checks"]}
    assert out["severity"] in ("ok", "unknown", "warning")
    assert out["drain_command"] is None


def test_a_fault_exits_with_3_and_names_the_drain_command_without_running_it(stub, capsys, tmp_path, monkeypatch):
    ran = tmp_path / "ran"
    scontrol = tmp_path / "scontrol"
    scontrol.write_text(f'#!/bin/sh\necho "$@" > {ran}\n')
    scontrol.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    assert main(["health", "--expect-gpus", "8", "--path", str(tmp_path)]) == 3
    assert "to drain it: scontrol update NodeName=" in capsys.readouterr().out
    assert not ran.exists()
    assert main(["health", "--expect-gpus", "8", "--path", str(tmp_path), "--apply"]) == 3
    assert "State=DRAIN" in ran.read_text()


@pytest.mark.parametrize("kind", ["slurm", "kubernetes"])
def test_snippets_call_perfkit(kind, capsys):
    assert main(["health", "--snippet", kind]) == 0
    assert "perfkit health --expect-gpus 8" in capsys.readouterr().out


def test_a_store_without_fleet_tables_says_how_to_fill_them(tmp_path, capsys):
    from perfkit.store import Store

    Store(tmp_path / "store").create()
    assert main(["health", "--store", str(tmp_path / "store")]) == 0
    assert "perfkit goodput" in capsys.readouterr().out
