from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfkit.analysis.analyze import analyze
from perfkit.errors import PerfkitError
from perfkit.report.report import Report
from perfkit.report.sections import MAX_COLUMNS, step_columns
from tests.report.documents import HOSTILE, PARTS, bare, report


class Page(HTMLParser):
    """What a browser would see: elements, attributes, and the text between them."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.ids: list[str] = []
        self.text = ""
        self.open: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]
        self.ids += [value or "" for name, value in attrs if name == "id"]
        if tag not in ("meta", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] not in (["script"], ["style"]):
            self.text += data


@pytest.fixture(scope="module")
def page() -> str:
    return report().to_html()


def test_the_page_is_well_formed_and_ids_are_unique(page: str) -> None:
    seen = Page(page)
    assert seen.open == []
    assert len(seen.ids) == len(set(seen.ids))


def test_the_page_loads_nothing(page: str) -> None:
    seen = Page(page)
    assert not {"link", "iframe", "img", "object", "embed", "base", "form"} & set(seen.tags)
    assert seen.tags.count("script") == 1
    assert not [a for a in seen.attributes if a[1] in ("src", "srcset", "style", "xlink:href") or a[1].startswith("on")]
    assert {value[0] for _, name, value in seen.attributes if name == "href"} == {"#"}
    assert not re.search(r"@import|url\(", page)
    assert "http://" not in page
    assert "https://" not in page


def test_the_policy_allows_only_the_pages_own_script_and_style(page: str) -> None:
    policy = next(v for _, n, v in Page(page).attributes if n == "content" and v.startswith("default-src 'none'"))
    for tag in ("script", "style"):
        content = page.split(f"<{tag}>")[1].split(f"</{tag}>")[0]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_hostile_names_are_text() -> None:
    seen, plain = Page(report(name=HOSTILE).to_html()), Page(report().to_html())
    assert seen.tags == plain.tags
    assert [a[:2] for a in seen.attributes] == [a[:2] for a in plain.attributes]
    assert "</script><script>window.PWNED=1</script>" in seen.text
    assert "\x1b" not in seen.text
    assert "\u202e" not in seen.text


@settings(max_examples=15, deadline=None)
@given(st.text(max_size=40))
def test_no_name_can_add_an_element_or_attribute(name: str) -> None:
    seen, plain = (Page(report(name=n, ranks=2, steps=1, kernels=3).to_html()) for n in (name, "kernel"))
    assert seen.tags == plain.tags
    assert [a[:2] for a in seen.attributes] == [a[:2] for a in plain.attributes]


def test_every_chart_names_a_table_that_is_there(page: str) -> None:
    seen = Page(page)
    tables = {value for _, name, value in seen.attributes if name == "data-table"}
    assert tables == {"steps-table", "ranks-table", "kernels-table"}
    assert tables <= set(seen.ids)


def test_the_waterfall_shows_every_measured_term_and_its_sum(page: str) -> None:
    text = Page(page).text
    for said in (
        "41.20",
        "17.64",
        "100.00",
        "model FLOPs (MFU)",
        "Not measured: throttled clocks",
    ):
        assert said in text


def test_an_empty_document_is_still_a_page() -> None:
    seen = Page(bare().to_html())
    assert "unknown" in seen.text
    assert "SYNTHETIC" not in seen.text
    assert not re.search(r"\b0\.0+\b", seen.text)


def test_synthetic_reports_say_so_and_real_ones_do_not() -> None:
    assert "SYNTHETIC" in Page(report().to_html()).text
    assert "SYNTHETIC" not in Page(report(synthetic=False).to_html()).text


def test_the_same_report_gives_the_same_bytes() -> None:
    assert report().to_html() == report().to_html()


def test_a_report_of_512_ranks_stays_small() -> None:
    assert len(report(ranks=512, steps=20, kernels=600).to_html().encode()) < 2_000_000


def test_many_steps_share_columns_and_the_mean_is_kept() -> None:
    found = report(ranks=1, steps=1000, kernels=1)
    columns, labels, note = step_columns(found)
    assert len(columns) == len(labels) == MAX_COLUMNS
    assert "1,000 steps in 256 columns" in note
    few, names, _ = step_columns(report(ranks=3, steps=4))
    rows = [r for r in report(ranks=3, steps=4).summary["steps"] if r["step"] == 11]
    assert names == ["10", "11", "12", "13"]
    for part in PARTS:
        assert few[1][part] == pytest.approx(sum(r[part] for r in rows) / 3)


def test_windows_without_steps_draw_no_step_chart() -> None:
    summary = report(ranks=2, steps=1).summary
    for row in summary["steps"]:
        row["step"] = None
    assert 'id="steps"' not in Report(summary).to_html()


def test_a_path_that_cannot_be_written_is_a_clear_error(tmp_path: Path) -> None:
    with pytest.raises(PerfkitError, match="cannot write"):
        report().to_html(tmp_path / "no" / "report.html")
    report().to_html(tmp_path / "report.html")
    assert (tmp_path / "report.html").read_text(encoding="utf-8") == report().to_html()


def traced(path: Path, name: str) -> Report:
    """Analyze a trace in which everything that can have a name has this one."""
    events = []
    for step in (0, 1):
        at = 100.0 * step
        for category, shown, start, dur, args in (
            ("user_annotation", f"ProfilerStep#{step}", at, 100, {}),
            ("cpu_op", name, at, 30, {"Input Dims": [[8, 8], [8, 8]]}),
            ("cuda_runtime", "cudaLaunchKernel", at + 25, 1, {"correlation": step + 1}),
            ("kernel", name, at + 35, 60, {"correlation": step + 1, "device": 0, "stream": 7}),
        ):
            event = {
                "ph": "X",
                "cat": category,
                "name": shown,
                "ts": start,
                "dur": dur,
                "pid": 1,
                "tid": 1,
                "args": args,
            }
            events.append(event)
    head = {"deviceProperties": [{"id": 0, "name": name}], "distributedInfo": {"rank": 0, "world_size": 2}}
    path.write_text(json.dumps({**head, "traceEvents": events}))
    found = analyze(path)
    return Report(found.summary, found.tables, found.sources)


def test_hostile_names_in_a_trace_are_text_in_its_report(tmp_path: Path) -> None:
    hostile, plain = (traced(tmp_path / "trace.json", name) for name in (HOSTILE, "kernel"))
    seen, expected = Page(hostile.to_html()), Page(plain.to_html())
    assert "<script>window.PWNED=1</script>" in seen.text
    assert seen.tags == expected.tags
    assert [a[:2] for a in seen.attributes] == [a[:2] for a in expected.attributes]
    assert "\x1b" not in hostile.to_text(details=True)
