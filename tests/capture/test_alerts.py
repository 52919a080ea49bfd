"""Alert rules against a real promtool, and a scrape by a real Prometheus."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import time
import urllib.parse
import urllib.request
from pathlib import Path

import pytest

from perfkit.capture.metrics import METRICS, PREFIX
from perfkit.capture.prometheus import serve_in_thread
from tests.conftest import IN_CI, ROOT

RULES = ROOT / "docs" / "prometheus"


def program(name: str) -> str:
    path = shutil.which(name)
    if path is None and IN_CI:
        pytest.fail(f"CI must have {name}")
    if path is None:
        pytest.skip(f"no {name} here")
    return path


def test_rules_only_use_metrics_that_are_served():
    used = set(
        re.findall(r"\bperfkit_\w+", "".join(re.findall(r"expr: .*(?:\n {10}.*)*", (RULES / "alerts.yml").read_text())))
    )
    assert used
    assert used <= {PREFIX + metric.name for metric in METRICS}


@pytest.mark.slow
def test_rules_fire_when_they_should_and_only_then():
    promtool = program("promtool")
    done = subprocess.run(
        [promtool, "test", "rules", "alerts_test.yml"], cwd=RULES, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def spool_with_metrics(folder: Path) -> Path:
    live = folder / "prod" / "llama" / "attempt-0" / "rank-00000" / "live"
    live.mkdir(parents=True)
    snapshot = {
        "cluster": "prod", "run": 'll"ama', "attempt": 0, "rank": 0, "host": "n1", "time_ns": time.time_ns(),
        "counts": {"steps": 12, "tokens": 4096}, "mfu": 0.41, "phases_ns": {"forward": 10**9}, "step": 12,
    }  # fmt: skip
    (live / "metrics.json").write_text(json.dumps(snapshot))
    return folder


@pytest.mark.slow
def test_a_real_prometheus_scrapes_and_answers(tmp_path):
    prometheus = program("prometheus")
    server = serve_in_thread(spool_with_metrics(tmp_path / "spool"), "127.0.0.1", 0)
    port = free_port()
    config = tmp_path / "prometheus.yml"
    config.write_text(
        f"global: {{scrape_interval: 1s}}\nrule_files: ['{RULES / 'alerts.yml'}']\nscrape_configs:\n"
        f"  - {{job_name: perfkit, static_configs: [{{targets: ['127.0.0.1:{server.server_address[1]}']}}]}}\n"
    )
    command = [
        prometheus, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        rows = wait_for_rows(port, "perfkit_mfu_ratio")
        assert [(row["metric"]["run"], row["value"][1]) for row in rows] == [('ll"ama', "0.41")]
        assert wait_for_rows(port, "perfkit_phase_seconds_total")[0]["metric"]["phase"] == "forward"
    finally:
        process.terminate()
        process.wait(timeout=60)
        server.shutdown()
        server.server_close()


def wait_for_rows(port: int, query: str) -> list[dict]:
    end = time.monotonic() + 120
    while time.monotonic() < end:
        try:
            with urllib.request.urlopen(
                f"http://127.0.0.1:{port}/api/v1/query?query={urllib.parse.quote(query)}"
            ) as answer:
                rows = json.load(answer)["data"]["result"]
                if rows:
                    return rows
        except OSError:
            pass
        time.sleep(0.2)
    raise AssertionError(f"no rows for {query}")
