"""Stores that are empty, half-written, being written, of another version, or unreadable in part."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from perfkit_dashboards import engine
from perfkit_dashboards.app import context, create_app, render
from perfkit_dashboards.data import Source
from perfkit_dashboards.engine import Engine
from perfkit_dashboards.pages import PAGES
from perfkit_dashboards.shell import status, warnings

from perfkit.schema import SCHEMA_VERSION, VERSION_KEY
from perfkit.store import Store
from perfkit.store.layout import RunKey
from tests.dashboards.made_stores import START, date_of, make_fleet, make_run, run_hours, write_days

LINKS = ("/", "/cluster?cluster=beta", "/run?cluster=alpha&run=steady", "/ranks?cluster=alpha&run=steady&rank=5")


def drawn(source: Source, link: str) -> dict[str, str]:
    """Return every section of a page, as the JSON that a browser gets."""
    path, _, query = link.partition("?")
    found = context(source, {"path": path, "search": f"?{query}&range=all", "theme": "light"}, "/")
    parts: dict[str, Any] = {"head": PAGES[found.view.page].head(found)}
    parts |= {section.name: render(section, found) for section in PAGES[found.view.page].sections}
    parts |= {"warnings": warnings(found), "status": status(found)}
    return {name: json.dumps(part, default=lambda o: o.to_plotly_json()) for name, part in parts.items()}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    make_run(make_fleet(path))
    return path


@pytest.mark.parametrize("link", LINKS)
def test_an_empty_store_says_what_to_do(tmp_path: Path, link: str) -> None:
    parts = drawn(Source(str(tmp_path / "nothing")), link)
    assert not any("failed" in part or "cannot be shown" in part for part in parts.values())
    assert "no data" in parts["status"]
    first = parts[next(section.name for section in PAGES[link.split("?")[0].strip("/") or "fleet"].sections)]
    assert "perfkit " in first
    assert str(tmp_path / "nothing") in first
    assert not (tmp_path / "nothing").exists()


@pytest.mark.parametrize("link", LINKS)
def test_a_whole_store_has_nothing_to_warn_of(store: Path, link: str) -> None:
    parts = drawn(Source(str(store)), link)
    assert not any("pk-error" in part for part in parts.values())
    assert parts["warnings"] == "[]"
    assert "synthetic data" in parts["status"]
    assert "stale" in parts["status"]


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "text"])
def test_a_damaged_day_is_named_and_the_others_are_shown(store: Path, damage: str) -> None:
    victim = next((store / "run_rollup" / f"date={date_of(START)}").glob("*.parquet"))
    data = victim.read_bytes()
    third = len(data) // 3
    flipped = data[:third] + bytes(byte ^ 0xFF for byte in data[third : 2 * third]) + data[2 * third :]
    victim.write_bytes(
        {"truncated": data[: len(data) // 2], "empty": b"", "text": b"not parquet", "flipped": flipped}[damage]
    )
    parts = drawn(Source(str(store)), "/")
    assert victim.name in parts["warnings"]
    assert "1 file of the store cannot be read" in parts["warnings"]
    assert not any("pk-error" in part for part in parts.values())
    assert "beta" in parts["fleet.tiles"]


def test_a_day_of_a_newer_schema_is_named_and_the_others_are_shown(store: Path) -> None:
    victim = next((store / "cluster_rollup" / f"date={date_of(START)}").glob("*.parquet"))
    rows = pq.read_table(victim)
    newer = {**rows.schema.metadata, VERSION_KEY: str(SCHEMA_VERSION + 1).encode()}
    pq.write_table(rows.replace_schema_metadata(newer), victim)
    parts = drawn(Source(str(store)), "/")
    assert "newer perfkit" in parts["warnings"]
    assert "upgrade perfkit" in parts["warnings"]
    assert "beta" in parts["fleet.tiles"]


def test_a_run_with_a_damaged_commit_and_part_shows_its_other_ranks(store: Path) -> None:
    folder = store / "manifests" / RunKey("alpha", "steady", 0).folder / "commits"
    sorted(folder.glob("*.json"))[3].write_text('{"cluster": ')
    part = store / "steps" / RunKey("alpha", "steady", 0).folder / "part-00001-0000.parquet"
    part.write_bytes(part.read_bytes()[:100])
    source = Source(str(store))
    parts = drawn(source, "/run?cluster=alpha&run=steady")
    assert not any("pk-error" in part for part in parts.values())
    assert "damaged commit" in parts["run.verdict"]
    rows, problems = source.engine.run_table("steps", RunKey("alpha", "steady", 0), columns=["rank"])
    assert set(rows["rank"].to_pylist()) == {0, 2, 4, 5, 6, 7}
    assert len(problems) == 2


def test_files_without_a_commit_are_not_shown(store: Path) -> None:
    folder = store / "manifests" / RunKey("alpha", "steady", 0).folder / "commits"
    for path in sorted(folder.glob("*.json"))[4:]:
        path.unlink()
    rows, problems = Engine(str(store)).run_table("steps", RunKey("alpha", "steady", 0), columns=["rank"])
    assert set(rows["rank"].to_pylist()) == {0, 1, 2, 3}
    assert problems == []


def test_strange_files_and_folders_in_a_store_do_no_harm(store: Path) -> None:
    (store / "run_rollup" / "date=not-a-day").mkdir()
    (store / "run_rollup" / "date=2025-01-01" / "deep").mkdir(parents=True)
    (store / "run_rollup" / "README.txt").write_text("hello")
    (store / "runs" / "cluster=x").mkdir()
    (store / "runs" / "cluster=x" / "run.parquet").write_bytes(b"")
    (store / "unknown_table").mkdir()
    parts = drawn(Source(str(store)), "/")
    assert not any("pk-error" in part for part in parts.values())
    assert "beta" in parts["fleet.tiles"]


def test_a_store_of_a_newer_layout_or_a_file_in_its_place_is_said_on_the_page(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("no folder")
    client = create_app(str(path)).server.test_client()
    assert client.get("/").status_code == 200
    assert client.get("/health").status_code == 200


def test_a_section_that_fails_says_so_and_the_others_are_drawn(store: Path, monkeypatch) -> None:
    from perfkit_dashboards import data_cluster

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("a bug\nsecond line")

    monkeypatch.setattr(data_cluster, "interruptions", broken)
    parts = drawn(Source(str(store)), "/cluster?cluster=beta")
    assert "RuntimeError: a bug" in parts["cluster.causes"]
    assert "pk-error" in parts["cluster.causes"]
    assert [name for name, part in parts.items() if "pk-error" in part] == ["cluster.causes"]


def test_readers_in_many_threads_agree_while_a_writer_replaces_days(tmp_path: Path, monkeypatch) -> None:
    """A reader sees a day as it was before or after: never half of it, never both."""
    monkeypatch.setattr(engine, "LISTING_S", 0.0)
    path = tmp_path / "store"
    writing = Store(path)
    write_days(writing, "run_rollup", run_hours("a", "r", hours=24, gpus=8))
    reader = Engine(str(path))
    seen: set[tuple[int, int]] = set()
    errors: list[BaseException] = []
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                reader.load("run_rollup")
                row = reader.ask("SELECT count(*) AS n, max(gpus) AS g FROM run_rollup").to_pylist()[0]
                seen.add((row["n"], row["g"]))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for gpus in (16, 24, 32):
        write_days(writing, "run_rollup", run_hours("a", "r", hours=24, gpus=gpus))
    stop.set()
    for thread in threads:
        thread.join(60)
    assert errors == []
    assert {n for n, _ in seen} <= {24, 0}  # 0: the only file was replaced each time that it was read
    reader.load("run_rollup")
    assert reader.ask("SELECT max(gpus) AS g FROM run_rollup").to_pylist() == [{"g": 32}]
