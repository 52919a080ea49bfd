from __future__ import annotations

from trace_rows import Row, call, copy, event, events, kernel, nccl, op, span

from perfkit.analysis.analyze import analyze_tables


def io(*rows: Row) -> dict:
    return analyze_tables({"events": events(*rows)}, window="trace").summary["io"]


def test_copies_are_split_by_direction_and_only_what_nothing_hides_is_exposed() -> None:
    rows = [
        kernel(0, 10), nccl(10, 20), copy(5, 30, size=2500), copy(25, 40, name="Memcpy DtoH (Device -> Pinned)"),
        copy(50, 60, name="Memcpy DtoD (Device -> Device)", size=100),
        copy(60, 64, name="Memcpy PtoP (Device -> Device)"),
        event("gpu_memset", "Memset (Device)", 70, 75, device=0),
    ]  # fmt: skip
    got = io(*rows)
    assert {k: got[f"{k}_exposed_ns"] for k in ("h2d", "d2h", "d2d", "p2p", "memset")} == {
        "h2d": 10, "d2h": 10, "d2d": 10, "p2p": 4, "memset": 5}  # fmt: skip
    assert (got["h2d_gbps"], got["d2d_gbps"], got["d2h_gbps"]) == (100.0, 10.0, None)


def test_a_direction_that_does_not_occur_is_unknown_and_not_zero() -> None:
    assert io(kernel(0, 10))["h2d_exposed_ns"] is None


def test_copies_that_overlap_do_not_look_faster_than_the_link() -> None:
    assert io(kernel(0, 1), copy(0, 10, size=100), copy(0, 10, size=100))["h2d_gbps"] == 10.0


def test_host_time_of_the_loader_and_of_checkpoints_is_told_from_what_they_cost() -> None:
    rows = [
        kernel(0, 100), span(50, 180, "enumerate(DataLoader)#x"), op(60, 70), call(190, 191, 1), kernel(200, 210, 1),
        span(120, 130, "save_checkpoint", tid=2),
    ]  # fmt: skip
    got = io(*rows)
    assert (got["data_loader_host_ns"], got["data_wait_ns"]) == (130, 80)
    assert (got["checkpoint_ns"], got["checkpoint_exposed_ns"]) == (10, 0)
