"""Spans: nested, threaded, asynchronous, decorated, and closed by exceptions."""

from __future__ import annotations

import asyncio
import threading

import pytest

import perfkit


def spans_of(compacted):
    rows = compacted().read("spans", run="r").to_pylist()
    return [row for row in rows if not row["name"].startswith("perfkit.")]


def names_and_depths(rows):
    return sorted((row["name"], row["depth"]) for row in rows)


def test_nested_spans_know_their_depth_and_lie_inside_each_other(init, compacted):
    pk = init()
    with pk.span("outer"), pk.span("inner"):
        pass
    inner, outer = sorted(spans_of(compacted), key=lambda row: -row["depth"])
    assert (outer["name"], outer["depth"], inner["name"], inner["depth"]) == ("outer", 0, "inner", 1)
    assert outer["start_ns"] <= inner["start_ns"]
    assert inner["start_ns"] + inner["dur_ns"] <= outer["start_ns"] + outer["dur_ns"]


def test_one_span_object_may_be_open_in_itself(init, compacted):
    span = init().span("again")
    with span, span, span:
        pass
    assert names_and_depths(spans_of(compacted)) == [("again", 0), ("again", 1), ("again", 2)]


def test_an_exception_closes_the_span_names_itself_and_passes_through(init, compacted):
    pk = init()
    with pytest.raises(KeyError, match="mine"), pk.span("outer"), pk.span("broken"):
        raise KeyError("mine")
    with pk.span("after"):
        pass
    rows = {row["name"]: row for row in spans_of(compacted)}
    assert (rows["broken"]["error"], rows["outer"]["error"], rows["after"]["error"]) == ("KeyError", "KeyError", None)
    assert rows["after"]["depth"] == 0


def test_threads_have_stacks_of_their_own_even_with_one_span_object(init, compacted):
    pk = init()
    span, gate = pk.span("shared"), threading.Barrier(4)

    def work():
        with span:
            gate.wait(60)
            with span:
                gate.wait(60)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    rows = spans_of(compacted)
    assert names_and_depths(rows) == [("shared", 0)] * 4 + [("shared", 1)] * 4
    assert len({row["tid"] for row in rows}) == 4


def test_tasks_that_take_turns_do_not_close_each_others_spans(init, compacted):
    pk = init()

    async def work(name, events):
        with pk.span(name):
            for event in events:
                await asyncio.sleep(0)
                with pk.span(f"{name}.{event}"):
                    await asyncio.sleep(0)

    async def both():
        with pk.span("all"):
            await asyncio.gather(work("a", "12"), work("b", "123"))

    asyncio.run(both())
    assert names_and_depths(spans_of(compacted)) == [
        ("a", 1), ("a.1", 2), ("a.2", 2), ("all", 0), ("b", 1), ("b.1", 2), ("b.2", 2), ("b.3", 2),
    ]  # fmt: skip


def test_a_decorated_function_coroutine_and_generator_keep_their_meaning(init, compacted):
    pk = init()

    @pk.span("function")
    def double(x):
        """Twice."""
        return 2 * x

    @pk.span("coroutine")
    async def later(x):
        await asyncio.sleep(0)
        return x

    @pk.span("generator")
    def count(n):
        got = yield from range(n)
        return got

    assert (double(4), double.__name__, double.__doc__) == (8, "double", "Twice.")
    assert asyncio.run(later(5)) == 5
    assert list(count(3)) == [0, 1, 2]
    assert names_and_depths(spans_of(compacted)) == [("coroutine", 0), ("function", 0), ("generator", 0)]


def test_a_generator_that_is_left_half_way_does_not_disturb_the_spans_around_it(init, compacted):
    pk = init()

    @pk.span("lazy")
    def lazy():
        yield 1
        yield 2

    steps = lazy()
    with pk.span("first"):
        next(steps)
    with pk.span("second"):
        steps.close()
    assert sorted(row["name"] for row in spans_of(compacted)) == ["first", "lazy", "second"]


def test_a_decorator_before_init_works_after_init(init, compacted):
    @perfkit.span("early")
    def work():
        return 1

    assert work() == 1  # nothing is recorded yet
    init()
    assert work() == 1
    with perfkit.span("late"):
        pass
    assert sorted(row["name"] for row in spans_of(compacted)) == ["early", "late"]


def test_module_level_spans_survive_a_change_of_recorder_while_open(init, compacted):
    init()
    with perfkit.span("left"):
        init(run="r2")
    with perfkit.span("kept"):
        pass
    store = compacted()
    assert [r["name"] for r in store.read("spans", run="r2").to_pylist()] == ["kept"]
