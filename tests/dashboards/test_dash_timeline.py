"""The timeline against the events it is drawn from, and the pages' other promises."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import numpy as np
import perfkit_dashboards
import pyarrow.compute as pc
import pytest
from perfkit_dashboards import data_timeline, figures_timeline, shell, timeline_events
from perfkit_dashboards.app import create_app
from perfkit_dashboards.data import Source
from perfkit_dashboards.pages import PAGES, SECTIONS
from perfkit_dashboards.theme import THEMES
from perfkit_dashboards.view import View

from perfkit.analysis.alignment import StoredClocks
from perfkit.analysis.intervals import union
from perfkit.store import Store

VIEW = View(page="timeline", cluster="lab", run="tp", lanes="all")


@pytest.fixture(scope="module")
def lab(traced: Path) -> Source:
    return Source(str(traced))


def recorded(traced: Path) -> list[tuple[int, str, object, int, int]]:
    """(rank, class, stream or thread, start, end) of every event with a duration, on the clock of the job."""
    store = Store(traced)
    clocks = StoredClocks(store.read("alignment", run="tp"))
    rows = store.read("events", run="tp")
    rows = rows.filter(pc.is_valid(rows["dur_ns"]))
    start = clocks.align(rows["rank"].to_numpy(), rows["start_ns"].to_numpy()).tolist()
    found = []
    for row, begin in zip(
        rows.select(["rank", "class", "stream", "device", "tid", "dur_ns"]).to_pylist(), start, strict=True
    ):
        on_device = row["class"] in data_timeline.DEVICE_WORK
        place = row["stream"] if on_device else row["device"] if row["device"] is not None else row["tid"]
        found.append((row["rank"], row["class"], place, begin, begin + max(row["dur_ns"], 1)))
    return found


def inside(events: list[tuple[int, str, object, int, int]], lo: int, hi: int) -> dict[tuple[int, str], tuple[int, int]]:
    """(rank, class) -> events and busy ns in a window; a stream or thread counts by itself."""
    places: dict[tuple[int, str, object], list[tuple[int, int]]] = {}
    for rank, name, place, begin, end in events:
        if begin < hi and end > lo:
            places.setdefault((rank, name, place), []).append((max(begin, lo), min(end, hi)))
    found: dict[tuple[int, str], tuple[int, int]] = {}
    for (rank, name, _), spans in places.items():
        count, busy = found.get((rank, name), (0, 0))
        found[rank, name] = count + len(spans), busy + union(*np.array(spans).T).total
    return found


def windows(at: data_timeline.Moment) -> list[tuple[int, int]]:
    """The whole step, and ever smaller parts around a few places."""
    found = [(0, at.length_ns)]
    for centre in (0.1, 0.45, 0.8):
        for part in (4, 64, 1024):
            middle, half = int(centre * at.length_ns), at.length_ns // part // 2
            found.append((max(0, middle - half), min(at.length_ns, middle + half)))
    return found


def test_no_class_vanishes_and_sums_are_those_of_the_events_at_every_zoom(lab, traced, monkeypatch):
    monkeypatch.setattr(data_timeline, "MAX_BARS", 300)  # so that much is joined
    whole = data_timeline.moment(lab, VIEW)
    joined, events = 0, recorded(traced)
    for lo, hi in windows(whole):
        view = VIEW.change(lo=lo, hi=hi)
        scene = data_timeline.scene(lab, view)
        at = scene.moment
        assert len(scene.row) <= max(300, len(scene.rows))
        expected = inside(events, at.origin_ns + at.lo, at.origin_ns + at.hi)
        joined += int((scene.count > 1).sum())
        count: dict[tuple[int, str], int] = {}
        for row, number in zip(scene.row.tolist(), scene.count.tolist(), strict=True):
            slot = scene.rows[row].slot
            if slot.kind != "idle":
                key = scene.rows[row].rank, slot.name
                count[key] = count.get(key, 0) + number
        assert count == {key: number for key, (number, _) in expected.items()}, (lo, hi)
        table: dict[tuple[int, str], int] = {}
        for one in data_timeline.shares(lab, view):
            if one["lane"] != "idle":
                key = one["rank"], one["class"]
                table[key] = table.get(key, 0) + one["busy_ns"]
        assert table == {key: busy for key, (_, busy) in expected.items()}, (lo, hi)
        for name in ("compute", "communication", "memcpy"):
            for rank in at.ranks:
                rows = [i for i, row in enumerate(scene.rows) if row.rank == rank and row.slot.name == name]
                drawn = int(scene.busy[np.isin(scene.row, rows)].sum())
                assert drawn == expected.get((rank, name), (0, 0))[1]
    assert joined > 100


def test_idle_time_by_cause_is_that_of_the_analysis(lab, traced):
    gaps = Store(traced).read("gaps", run="tp")
    attribution = Store(traced).read("attribution", run="tp")
    for row in attribution.filter(pc.invert(attribution["carry_in"])).to_pylist():
        mine = gaps.filter(pc.and_(pc.equal(gaps["rank"], row["rank"]), pc.equal(gaps["step"], row["step"])))
        assert pc.sum(mine["idle_ns"]).as_py() == row["idle_ns"]
    scene = data_timeline.scene(lab, VIEW.change(ranks="3"))
    stall = [i for i, row in enumerate(scene.rows) if row.slot.name == "host_late"]
    longest = max(np.flatnonzero(np.isin(scene.row, stall)), key=lambda i: scene.busy[i])
    assert "data_loader" in scene.label[longest]
    assert scene.busy[longest] > 3_000_000


def test_collectives_are_joined_on_aligned_clocks(lab):
    scene = data_timeline.scene(lab, VIEW.change(lanes="device"))
    assert scene.joins
    for join in scene.joins:
        ranks = [scene.rows[row].rank for row, _, _ in join["points"]]
        assert len(set(ranks)) == len(ranks) > 1
        assert all(scene.rows[row].slot.name == "communication" for row, _, _ in join["points"])
        ends = [end for _, _, end in join["points"]]
        u = max(scene.uncertainty[rank] for rank in ranks)
        if join["op"] == "all_reduce":
            assert max(ends) - min(ends) <= 20 * max(u, 1000), "members of an all-reduce end together"
    assert set(scene.uncertainty) == set(range(8))


def answer(client, view: View) -> dict:
    """Return what the browser is sent to draw."""
    found = client.get(f"/export/timeline.json{view.query()}")
    assert found.status_code == 200
    assert len(found.data) <= 500_000
    return found.get_json()


@pytest.mark.parametrize("most", [data_timeline.MAX_BARS, 300])
def test_what_is_sent_has_every_class_of_every_rank_and_all_its_events_at_every_zoom(lab, traced, monkeypatch, most):
    monkeypatch.setattr(data_timeline, "MAX_BARS", most)
    client = create_app(str(traced)).server.test_client()
    for lo, hi in windows(data_timeline.moment(lab, VIEW)):
        view = VIEW.change(lo=lo, hi=hi)
        found, at = answer(client, view), data_timeline.moment(lab, view)
        heads = np.array([y for y, _, _, _ in found["heads"]])
        count: dict[tuple[int, str], int] = {}
        for row, start, end, text in zip(
            *(found["bars"][name] for name in ("row", "start", "end", "hover")), strict=True
        ):
            assert at.lo <= start < end <= at.hi
            rank = at.ranks[int(np.searchsorted(heads, found["rows"]["y"][row])) - 1]
            name = figures_timeline.CLASSES[found["rows"]["class"][row]]
            several = re.match(r"([\d,]+) × ", text)
            assert f"rank {rank}, " in text
            assert figures_timeline.LABELS[name] in text
            events = int(several[1].replace(",", "")) if several else 1
            count[rank, name] = count.get((rank, name), 0) + events
        table: dict[tuple[int, str], int] = {}
        for one in data_timeline.shares(lab, view):
            table[one["rank"], one["class"]] = table.get((one["rank"], one["class"]), 0) + one["events"]
        assert count == table, (lo, hi)
        shown = {figures_timeline.LABELS[name] for _, name in table}
        assert shown <= {label for label, _ in found["legend"]}


def test_the_picture_says_what_it_shows_and_how_sure_the_clocks_are(lab, traced):
    client = create_app(str(traced)).server.test_client()
    for view in (VIEW, VIEW.change(ranks="5", lo=1_000_000, hi=2_000_000), VIEW.change(run="pp", lanes="device")):
        found, scene = answer(client, view), data_timeline.scene(lab, view)
        assert len(found["bars"]["row"]) <= data_timeline.MAX_BARS
        assert len({len(column) for column in found["bars"].values()}) == 1
        assert "events" in found["words"]
        assert [error for _, _, _, error in found["heads"]] == list(scene.uncertainty.values())
        assert all("clock ±" in clock for _, _, clock, _ in found["heads"])
        assert ("clock error, to scale", -1) in {tuple(one) for one in found["legend"]} or len(found["heads"]) == 1
        assert {moment for moment, _, _ in found["edges"]} <= {
            m for pair in scene.moment.windows.values() for m in pair
        }
        assert max(y + h / 2 for y, h in zip(found["rows"]["y"], found["rows"]["h"], strict=True)) <= found["height"]
        assert len(found["joins"]) == len(scene.joins)
        for number, instance in found["instances"].items():
            assert (
                f"{scene.calls[scene.rows[scene.row[int(number)]].rank][int(scene.event[int(number)])]['op']} in "
                in (found["bars"]["hover"][int(number)])
            )
            assert instance >= 0


def test_classes_and_causes_have_colours_of_their_theme_and_the_ones_side_by_side_differ():
    palette = figures_timeline.palette()
    assert set(palette) == set(THEMES)
    for name, theme in THEMES.items():
        colours = dict(zip(figures_timeline.CLASSES, palette[name]["classes"], strict=True))
        assert colours["compute"] == figures_timeline.colour_of("compute", theme)
        assert len({colours[one] for one in ("compute", "communication", "memcpy", "sync")}) == 4
        assert len({colours[one] for one in data_timeline.CAUSES}) == len(data_timeline.CAUSES)


def test_where_there_is_no_step_the_answer_says_what_to_do(fleet):
    client = create_app(str(fleet)).server.test_client()
    title, _, command = answer(client, View(page="timeline", cluster="alpha", run="short"))["empty"]
    assert title == "No step to show"
    assert "perfkit ingest" in command
    assert client.get("/export/timeline.json?cluster=alpha&run=none").status_code == 404


def test_the_script_makes_no_markup_of_what_it_is_sent():
    script = (Path(perfkit_dashboards.__file__).parent / "assets" / "timeline.js").read_text()
    assert not re.findall(
        r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\b|Function\(", script
    )


def test_only_pages_with_a_grid_load_it_before_they_are_drawn(traced):
    client = create_app(str(traced)).server.test_client()
    with_grid = {section.name.split(".")[0] for section in SECTIONS.values() if "grid" in section.render.__module__}
    assert with_grid == set(shell.GRID_PAGES)
    for page in PAGES:
        html = client.get("/" if page == "fleet" else f"/{page}?cluster=lab&run=tp").get_data(as_text=True)
        scripts = [one for one in re.findall(r'<script src="([^"]+)"', html) if "dash_ag_grid" in one]
        late = re.findall(r'<link rel="prefetch" as="script" data-late href="([^"]+)"', html)
        assert (bool(scripts), bool(late)) == (page in with_grid, page not in with_grid)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", (0, 1, 2)), ("1", (1,)), ("0-1", (0, 1)), ("2,0", (2, 0)), ("0-1,1-2", (0, 1, 2)), ("7", (0, 1, 2)),
     ("x,-1,1-x,٣", (0, 1, 2)), ("0-99999999999", (0, 1, 2)), ("1-0", (0, 1, 2)), ("x, 2,1-0", (2,))],
)  # fmt: skip
def test_ranks_are_read_from_text(text, expected):
    assert data_timeline.parse_ranks(text, (0, 1, 2)) == expected
    assert len(data_timeline.parse_ranks("0-4095", tuple(range(4096)))) == data_timeline.MAX_RANKS


def test_a_view_that_makes_no_sense_shows_the_whole_step(lab):
    whole = data_timeline.moment(lab, VIEW)
    for odd in ({"lo": 10**14}, {"lo": 5000, "hi": 10}, {"hi": 10**14}, {"step": 10**9}):
        at = data_timeline.moment(lab, VIEW.change(**odd))
        assert 0 <= at.lo < at.hi <= whole.length_ns
        assert at.step == whole.step
    assert data_timeline.moment(lab, VIEW.change(run="none")) is None
    assert data_timeline.scene(lab, VIEW.change(run="none")) is None


def test_events_are_read_once_per_step_and_rank(lab, monkeypatch):
    data_timeline.scene(lab, VIEW)
    monkeypatch.setattr(timeline_events, "_read_rank", None)
    assert data_timeline.scene(lab, VIEW.change(lo=1000, hi=90_000)) is not None


def test_the_window_is_a_trace_that_perfkit_itself_reads(traced, tmp_path):
    client = create_app(str(traced)).server.test_client()
    answer = client.get("/export/timeline.trace.json.gz?cluster=lab&run=tp&ranks=0,5&lo=100000&hi=3000000")
    assert answer.status_code == 200
    assert "attachment" in answer.headers["Content-Disposition"]
    document = json.loads(gzip.decompress(answer.data))
    assert {event["cat"] for event in document["traceEvents"] if event["ph"] == "X"} >= {"kernel", "cpu_op", "perfkit"}
    assert document["perfkit"]["aligned"]
    for query in ("", "?cluster=lab&run=none", "?cluster=no&run=tp"):
        assert client.get(f"/export/timeline.trace.json.gz{query}").status_code == 404
