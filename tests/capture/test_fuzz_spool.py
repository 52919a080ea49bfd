"""Damaged segments: a short run here, a long one when asked."""

from __future__ import annotations

import pytest

from tests.fuzz import fuzz_spool
from tests.fuzz.fuzz_spool import run


def test_a_thousand_damaged_segments():
    tally = run(1, 1000)
    assert sum(tally.values()) == 1000
    assert min(tally[kind] for kind in ("whole", "partly", "refused")) > 50


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_twenty_thousand_damaged_segments():
    assert sum(run(10_000_000, 20_000).values()) == 20_000


def test_the_fuzzer_would_notice_a_checksum_that_is_not_looked_at(monkeypatch):
    monkeypatch.setattr("perfkit.capture.frames._checksum", lambda number, payload, seed: 0)
    with pytest.raises(SystemExit, match="seed"):
        run(1, 500)


def test_the_fuzzer_would_notice_missing_batches_that_nobody_mentions(monkeypatch):
    true = fuzz_spool.decode_segment

    def silent(data):
        segment = true(data)
        segment.damaged, segment.closed = 0, True
        return segment

    monkeypatch.setattr(fuzz_spool, "decode_segment", silent)
    with pytest.raises(SystemExit, match="nothing says so"):
        run(1, 500)
