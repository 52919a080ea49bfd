"""An ingest that is divided among processes leaves what an undivided one leaves, and misses whoever never came."""

import gzip
import json

import pytest

import perfkit
from perfkit.cli.main import main
from perfkit.engine.shards import Shard
from perfkit.store import Store
from tests.dumps import all_rows, assert_same_rows, make_dump


@pytest.fixture(scope="module")
def dump(tmp_path_factory):
    """Seven ranks; two of them do not say who they are, and one has a second file."""
    folder = make_dump(tmp_path_factory.mktemp("dump") / "job", 7)
    for rank in (2, 5):
        path = folder / f"rank{rank:05d}.pt.trace.json.gz"
        document = json.loads(gzip.decompress(path.read_bytes()))
        del document["distributedInfo"]
        (folder / f"unnamed-{'ab'[rank // 4]}.json").write_text(json.dumps(document))
        path.unlink()
    document = json.loads(gzip.decompress((folder / "rank00003.pt.trace.json.gz").read_bytes()))
    document["baseTimeNanoseconds"] = document.get("baseTimeNanoseconds", 0) + 3600 * 10**9
    (folder / "rank00003-later.json").write_text(json.dumps(document))
    return folder


@pytest.fixture(scope="module")
def whole(dump, tmp_path_factory):
    store = tmp_path_factory.mktemp("whole") / "store"
    report = perfkit.ingest(dump, store=store)
    assert len(report.files) == 8, [str(error) for error in report.rejected]
    return all_rows(store, "job")


@pytest.mark.parametrize("count", [1, 3, 20])
def test_all_shards_together_leave_the_same_rows(dump, whole, tmp_path, count):
    taken = []
    for index in reversed(range(count)):
        report = perfkit.ingest(dump, store=tmp_path, shard=Shard(index, count))
        assert not report.rejected
        taken += [file.path for file in report.files]
    assert len(taken) == len(set(taken)) == 8
    assert_same_rows(whole, all_rows(tmp_path, "job"))
    assert Store(tmp_path).missing_shards("default", "job") == ([], count)


def test_a_shard_that_never_came_is_named_and_the_others_count(dump, whole, tmp_path, capsys):
    for index in (0, 2, 3):
        assert main(["ingest", str(dump), "--store", str(tmp_path), "--shard", f"{index}/4"]) == 0
    assert Store(tmp_path).missing_shards("default", "job") == ([1], 4)
    report = perfkit.analyze("job", store=tmp_path)
    assert report.summary["scope"]["ranks_traced"] < 7
    assert any(row["path"] == "shards 1 of 4" and "--shard 1/4" in row["reason"]
               for row in report.summary["quality"]["rejected"])  # fmt: skip
    assert main(["ingest", str(dump), "--store", str(tmp_path), "--shard", "1/4"]) == 0
    assert_same_rows(whole, all_rows(tmp_path, "job"))
    rejected = perfkit.analyze("job", store=tmp_path).summary["quality"]["rejected"]
    assert not any("shard" in row["path"] for row in rejected)


def test_a_shard_can_be_run_again(dump, whole, tmp_path):
    for _ in range(2):
        for index in range(2):
            report = perfkit.ingest(dump, store=tmp_path, shard=Shard(index, 2))
    assert {file.status for file in report.files} == {"unchanged"}
    assert_same_rows(whole, all_rows(tmp_path, "job"))


def test_only_the_first_shard_speaks_of_what_no_shard_can_read(dump, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "broken.json.gz").write_bytes(b"\x1f\x8b" + b"x" * 50)
    paths = [dump, tmp_path / "bad" / "broken.json.gz"]
    said = [perfkit.ingest(paths, store=tmp_path / "s", run="r", shard=Shard(i, 3)).rejected for i in range(3)]
    assert [len(errors) for errors in said] == [1, 0, 0]


def test_a_shard_without_files_is_no_failure(dump, tmp_path, capsys):
    assert main(["ingest", str(dump / "rank00000.pt.trace.json.gz"), "--store", str(tmp_path), "--shard", "1/2"]) == 0
    assert "nothing for it" in capsys.readouterr().out


def test_shards_and_another_engine_exclude_each_other(dump, tmp_path, capsys):
    assert main(["ingest", str(dump), "--store", str(tmp_path), "--shard", "0/2", "--engine", "ray"]) == 2
    assert main(["ingest", str(dump), "--store", str(tmp_path), "--address", "auto"]) == 2
    assert "add --engine ray" in capsys.readouterr().err
