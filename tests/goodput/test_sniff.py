from __future__ import annotations

from perfkit.goodput.sniff import KEEP, judge_rates, rates_of, read_history, sniff

USUAL = [{"cpu copy GB/s": rate} for rate in (9.0, 10.0, 10.0, 10.5, 11.0)]


def severity(rate, earlier=USUAL):
    (check,) = judge_rates({"cpu copy GB/s": rate}, earlier)
    return check.severity


def test_a_node_is_judged_by_its_own_past():
    assert [severity(rate) for rate in (10.2, 9.1, 8.9, 7.6, 7.4)] == ["ok", "ok", "warning", "warning", "fault"]


def test_without_enough_past_there_is_no_verdict():
    assert severity(1.0, USUAL[:4]) == "unknown"


def test_rates_are_named_by_device_and_format():
    entries = [
        {"kind": "gpu", "matmul_tflops": {"bf16": 700.0}, "copy_gbps": 3000.0},
        {
            "kind": "cpu",
            "matmul_tflops": {"fp32": 0.1},
            "allreduce": {"sweep": [{"busbw_gbps": 1.0}, {"busbw_gbps": 4.0}]},
        },
    ]
    assert rates_of(entries) == {
        "gpu 0 matmul bf16 TFLOP/s": 700.0,
        "gpu 0 copy GB/s": 3000.0,
        "cpu matmul fp32 TFLOP/s": 0.1,
        "all-reduce GB/s": 4.0,
    }


def test_results_are_remembered_and_damage_in_the_history_costs_a_line(tmp_path):
    history = tmp_path / "deep" / "sniff.jsonl"
    sniff(history, seconds=0.01)
    history.write_text(history.read_text() + "{broken\n[1]\n" * KEEP)
    checks = sniff(history, seconds=0.01)
    assert all(check.value and check.value > 0 for check in checks)
    assert read_history(history)


def test_a_history_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    checks = sniff(tmp_path / "file" / "x.jsonl", seconds=0.01)
    assert checks[-1].name == "sniff history"
