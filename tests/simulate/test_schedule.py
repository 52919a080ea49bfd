from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.errors import UsageError
from perfkit.simulate.schedule import Slot, ideal_bubble_ratio, order


def show(slots: list[Slot]) -> str:
    return " ".join(f"{s.kind}{s.micro_batch}" + (f".{s.chunk}" if any(x.chunk for x in slots) else "") for s in slots)


def test_1f1b_warms_up_then_alternates_then_drains() -> None:
    assert show(order(0, 4, 4)) == "F0 F1 F2 F3 B0 B1 B2 B3"
    assert show(order(2, 4, 4)) == "F0 F1 B0 F2 B1 F3 B2 B3"
    assert show(order(3, 4, 4)) == "F0 B0 F1 B1 F2 B2 F3 B3"


def test_interleaving_runs_a_group_of_micro_batches_through_one_chunk_and_then_the_next() -> None:
    assert show(order(1, 2, 2, 2)) == "F0.0 F1.0 F0.1 B0.1 F1.1 B1.1 B0.0 B1.0"
    assert show(order(0, 2, 2, 2)) == "F0.0 F1.0 F0.1 F1.1 B0.1 B1.1 B0.0 B1.0"


@given(stages=st.integers(1, 6), groups=st.integers(1, 3), chunks=st.integers(1, 3))
def test_every_pass_happens_once_and_forward_first(stages: int, groups: int, chunks: int) -> None:
    chunks = chunks if stages > 1 else 1
    for stage in range(stages):
        slots = order(stage, stages, groups * stages, chunks)
        assert len(set(slots)) == len(slots) == 2 * groups * stages * chunks
        for slot in slots:
            if slot.kind == "B":
                assert slots.index(Slot("F", slot.micro_batch, slot.chunk)) < slots.index(slot)


def test_interleaving_refuses_an_uneven_number_of_micro_batches() -> None:
    with pytest.raises(UsageError, match="multiples"):
        order(0, 4, 6, 2)


def test_the_ideal_bubble_shrinks_with_chunks() -> None:
    assert ideal_bubble_ratio(4, 8) == 3 / 11
    assert ideal_bubble_ratio(4, 8, 2) == 3 / 19
