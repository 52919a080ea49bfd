"""The two scanners give the same rows, and those rows are what `json` and `decimal` say."""

from __future__ import annotations

import json
import random
from decimal import ROUND_HALF_EVEN, Decimal

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from perfkit.sources import scan
from perfkit.sources.kineto_fields import PLAN, PLAN_WITH_ARGS
from perfkit.sources.scan import Kind, Plan, Status, scan_chunk
from tests.conftest import IN_CI


def test_where_ci_runs_the_scanner_is_compiled():
    assert scan.have_c_scanner() or not IN_CI


needs_c = pytest.mark.skipif(not scan.have_c_scanner(), reason="the C scanner was not built")

SMALL = Plan(
    groups=(
        (
            ("ph", Kind.TEXT), ("ts", Kind.TIME_ABS), ("dur", Kind.TIME), ("pid", Kind.INT_OR_TEXT),
            ("pid_text", Kind.TEXT),            ("i", Kind.I64), ("raw_args", Kind.JSON), ("unknown_args", Kind.JSON),
        ),
        (("u", Kind.U64), ("f", Kind.F64), ("b", Kind.BOOL), ("j", Kind.JSON), ("t", Kind.TEXT)),
    ),
    fields=(
        (0, "ph", 0, 0), (0, "ts", 0, 1), (0, "dur", 0, 2), (0, "pid", 0, 3), (1, "i", 0, 5),
        (1, "u", 1, 0), (1, "f", 1, 1), (1, "b", 1, 2), (1, "j", 1, 3), (1, "t", 1, 4),
    ),
)  # fmt: skip


def run(text: str | bytes, *, plan: Plan = SMALL, scanner: str, base_ns: int = 0) -> scan.ScanResult:
    data = text.encode() if isinstance(text, str) else text
    return scan_chunk(data + bytes(scan.PADDING), 0, len(data), plan, base_ns=base_ns, scanner=scanner)


def rows(result: scan.ScanResult) -> list[list[dict[str, object]]]:
    for batch in result.columns.groups:
        batch.validate(full=True)
    return [batch.to_pylist() for batch in result.columns.groups]


def check_same(text: str | bytes, plan: Plan = SMALL) -> scan.ScanResult:
    """Scan with both, compare everything, return the result of C."""
    fast, slow = run(text, plan=plan, scanner="c"), run(text, plan=plan, scanner="python")
    assert fast.status == slow.status
    assert fast.consumed == slow.consumed
    assert (fast.num_events, fast.not_events) == (slow.num_events, slow.not_events)
    assert repr(rows(fast)) == repr(rows(slow))  # repr: NaN and -0.0 count too
    assert list(fast.columns.mismatches.items()) == list(slow.columns.mismatches.items())
    assert list(fast.columns.out_of_range.items()) == list(slow.columns.out_of_range.items())
    return fast


@pytest.fixture(params=["c", "python"])
def one(request: pytest.FixtureRequest):
    """Scan one event and return its row of group 0 and of group 1 (None if it has none)."""
    if request.param == "c" and not scan.have_c_scanner():
        pytest.skip("the C scanner was not built")

    def scan_one(event: str) -> tuple[dict[str, object], dict[str, object] | None]:
        result = run(event, scanner=request.param)
        assert result.status == Status.OK
        first, second = rows(result)
        return first[0], second[0] if second else None

    return scan_one


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1661203762610763", 1661203762610763000),
        ("1661203762610763.001", 1661203762610763001),
        ("0.0015", 2),  # halves go to the even neighbour
        ("0.0025", 2),
        ("0.00250000000000000000000000001", 3),
        ("848671.6747283936", 848671675),
        ("1e15", 10**18),
        ("1.5E-3", 2),
        ("0.5e-3", 0),
        ("0.50001e-3", 1),
        ("-3.25", -3250),
        ("9223372036854775.807", 2**63 - 1),
        ('"12.5"', 12500),
        ("1e-400000000000000000000", 0),
        ("0e400000000000000000000", 0),
    ],
)
def test_times_are_parsed_from_their_digits(one, text, ns):
    assert one(f'{{"dur": {text}}}')[0]["dur"] == ns


@pytest.mark.parametrize("text", ["9223372036854775.808", "1e999999999999", "NaN", "-inf", '"soon"', "true", "[1]"])
def test_a_time_that_is_none_is_null(one, text):
    assert one(f'{{"dur": {text}}}')[0]["dur"] is None


def test_integers_keep_all_64_bits(one):
    event, side = one('{"args": {"i": -9223372036854775808, "u": 18446744073709551615}}')
    assert event["i"] == -(2**63)
    assert side["u"] == 2**64 - 1


def test_an_integer_may_be_spelled_as_a_float_or_a_string(one):
    assert one('{"args": {"i": 7.0}}')[0]["i"] == 7
    assert one('{"args": {"i": "0042"}}')[0]["i"] == 42
    assert one('{"args": {"i": 1.2e1}}')[0]["i"] == 12


def test_what_is_no_integer_is_null_and_counted():
    result = run('{"args": {"i": 7.5}}, {"args": {"i": "x"}}, {"args": {"i": 9223372036854775808}}', scanner="auto")
    assert [row["i"] for row in rows(result)[0]] == [None, None, None]
    assert result.columns.mismatches == {"i": (2, 0)}
    assert result.columns.out_of_range == {"i": (1, 2)}


@pytest.mark.parametrize("scanner", ["c", "python"])
def test_what_does_not_fit_is_located_by_its_first_event(scanner):
    if scanner == "c" and not scan.have_c_scanner():
        pytest.skip("the C scanner was not built")
    columns = run(
        '{}, {"args": {"f": "x"}}, {"args": {"i": 1.5}}, {"args": {"i": "x", "f": "x"}}', scanner=scanner
    ).columns
    assert list(columns.mismatches.items()) == [("i", (2, 2)), ("f", (2, 1))]
    columns = run('{}, {"args": {"i": 1.5}, "x": ;}', scanner=scanner).columns
    assert columns.mismatches == {}


def test_a_pid_is_a_number_or_a_name(one):
    assert one('{"pid": "123"}')[0]["pid"] == 123
    spans = one('{"pid": "Spans"}')[0]
    assert (spans["pid"], spans["pid_text"]) == (None, "Spans")


def test_json_text_is_canonical(one):
    _, side = one(r'{"args": {"j": [ [1, 2.50], {"a" : "\u0041\n\/" }, NaN, null, true ]}}')
    assert side["j"] == r'[[1,2.50],{"a":"A\n/"},null,null,true]'


def test_strings_are_decoded_and_lone_surrogates_replaced(one):
    _, side = one(r'{"args": {"t": "\ud83d\ude00 \ud83d \u00e9"}}')
    assert side["t"] == "😀 \ufffd é"


def test_a_side_row_exists_only_where_a_field_has_a_value():
    result = run('{"args": {"i": 1}}, {"args": {"u": null}}, {"args": {"t": "x"}}', scanner="auto")
    assert [row["event"] for row in rows(result)[1]] == [2]


def test_the_last_of_repeated_keys_counts(one):
    event, side = one('{"ts": 1, "ts": 2, "args": {"u": 1, "u": "x"}}')
    assert event["ts"] == 2000
    assert side["u"] is None
    event, _ = one('{"args": {"i": 1, "x": 1}, "args": {"y": 2}}')
    assert (event["i"], event["unknown_args"]) == (None, '{"y":2}')


def test_args_of_counters_and_metadata_are_kept_whole(one):
    assert one('{"ph": "C", "args": {"i": 1, "sm": 0.5}}')[0]["raw_args"] == '{"i":1,"sm":0.5}'
    assert one('{"args": {"name": "python3"}, "ph": "M"}')[0]["raw_args"] == '{"name":"python3"}'
    assert one('{"ph": "X", "args": {"i": 1}}')[0]["raw_args"] is None


@pytest.mark.parametrize(
    ("text", "status", "kept"),
    [
        ('{"ts": 1}, {"ts": 2', Status.MORE, 1),
        ('{"ts": 1}, {"ts": 2}', Status.OK, 2),
        ('{"ts": 1}, {"ts": 2} ], "traceName": "x"}', Status.END, 2),
        ('{"ts": 1}, {"ts": 2;}', Status.BAD, 1),
        ('{"ts": 1}, {"ts": 01}', Status.BAD, 1),
        ('{"ts": 1}, {"ts": 1,}', Status.BAD, 1),
        ('{"ts": 1}, {"name": "\\x"}', Status.BAD, 1),
        ('{"ts": 1}, {"name": "\\u12', Status.MORE, 1),
        ('{"ts": 1}, {"a": tru', Status.MORE, 1),
        ('{"ts": 1}, {"name": "a\\', Status.MORE, 1),
        ('{"ts": 1}, {"na\\"me', Status.MORE, 1),
        ('{"ts": 1}, {"name": "a\\x', Status.BAD, 1),
        ('{"ts": 1}, {1: 2', Status.BAD, 1),
        ('{"ts": 1}, {"a": trux', Status.BAD, 1),
        ('{"ts": 1}, 5, "text", [1], null, {"ts": 2}', Status.OK, 2),
        ('{"ts": 1}, {"a": ' + "[" * 200 + "]" * 200 + "}", Status.DEEP, 1),
        ('{"ts": 1}, {"a": ' + "[" * 100_000, Status.DEEP, 1),
        ("", Status.OK, 0),
    ],
)
@pytest.mark.parametrize("scanner", ["c", "python"])
def test_a_broken_or_unfinished_element_costs_nothing_before_it(text, status, kept, scanner):
    if scanner == "c" and not scan.have_c_scanner():
        pytest.skip("the C scanner was not built")
    result = run(text, scanner=scanner)
    assert (result.status, result.num_events) == (status, kept)


def test_a_missing_padding_is_refused():
    if not scan.have_c_scanner():
        pytest.skip("the C scanner was not built")
    with pytest.raises(ValueError, match="padding"):
        scan_chunk(b"{}", 0, 2, SMALL, scanner="c")


KEYS = st.sampled_from(["ph", "ts", "dur", "pid", "args", "i", "u", "f", "b", "j", "t", "x", "\\u0074s", "", "é"])
NUMBERS = st.one_of(
    st.integers(-(2**70), 2**70).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.decimals(allow_nan=False, allow_infinity=False, places=4, min_value=-(10**16), max_value=10**16).map(str),
    st.builds("{}e{}".format, st.integers(-99, 99), st.integers(-40, 40)),
    st.sampled_from(["NaN", "-Infinity", "nan", "-inf", "1E400", "0.0005", "-0", "-0.0"]),
)
STRINGS = st.one_of(
    st.text(max_size=8).map(json.dumps),
    st.text(max_size=8).map(lambda text: json.dumps(text, ensure_ascii=False)),
    NUMBERS.map('"{}"'.format),
    st.sampled_from(["X", "C", "M", "B"]).map(json.dumps),
)
SPACE = st.sampled_from(["", " ", "\n  ", "\t"])
SCALARS = st.one_of(NUMBERS, STRINGS, st.sampled_from(["true", "false", "null"]))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.tuples(SPACE, st.lists(inner, max_size=4)).map(lambda p: "[" + p[0] + ("," + p[0]).join(p[1]) + "]"),
        st.tuples(SPACE, st.lists(st.tuples(KEYS, inner), max_size=4)).map(
            lambda p: "{" + p[0] + ("," + p[0]).join(f'"{k}":{p[0]}{v}' for k, v in p[1]) + "}"
        ),
    ),
    max_leaves=8,
)
EVENTS = st.tuples(SPACE, st.lists(st.tuples(KEYS, VALUES), max_size=7)).map(
    lambda p: "{" + p[0] + f",{p[0]}".join(f'"{k}" :{p[0]}{v}' for k, v in p[1]) + p[0] + "}"
)
CHUNKS = st.tuples(st.lists(st.one_of(EVENTS, EVENTS, VALUES), max_size=6), SPACE).map(
    lambda p: ("," + p[1]).join(p[0])
)


@needs_c
@settings(max_examples=400, deadline=None)
@given(CHUNKS)
@example('{"ph":"M","args":{"a":[NaN]}}')
@example("-Infinity")
@example("nan")
@example("inf")
@example("-inf")
@example("-nan")
@example("-infinit")
@example("-inf ,1")
@example('{"t":1,"t":"\\ud800"}')
def test_both_scanners_agree_on_valid_json(text):
    if "\ud800" <= max(text, default="") <= "\udfff":
        return
    result = check_same(text)
    assert result.status in (Status.OK, Status.MORE)  # MORE: a bare number at the very end may go on


@needs_c
@settings(max_examples=400, deadline=None)
@given(CHUNKS, st.integers(0, 2**32))
def test_both_scanners_agree_on_damaged_json(text, seed):
    data = bytearray(text.encode())
    dice = random.Random(seed)
    for _ in range(dice.randint(1, 3)):
        at = dice.randrange(len(data) + 1)
        data[at : at + dice.randint(0, 2)] = dice.choice(
            [b"", b'"', b"{", b"]", b",", b"\\", b"e", b"9", b"-", b"t", b"\n", b"\xff", b"\xc3", b"\xed\xa0\x80"]
        )
    check_same(bytes(data))


@pytest.mark.parametrize("scanner", ["c", "python"])
@pytest.mark.parametrize("where", [0, 10, 100_000, 299_999])
@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xe2\x82", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf5\x80\x80\x80"])
def test_bytes_that_are_not_utf8_are_found_wherever_they_stand(scanner, where, bad):
    if scanner == "c" and not scan.have_c_scanner():
        pytest.skip("the C scanner was not built")
    long = ("é" * 50_000 + "x" * 200_000).encode()
    for text in (b'{"name": "%b"}', b'{"ts": 1}], "more": "%b"}', b'{"ts": ;}, "%b"'):
        assert run(text % long, scanner=scanner).status != Status.NOT_UTF8
        result = run(text % (long[:where] + bad + long[where:]), scanner=scanner)
        assert (result.status, result.consumed, result.num_events) == (Status.NOT_UTF8, 0, 0)
        assert all(batch.num_rows == 0 for batch in result.columns.groups)


@needs_c
def test_a_token_that_begins_like_the_one_that_followed_before_is_another():
    # The C scanner guesses that tokens come in the order of the last time, and compares bytes.
    names = ["a", "ab", "a", "abc", "a", "ab", "a", 1, 12, 1, 12, 123, "a", [1], [1, 2], [1], None, "a\\", "a", ""]
    result = check_same(",".join(json.dumps({"args": {"t": name, "j": name}}) for name in names * 3))
    assert result.num_events == 3 * len(names)


@needs_c
def test_a_number_is_never_guessed_from_the_text_before_it():
    # `1` after `[1]` was taken for the beginning of `1.25` after the next `[1]`.
    values = [[1], 1, [1], 1.25, "a", 12, "a", 123, "a", True, "a", None, {"b": 1}, -1, {"b": 1}, -12]
    result = check_same(",".join(json.dumps({"args": {"t": value, "j": value}}) for value in values * 2))
    assert result.num_events == 2 * len(values)


@needs_c
@settings(max_examples=200, deadline=None)
@given(CHUNKS, st.data())
def test_a_cut_anywhere_keeps_all_whole_elements(text, data):
    if not text:
        return
    cut = data.draw(st.integers(0, len(text)))
    first = run(text[:cut], scanner="c")
    assert first.status in (Status.OK, Status.MORE)
    rest = text.encode()[first.consumed :]
    second = run(rest, scanner="c")
    whole = run(text, scanner="c")
    assert first.num_events + second.num_events == whole.num_events


@settings(max_examples=300, deadline=None)
@given(st.one_of(NUMBERS, st.decimals(allow_nan=False, allow_infinity=False).map(str)))
def test_times_equal_decimal(text):
    if not text.lower().lstrip("-").startswith(("n", "i")):
        exact = (Decimal(text) * 1000).quantize(Decimal(1), ROUND_HALF_EVEN) if abs(Decimal(text)) < 10**18 else None
        value = rows(run(f'{{"dur": {text.replace("E+", "E")}}}', scanner="auto"))[0][0]["dur"]
        assert value == (int(exact) if exact is not None and -(2**63) <= exact < 2**63 else None)


@needs_c
def test_both_scanners_agree_on_a_kineto_event_with_all_columns():
    event = {"ph": "X", "cat": "kernel", "name": "k", "ts": 1.5, "dur": 2, "pid": 0, "tid": 7, "args": {}}
    for _, key, _, _ in PLAN.fields:
        event["args"].setdefault(key, 3)
    result = check_same(json.dumps(event), PLAN_WITH_ARGS)
    assert result.num_events == 1
    assert all(batch.num_rows == 1 for batch in result.columns.groups)
    assert pa.Table.from_batches([result.columns.groups[0]])["name"].to_pylist() == ["k"]


@needs_c
def test_an_earlier_scan_leaves_no_trace_in_a_later_one():
    # The C scanner keeps its memory from scan to scan: rows, codes, counts and keys must not shine through.
    texts = [
        '{"ph":"X","ts":1,"args":{"b":true,"t":"x","u":1,"i":1,"k":2}},{"ph":"Y","pid":"a","args":{"b":true,"j":[1]}}',
        '{"ph":"Y"},{},{}',
        '{"ph":"X","pid":"a","args":{"b":true,"j":[1],"t":"z"',
        '{"args":{}},{"args":{"b":false}},{"args":{"t":null}}',
        '{"ts":"x","args":{"i":"x","u":-1}}',
        '{"ph":"é","args":{"\\u0069":7,"i":8}}',
        "{},{}]",
    ]
    for first in texts:
        for second in texts:
            check_same(first)
            check_same(second)


@needs_c
@pytest.mark.parametrize("digits", [*range(1, 25)])
def test_numbers_of_every_length_agree(digits):
    number = "1234567890123456789012345"[:digits]
    forms = [
        number,
        "9" * digits,
        f"-{number}",
        f"{number}.5",
        f"{number}.125",
        f"{number}.1234",
        f"{number}.",
        f"0{number}",
    ]
    forms += [
        f"{number}e2",
        f"{number}E-3",
        f'"{number}"',
        f'"-{number}"',
        f'"{number}.25"',
        f"{number}x",
        "9" + "0" * digits,
    ]
    for form in forms:
        check_same(
            f'{{"ph":"X","ts":{form},"dur":{form},"pid":{form},"args":{{"i":{form},"u":{form},"f":{form},"k":{form}}}}}'
        )
        check_same(f'{{"ts":{form}')  # the number may go on


@needs_c
def test_keys_in_another_order_or_layout_are_found_again():
    one, two = '{"ph":"X","ts":1,"args":{"i":1,"k":[],"u":2}}', '{ "ts" : 2 , "args" : { "u":3 , "i" :4 } , "ph":"Y" }'
    three, four = '{"ph":"X","ts":1 ,"args":{"i":1,"k":5,"u":2},"ts":7}', '{"ph": "X","ts": 1,"args":{ },"pid":1}'
    result = check_same(",".join([one, two, one, three, four, two, four, one] * 3))
    assert result.num_events == 24
