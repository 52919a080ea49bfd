"""Where things lie in a store: pure functions from names to relative paths.

    <table>/cluster=<c>/run=<id>/attempt=<k>/part-<rank>-<segment>.parquet      run tables
    <table>/cluster=<c>/run=<id>/attempt=<k>/pack-<id>.parquet                  many segments in one file
    <table>/cluster=<c>/run=<id>/attempt=<k>/analysis-<id>.parquet              derived tables
    <table>/date=<yyyy-mm-dd>/<part>.parquet                                    fleet tables
    manifests/cluster=<c>/run=<id>/attempt=<k>/run.json                         what is known of the run
    manifests/cluster=<c>/run=<id>/attempt=<k>/commits/<rank>-<segment>.json    one per committed segment
    manifests/cluster=<c>/run=<id>/attempt=<k>/packs/<id>.<ranks>.<segments>.json   commits of a pack, together
    manifests/cluster=<c>/run=<id>/attempt=<k>/shards/<i>-of-<n>.json           one per shard that came to its end
    notes/<time>-<id>.json                                                      what people wrote down (notes.py)
    traces/cluster=<c>/run=<id>/attempt=<k>/rank-<rank>.step-<step>.json.gz     traces that capture took
    spool/                                                                      what capture has not committed yet

Names come from users, so a path part is a slug: a name of harmless characters stays as it is, any other
gets its harmless characters and a hash of the whole. Names that hive readers would turn into something
else (`007` into 7, `null` into NULL) get the hash as well.
"""

from __future__ import annotations

import datetime
import hashlib
import re
from typing import NamedTuple

from perfkit.errors import UsageError
from perfkit.schema import TABLES

MARKER = "perfkit-store.json"
SCRATCH = ".tmp"
MANIFESTS = "manifests"
LAYOUT_VERSION = 2
"""2: with packs, which whoever knows only 1 would not see."""
NOTES = "notes"
TOP_LEVEL = frozenset((MARKER, SCRATCH, MANIFESTS, NOTES, *TABLES))
"""What the store keeps at its top. Capture's `spool/` and `traces/` lie there too; those can be ingested."""

_HARMLESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")
_READ_AS_SOMETHING_ELSE = re.compile(r"0\d+|null|none|nan|__hive_default_partition__", re.IGNORECASE)


def slug(name: str) -> str:
    """Return `name` if it is safe as a path part and hive value, else its safe characters and a hash."""
    if _HARMLESS.fullmatch(name) and not _READ_AS_SOMETHING_ELSE.fullmatch(name) and ".." not in name:
        return name
    if not name:
        raise UsageError("the name of a cluster, run or analysis must not be empty")
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    kept = re.sub(r"[^A-Za-z0-9_+-]+", "_", name).strip("_-+")[:60] or "x"
    return f"{kept}-{digest}"


class RunKey(NamedTuple):
    """An attempt of a run, by the names that users gave."""

    cluster: str
    run: str
    attempt: int = 0

    def check(self) -> None:
        """Raise `UsageError` if there can be no such run."""
        if self.attempt < 0:
            raise UsageError(f"attempt must not be negative, is {self.attempt}")
        slug(self.cluster)
        slug(self.run)

    @property
    def folder(self) -> str:
        """The hive part of a path."""
        self.check()
        return f"cluster={slug(self.cluster)}/run={slug(self.run)}/attempt={self.attempt:d}"

    def __str__(self) -> str:
        return f"{self.cluster}/{self.run}, attempt {self.attempt}"


def segment_key(rank: int, segment: int) -> str:
    """Name of a segment inside its run; sorts by number."""
    if rank < 0 or segment < 0:
        raise UsageError(f"rank and segment must not be negative, are {rank} and {segment}")
    return f"{rank:05d}-{segment:04d}"


def part_path(table: str, key: RunKey, rank: int, segment: int, generation: int = 0) -> str:
    """Path of a part. A segment that is replaced gets the next generation, so that no reader meets a mixture."""
    suffix = f"-{generation}" if generation else ""
    return f"{table}/{key.folder}/part-{segment_key(rank, segment)}{suffix}.parquet"


def commits_folder(key: RunKey) -> str:
    """Folder of the commits of a run."""
    return f"{MANIFESTS}/{key.folder}/commits"


def commit_path(key: RunKey, rank: int, segment: int) -> str:
    """Path of the commit of a segment."""
    return f"{commits_folder(key)}/{segment_key(rank, segment)}.json"


def place_of_commit(path: str) -> tuple[int, int]:
    """Return the rank and the segment that the path of a commit names; ValueError if it is not one of a commit."""
    rank, segment = path.rpartition("/")[2].removesuffix(".json").split("-")
    return int(rank), int(segment)


def run_folder(path: str) -> str:
    """Return the hive part of a path of a run."""
    return "/".join(path.split("/")[1:4])


def pack_path(table: str, key: RunKey, pack: str) -> str:
    """Path of a table of a pack."""
    return f"{table}/{key.folder}/pack-{pack}.parquet"


class PackName(NamedTuple):
    """Identity of a pack, and which ranks and segments it can hold: a writer need not open the others."""

    id: str
    first_rank: int
    last_rank: int
    first_segment: int
    last_segment: int

    @classmethod
    def parse(cls, path: str) -> PackName:
        """Read it from the path of the pack's manifest; ValueError if that is none."""
        id, ranks, segments, _ = path.rpartition("/")[2].split(".")
        return cls(id, *(int(number) for part in (ranks, segments) for number in part.split("-")))

    def path(self, key: RunKey) -> str:
        """Path of the manifest."""
        ranks = f"{self.first_rank:05d}-{self.last_rank:05d}"
        return f"{packs_folder(key)}/{self.id}.{ranks}.{self.first_segment:04d}-{self.last_segment:04d}.json"

    def may_hold(self, rank: int, segment: int) -> bool:
        """Say whether a segment can be in it."""
        return self.first_rank <= rank <= self.last_rank and self.first_segment <= segment <= self.last_segment


def packs_folder(key: RunKey) -> str:
    """Folder of the packs of a run."""
    return f"{MANIFESTS}/{key.folder}/packs"


def shard_path(key: RunKey, index: int, count: int) -> str:
    """Path of what a shard says when it has come to its end."""
    return f"{MANIFESTS}/{key.folder}/shards/{index:05d}-of-{count:05d}.json"


def lock_path(key: RunKey, rank: int, segment: int) -> str:
    """Path of what a writer locks while it commits a segment; others of the same run commit at the same time."""
    identity = f"{key.folder}/{segment_key(rank, segment)}"
    return f"{SCRATCH}/{hashlib.blake2b(identity.encode(), digest_size=16).hexdigest()}.lock"


def run_json_path(key: RunKey) -> str:
    """Path of the metadata of a run."""
    return f"{MANIFESTS}/{key.folder}/run.json"


def run_row_path(key: RunKey) -> str:
    """Path of the row of table `runs`."""
    return f"runs/{key.folder}/run.parquet"


def derived_path(table: str, key: RunKey, analysis_id: str) -> str:
    """Path of the result of one analysis."""
    return f"{table}/{key.folder}/analysis-{slug(analysis_id)}.parquet"


def fleet_path(table: str, date: str, part: str) -> str:
    """Path of one part of a fleet table."""
    try:
        day = datetime.date.fromisoformat(date)
    except ValueError:
        raise UsageError(f"{date!r} is not a date; write it as yyyy-mm-dd") from None
    return f"{table}/date={day.isoformat()}/{slug(part)}.parquet"


def hive_values(path: str) -> dict[str, str]:
    """Return the `key=value` parts of a path."""
    return dict(part.split("=", 1) for part in path.split("/")[:-1] if "=" in part)
