"""Figures of a run as Prometheus text, read back by Prometheus' own parsers."""

from __future__ import annotations

import pytest
from prometheus_client import parser
from prometheus_client.openmetrics import parser as openmetrics

import perfkit
from perfkit.capture.metrics import METRICS, PREFIX
from perfkit.export.opened import open_run
from perfkit.export.prometheus import EXPORTED, metrics_text
from perfkit.schema import LIFECYCLE, SPANS, STEPS, table_from_rows
from perfkit.store import Store


def samples(text, name):
    found = (sample for family in parser.text_string_to_metric_families(text) for sample in family.samples)
    return {tuple(sorted(s.labels.items())): s.value for s in found if s.name == PREFIX + name}


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """A run of two ranks as capture leaves it: ten steps of 100 ms, one of them slow and one profiled."""
    place = tmp_path_factory.mktemp("store")
    lake = Store(place)
    for rank in (0, 1):
        ends = [10**9 + i * 10**8 + (50_000_000 if i >= 4 else 0) for i in range(10)]
        steps = [
            {"rank": rank, "step": i, "start_ns": end - 10**7, "end_ns": end, "data_wait_ns": 10**6, "tokens": 1000,
             "loss": 2.5, "profiled": i == 8}
            for i, end in enumerate(ends)
        ]  # fmt: skip
        spans = [{"rank": rank, "name": "forward", "start_ns": 10**9, "dur_ns": 3 * 10**7, "depth": 0}]
        life = [{"rank": rank, "kind": "checkpoint_save", "start_ns": 10**9, "end_ns": 3 * 10**9}]
        with lake.writer("c", "job", rank=rank, segment=0, fingerprint=f"f{rank}") as writer:
            for schema, rows in ((STEPS, steps), (SPANS, spans), (LIFECYCLE, life)):
                writer.write(schema.name, table_from_rows(schema, rows))
            writer.commit()
    lake.finalise("c", "job", metadata={"world_size": 2})
    return place


def of_rank(values, rank):
    return next(value for labels, value in values.items() if ("rank", str(rank)) in labels)


def test_recorded_steps_become_the_metrics_of_a_live_run(store):
    with open_run("job", store=store) as opened:
        text = metrics_text(opened)
    assert of_rank(samples(text, "steps_total"), 1) == 10
    assert of_rank(samples(text, "profiled_steps_total"), 0) == 1
    assert of_rank(samples(text, "slow_steps_total"), 0) == 1
    assert of_rank(samples(text, "step_duration_median_seconds"), 0) == pytest.approx(0.1)
    assert of_rank(samples(text, "tokens_total"), 0) == 10_000
    assert of_rank(samples(text, "tokens_per_second"), 0) == pytest.approx(7000 / 0.75)
    assert of_rank(samples(text, "phase_seconds_total"), 0) == pytest.approx(0.03)
    assert of_rank(samples(text, "lifecycle_seconds_total"), 0) == pytest.approx(2.0)
    assert of_rank(samples(text, "world_size"), 0) == 2


def test_what_is_unknown_has_no_sample(store):
    with open_run("job", store=store) as opened:
        text = metrics_text(opened)
    assert samples(text, "mfu_ratio") == {}
    assert samples(text, "parts_off") == {}
    assert ("rank", "") not in [label for labels in samples(text, "steps_total") for label in labels]


def test_traces_give_where_the_time_went(request):
    with open_run(request.config.rootpath / "sample_traces/ddp_gloo") as opened:
        text = metrics_text(opened, openmetrics=True)
    families = {family.name: family for family in openmetrics.text_string_to_metric_families(text)}
    parts = {sample.labels["part"]: sample.value for sample in families["perfkit_time_ratio"].samples}
    assert sum(parts.values()) == pytest.approx(1)
    assert set(parts) == {"compute", "exposed_comm", "exposed_memcpy", "idle"}
    report = perfkit.analyze(request.config.rootpath / "sample_traces/ddp_gloo")
    p50 = report.document["throughput"]["step_time_p50_ns"]
    assert families["perfkit_step_duration_median_seconds"].samples[0].value == pytest.approx(p50 / 1e9)


def test_names_are_those_of_live_metrics_or_new_ones():
    names = [metric.name for metric in EXPORTED]
    assert len(set(names)) == len(names)
    assert {"steps_total", "mfu_ratio", "step_duration_median_seconds"} <= {metric.name for metric in METRICS} & set(
        names
    )
