"""Bandwidth as nccl-tests counts it: every collective worked out by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from perfkit.analysis.bandwidth import bandwidths, bus_factor, imbalance, message_bytes, size_bins

MB = 1_000_000


@pytest.mark.parametrize(
    ("op", "ranks", "in_bytes", "out_bytes", "seconds", "algbw", "busbw"),
    [
        # 1 GB reduced over 8 ranks in 5 ms: 200 GB/s, times 2·7/8
        ("all_reduce", 8, 1000 * MB, 1000 * MB, 5e-3, 200.0, 350.0),
        # each of 4 ranks gives 64 MB and gets 256 MB in 1 ms: 256 GB/s, times 3/4
        ("all_gather", 4, 64 * MB, 256 * MB, 1e-3, 256.0, 192.0),
        # each of 4 ranks gives 256 MB and keeps 64 MB
        ("reduce_scatter", 4, 256 * MB, 64 * MB, 1e-3, 256.0, 192.0),
        # 16 ranks exchange 32 MB each in 0.5 ms: 64 GB/s, times 15/16
        ("all_to_all", 16, 32 * MB, 32 * MB, 5e-4, 64.0, 60.0),
        ("gather", 8, 10 * MB, 80 * MB, 1e-3, 80.0, 70.0),
        ("scatter", 8, 80 * MB, 10 * MB, 1e-3, 80.0, 70.0),
        ("broadcast", 8, 100 * MB, 100 * MB, 1e-3, 100.0, 100.0),
        ("reduce", 8, 100 * MB, 100 * MB, 1e-3, 100.0, 100.0),
        ("send", 2, 25 * MB, 25 * MB, 1e-3, 25.0, 25.0),
        ("recv", 2, 25 * MB, 25 * MB, 1e-3, 25.0, 25.0),
    ],
)
def test_bus_bandwidth_is_that_of_nccl_tests(op, ranks, in_bytes, out_bytes, seconds, algbw, busbw):
    size = message_bytes(np.array([0]), [op], np.array([ranks]), np.array([in_bytes]), np.array([out_bytes]))
    found = bandwidths(np.array([0]), [op], np.array([ranks]), size, np.array([round(seconds * 1e9)]))
    assert found[0][0] == pytest.approx(algbw)
    assert found[1][0] == pytest.approx(busbw)


def test_two_ranks_reduce_at_the_rate_of_the_algorithm():
    assert bus_factor("all_reduce", 2) == 1.0


def test_a_barrier_has_no_bandwidth():
    assert bus_factor("barrier", 8) is None
    _, bus = bandwidths(np.array([0]), ["barrier"], np.array([8]), np.array([100]), np.array([100]))
    assert math.isnan(bus[0])


def test_unknown_sizes_and_times_give_no_number():
    algorithm, _ = bandwidths(
        np.array([0, 0, -1]), ["all_reduce"], np.array([8, 8, 8]), np.array([-1, 100, 100]), np.array([10, 0, 10])
    )
    assert np.isnan(algorithm[:2]).all()
    _, bus = bandwidths(np.array([-1]), ["all_reduce"], np.array([8]), np.array([100]), np.array([10]))
    assert math.isnan(bus[0])


def test_in_switch_reduction_is_not_clipped_at_the_wire():
    _, bus = bandwidths(np.array([0]), ["all_reduce"], np.array([8]), np.array([1000 * MB]), np.array([10**6]))
    assert bus[0] == pytest.approx(1750.0)  # no link of that board is so fast


def test_messages_belong_to_the_power_of_two_that_holds_them():
    assert size_bins(np.array([-1, 1, 2, 3, 1024, 1025])).tolist() == [-1, 1, 2, 4, 1024, 2048]


def test_imbalance_is_the_heaviest_rank_over_the_mean_sent_or_received():
    # two instances: one sends 10 10 10 30, one is even but nobody knows what was received
    sent, received = np.array([10, 10, 10, 30, 5, 5]), np.array([15, 15, 15, 15, -1, 5])
    most, mean = imbalance(np.array([0, 4]), sent, received).T
    assert (most / mean).tolist() == [2.0, 1.0]
    assert np.isnan(imbalance(np.array([0]), np.array([-1, 3]), np.array([-1, 3]))).all()


@pytest.mark.parametrize(
    ("op", "in_bytes", "out_bytes", "size", "expected"),
    [
        ("all_gather", 64, -1, 8, 512),  # the shapes of an op tell what goes in
        ("reduce_scatter", -1, 64, 8, 512),  # NCCL's payloads tell what comes out
        ("all_gather", 64, 512, 8, 512),
        ("reduce_scatter", 512, -1, 8, 512),
        ("all_reduce", 64, -1, 8, 64),
        ("all_gather", 64, -1, -1, -1),  # of how many is not known
        ("all_gather", -1, -1, 8, -1),
    ],
)
def test_the_larger_buffer_counts_even_if_only_the_smaller_is_known(op, in_bytes, out_bytes, size, expected):
    found = message_bytes(np.array([0]), [op], np.array([size]), np.array([in_bytes]), np.array([out_bytes]))
    assert found.tolist() == [expected]
