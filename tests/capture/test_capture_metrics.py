"""Metrics: names that OpenMetrics accepts, absent when unknown, served over HTTP."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request

import pytest

from perfkit.capture.loggers import scalars
from perfkit.capture.meter import Meter
from perfkit.capture.metrics import METRICS, OPENMETRICS, PREFIX, read_snapshots, render, render_table
from perfkit.capture.prometheus import serve_in_thread
from perfkit.cli.main import main
from tests.capture.test_meter import feed
from tests.conftest import ROOT


def snapshot(**changes):
    meter = Meter()
    meter.add("spans", ("forward", 3, 0, 2_000_000_000, None, 0, 1, None))
    feed(meter, [100] * 4)
    who = {"cluster": "c", "run": 'r"\\\n', "attempt": 1, "rank": 2, "host": "h", "world_size": 8, "dropped": 0}
    return {**who, "time_ns": time.time_ns(), "overhead_seconds": 0.5, **meter.snapshot(), **changes}


def spool_with(tmp_path, *snapshots):
    for number, one in enumerate(snapshots):
        folder = tmp_path / f"c/r/attempt-{one['attempt']}/rank-{number:05d}/live"
        folder.mkdir(parents=True)
        (folder / "metrics.json").write_text(json.dumps(one))
    return tmp_path


def samples(text):
    found = {}
    for row in text.splitlines():
        if row and not row.startswith("#"):
            name, labels, value = re.fullmatch(r"(\w+)\{(.*)\} (\S+)", row).groups()
            found[name, labels] = float(value)
    return found


def test_names_follow_the_conventions():
    for metric in METRICS:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
    assert len({metric.name for metric in METRICS}) == len(METRICS)


def test_what_is_unknown_has_no_sample():
    text = render([snapshot()])
    assert f"{PREFIX}mfu_ratio" not in text
    assert f"{PREFIX}tokens_total" in text
    assert f"{PREFIX}mfu_ratio" in render([snapshot(mfu=0.4)])


def test_units_are_base_units_and_labels_are_escaped():
    found = {name: value for (name, _), value in samples(render([snapshot()])).items()}
    assert found["perfkit_step_duration_seconds"] == pytest.approx(0.1)
    assert found["perfkit_phase_seconds_total"] == pytest.approx(2.0)
    assert found["perfkit_tokens_total"] == 4000
    assert 'run="r\\"\\\\\\n"' in render([snapshot()])


def test_both_formats_are_accepted_by_the_reference_parsers():
    parser = pytest.importorskip("prometheus_client.parser")
    from prometheus_client.openmetrics import parser as openmetrics

    both = [snapshot(), snapshot(rank=3, mfu=0.5, loss=float("nan"))]
    plain = {f.name: f for f in parser.text_string_to_metric_families(render(both))}
    strict = {f.name: f for f in openmetrics.text_string_to_metric_families(render(both, openmetrics=True))}
    assert set(plain) == set(strict)
    assert len(plain["perfkit_tokens"].samples) == 2


def test_the_newest_attempt_counts_and_what_is_old_or_broken_does_not(tmp_path):
    old = time.time_ns() - 10**13
    spool = spool_with(tmp_path, snapshot(), snapshot(rank=3), snapshot(rank=4, time_ns=old), snapshot(attempt=2))
    (tmp_path / "c/r/attempt-1/rank-00001/live/metrics.json").write_text("{")
    assert [(s["rank"], s["attempt"]) for s in read_snapshots(spool)] == [(2, 2)]


def test_the_endpoint_serves_both_formats_and_says_what_it_has(tmp_path):
    server = serve_in_thread(spool_with(tmp_path, snapshot()), "127.0.0.1", 0)
    base = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        with urllib.request.urlopen(f"{base}/metrics", timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain")
            assert samples(answer.read().decode())
        request = urllib.request.Request(f"{base}/metrics", headers={"Accept": "application/openmetrics-text"})
        with urllib.request.urlopen(request, timeout=60) as answer:
            assert answer.headers["Content-Type"] == OPENMETRICS
            assert answer.read().endswith(b"# EOF\n")
        with urllib.request.urlopen(f"{base}/healthz", timeout=60) as answer:
            assert answer.status == 200
        with pytest.raises(urllib.error.HTTPError, match="404"):
            urllib.request.urlopen(f"{base}/etc/passwd", timeout=60)
    finally:
        server.shutdown()
        server.server_close()


def test_serve_metrics_once_prints_and_a_missing_spool_is_one_line(tmp_path, capsys):
    spool = spool_with(tmp_path, snapshot())
    assert main(["serve-metrics", "--spool", str(spool), "--once"]) == 0
    assert "perfkit_tokens_total" in capsys.readouterr().out
    assert main(["serve-metrics", "--store", str(tmp_path / "nothing"), "--once"]) == 2
    assert "no spool at" in capsys.readouterr().err


def test_the_docs_list_every_metric_as_the_code_has_it():
    assert render_table() in (ROOT / "docs/capture.md").read_text()


def test_loggers_get_numbers_only():
    metrics = feed(Meter(), [100] * 3)
    assert scalars(metrics)["perfkit/tokens_per_second"] == pytest.approx(10_000)
    assert "perfkit/mfu" not in scalars(metrics)
