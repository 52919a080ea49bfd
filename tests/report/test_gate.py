from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfkit.errors import GateTripped, UsageError
from perfkit.report.gate import SHORT, GateUnknown, check, parse
from perfkit.report.json_schema import RATIO, complete, numeric_paths
from tests.report.documents import bare, report

DOCUMENT = report(mfu=0.41).document


def outcome(*expressions: str, document: dict = DOCUMENT) -> int:
    try:
        check([parse(e) for e in expressions], document)
    except (GateTripped, GateUnknown) as error:
        return error.exit_code
    return 0


@pytest.mark.parametrize(
    ("expression", "code"),
    [
        ("mfu<0.38", 0),
        ("mfu<0.42", 1),
        ("mfu < 42%", 1),
        ("mfu<=0.41", 1),
        ("mfu>=0.5", 0),
        ("mfu.value != 0.41", 0),
        ("mfu==41%", 1),
        ("step_time_p95 > 70ms", 0),
        ("step_time_p95 > 0.05s", 1),
        ("throughput.step_time_p95_ns > 60000000", 1),
        ("exposed_comm > 10%", 1),
        ("exposed_comm > 0.2, mfu < 0.5", 1),
        ("exposed_comm > 0.2 or mfu < 0.3", 0),
        ("findings > 3", 1),
        ("finding_points > 7", 2),  # one finding has no points
        ("rejected > 0", 1),
        ("ranks_missing > 1", 0),
        ("waterfall.recompute > 1", 1),
        ("waterfall.idle_host.python > 90", 0),
        ("waterfall.exposed_wait > 1", 2),  # not measured at the top
        ("waterfall.unsplit_comm.exposed_wait > 1", 2),  # listed, and not measured
        ("waterfall.no_such_term > 1", 2),
    ],
)
def test_a_condition_passes_trips_or_cannot_be_told(expression: str, code: int) -> None:
    assert outcome(expression) == code


def test_a_value_that_is_null_never_passes() -> None:
    unknown = report(mfu=None).document
    for compare in ("<", "<=", ">", ">=", "==", "!="):
        assert outcome(f"mfu {compare} 0.5", document=unknown) == 2
    with pytest.raises(GateUnknown, match=r"mfu is unknown \(pass --model NAME\), so `mfu<0.5` cannot pass"):
        check([parse("mfu<0.5")], unknown)


@pytest.mark.parametrize("name", [*SHORT, *numeric_paths()])
def test_every_name_of_an_empty_document_is_unknown_or_counts_nothing(name: str) -> None:
    unit = "ms" if SHORT.get(name, ("",))[0] == "ns" else ""
    code = outcome(f"{name} < 1{unit}", document=bare().document)
    assert code == (1 if name == "rejected" else 2)


def test_what_holds_outranks_what_is_unknown_and_both_are_said() -> None:
    document = report(mfu=None).document
    with pytest.raises(GateTripped, match=r"findings > 1 holds: findings is 4; mfu is unknown") as caught:
        check([parse("mfu<0.5, findings > 1")], document)
    assert caught.value.exit_code == 1


def test_a_time_that_trips_is_said_with_its_unit() -> None:
    with pytest.raises(GateTripped, match=r"step_time_p95>50ms holds: step_time_p95 is 64\.0 ms"):
        check([parse("step_time_p95>50ms")], DOCUMENT)


def test_conditions_may_be_given_many_times() -> None:
    assert outcome("mfu<0.1", "findings>100") == 0
    assert outcome("mfu<0.1", "findings>1") == 1


def test_infinity_and_nan_count_as_unknown() -> None:
    for odd in (float("nan"), float("inf")):
        assert outcome("mfu<0.5", document=complete({"mfu": {"value": odd}})) == 2


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("", "is no condition"),
        ("mfu", "is no condition"),
        ("mfu<", "is no condition"),
        ("mfu<0.3 and idle<0.1", "is no condition"),
        ("mfu<0.3,", "is no condition"),
        ("mfu<0.3x", "'x' is no unit"),
        ("mfu<38", "fraction from 0 to 1.*write 0.38 or 38%"),
        ("mfu<38ms", "is no time"),
        ("step_time_p95>70", "needs a unit.*70ms"),
        ("tokens_per_second<5%", "is no fraction"),
        ("mfuu<0.3", "nothing is called 'mfuu'; did you mean mfu"),
        ("mfu.convention==1", "nothing is called"),
        ("__class__<1", "nothing is called"),
    ],
)
def test_an_expression_that_makes_no_sense_says_what_to_write(expression: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse(expression)


@given(st.text(max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    with contextlib.suppress(UsageError):
        parse(text)


@given(
    st.sampled_from([n for n, (kind, *_) in SHORT.items() if kind == RATIO]),
    st.sampled_from(["<", "<=", ">", ">=", "==", "!="]),
    st.floats(0, 1, allow_nan=False),
)
def test_a_condition_and_its_negation_never_agree(name: str, compare: str, limit: float) -> None:
    opposite = {"<": ">=", "<=": ">", ">": "<=", ">=": "<", "==": "!=", "!=": "=="}[compare]
    codes = {outcome(f"{name}{compare}{limit!r}"), outcome(f"{name}{opposite}{limit!r}")}
    assert codes == {0, 1}
