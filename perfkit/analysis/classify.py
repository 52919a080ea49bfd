r"""Say what every event is: the one classifier of the project.

    classify_events(category, name, has_collective_args, phase) -> class      one value per row
    kernel_family(names)                                        -> family     one value per row

Classes, on the device: `compute`, `communication`, `memcpy`, `memset` are work; `sync` and
`device_range` are drawn on the device and are not. On the host: `op`, `runtime`, `python`, `range`,
`memory` (allocator instants), `overhead` (the profiler's), `gc`. Elsewhere: `flow`, `counter`. Null is
none of these.

Collective metadata in args decides first, then the rules of `classes.csv`. A user's file of the same
columns goes before them (`Classifier.load(path)`, or the environment variable PERFKIT_CLASSES, which
worker processes inherit). Patterns search the lower-cased name; the first that matches wins.

A kernel that no pattern knows is `compute` with family `unknown`: it counts as work and is reported as
unknown. `other` means known, and none of the families.

The class says what recorded an event, not how a rank is analysed: `gloo:all_reduce` on a CPU-only rank
stays a `range` or `op` here, and `cpu_kind` tells the analysis of such ranks (definition 3) that it is
communication. On a GPU rank the same op is only the host side of work that the device does.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import compress
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from perfkit.arrays import codes_of, dictionary, from_list, nulls, to_numpy
from perfkit.errors import UsageError

CLASSES: tuple[str, ...] = (
    "compute", "communication", "memcpy", "memset", "sync", "device_range",
    "op", "runtime", "python", "range", "memory", "overhead", "gc", "flow", "counter",
)  # fmt: skip
DEVICE_WORK: tuple[str, ...] = ("compute", "communication", "memcpy", "memset")
"""Classes that occupy a device."""
FAMILIES: tuple[str, ...] = (
    "gemm", "attention", "conv", "norm", "elementwise", "reduction", "embedding", "optimizer", "copy", "other",
    "unknown",
)  # fmt: skip
CPU_KINDS: tuple[str, ...] = ("work", "communication", "wait")
"""What an op or range of a CPU-only rank is."""

HOST_KINDS: tuple[str, ...] = (
    "data_loader", "checkpoint", "sync", "allocator", "optimizer", "gc", "compile", "logging", "python",
    "framework", "runtime",
)  # fmt: skip
"""Whom a late host can be blamed on; see perfkit.analysis.culprits."""

_RESULTS = {"category": CLASSES, "class": CLASSES, "family": FAMILIES, "cpu": CPU_KINDS, "host": HOST_KINDS}
_COLUMNS = ["kind", "of", "pattern", "result", "note"]
_PHASES = {"C": "counter", "s": "flow", "t": "flow", "f": "flow"}
_CACHE_SIZE = 1_000_000
_NOT_SEEN = -2
_WORDS = re.compile(r"\^\(\?:([a-z0-9_|]+)\)\$|([a-z0-9_|]+)")
"""Patterns that are only words: the whole text is one of them, or holds one of them."""
BUNDLED = "classes.csv"

Text: TypeAlias = "pa.Array | pa.ChunkedArray"
Codes: TypeAlias = npt.NDArray[np.int8]


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> re.Pattern[str]:
    """Compile a pattern for lower-cased text; ignoring case is several times slower, so only where it is written."""
    return re.compile(pattern, 0 if pattern == pattern.lower() else re.IGNORECASE)


def _search_words(words: re.Match[str], texts: Sequence[str]) -> npt.NDArray[np.bool_]:
    """Say which texts are one of the words, or hold one.

    Half of the patterns are words, and to compile them would cost more than all that a small trace searches.
    """
    wanted = (words[1] or words[2]).split("|")
    if words[1]:
        return np.fromiter((text in wanted for text in texts), bool, len(texts))
    return np.fromiter((any(word in text for word in wanted) for text in texts), bool, len(texts))


def search_all(pattern: str, texts: pa.Array) -> npt.NDArray[np.bool_]:
    """Say in which of the lower-cased texts a pattern is found.

    Arrow's engine compiles and searches in a tenth of the time of `re`, which serves what that does not know.
    """
    try:
        found = pc.match_substring_regex(texts, pattern, ignore_case=pattern != pattern.lower())
    except pa.ArrowInvalid:
        search = _compiled(pattern).search
        return np.fromiter((search(text) is not None for text in texts.to_pylist()), bool, len(texts))
    result: npt.NDArray[np.bool_] = to_numpy(found)
    return result


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of a rules file."""

    kind: str
    """`category`: the whole category; `class`: the name, if the class so far is `of`; `family`; `cpu`;
    `host`: the name, for events of class `of`, or of any if empty."""
    of: str
    pattern: str
    """A regular expression that is searched in the lower-cased text."""
    result: str


@dataclass
class Classifier:
    """Ordered rules with a memory of the names seen so far."""

    rules: Sequence[Rule]
    _seen: dict[tuple[str, str], dict[str, str | None]] = field(default_factory=dict, repr=False)
    _by_kind: dict[tuple[str, str], list[Rule]] = field(default_factory=dict, repr=False)
    _code_of: dict[tuple[str, str], dict[str, int]] = field(default_factory=dict, repr=False)

    @classmethod
    def load(cls, *files: Path | str) -> Classifier:
        """Rules of the user's files, first file first, before the ones that come with perfkit."""
        rules: list[Rule] = []
        for path in files:
            try:
                text = Path(path).read_text()
            except OSError as error:
                raise UsageError(
                    f"cannot read the rules in {path}: {error.strerror}",
                    next_step="name a CSV file of rules with PERFKIT_CLASSES; docs/extending.md shows one",
                ) from None
            rules += read_rules(text, str(path))
        bundled = Path(__file__).with_name(BUNDLED).read_text(encoding="utf-8")
        return cls([*rules, *read_rules(bundled, BUNDLED)])

    def match(self, kind: str, of: str, text: str) -> str | None:
        """Return the result of the first rule that matches, or None."""
        return self.match_all(kind, of, [text])[0]

    def match_all(self, kind: str, of: str, texts: Sequence[str]) -> list[str | None]:
        """Return the result of each text; many at once are a lot faster."""
        seen = self._seen.setdefault((kind, of), {})
        if len(seen) >= _CACHE_SIZE:
            seen.clear()
        if new := [text for text in dict.fromkeys(texts) if text not in seen]:
            seen.update(zip(new, self._first_matches(self._rules_for(kind, of), new), strict=True))
        return [seen[text] for text in texts]

    @staticmethod
    def _first_matches(rules: Sequence[Rule], texts: Sequence[str]) -> list[str | None]:
        result: list[str | None] = [None] * len(texts)
        left, lowered = np.arange(len(texts)), [text.lower() for text in texts]
        listed: pa.Array | None = None
        for rule in rules:
            if words := _WORDS.fullmatch(rule.pattern):
                found = _search_words(words, lowered)
            else:
                listed = from_list(lowered, pa.utf8()) if listed is None else listed
                found = search_all(rule.pattern, listed)
            if found.any():
                for i in left[found].tolist():
                    result[i] = rule.result
                left, lowered, listed = left[~found], list(compress(lowered, (~found).tolist())), None
                if not lowered:
                    break
        return result

    def _rules_for(self, kind: str, of: str) -> list[Rule]:
        if (kind, of) not in self._by_kind:
            self._by_kind[kind, of] = [rule for rule in self.rules if rule.kind == kind and rule.of == of]
        return self._by_kind[kind, of]

    def classify(
        self, category: Text, name: Text, has_collective_args: npt.ArrayLike | None = None, phase: Text | None = None
    ) -> pa.DictionaryArray:
        """See `classify_events`."""
        category_codes, categories = encode_text(category)
        name_codes, names = encode_text(name)
        result = self._codes("category", "", categories)[category_codes]
        for of in self._classes_with_rules:
            rows = np.flatnonzero(result == (CLASSES.index(of) if of else -1))
            if not len(rows):
                continue
            used = np.zeros(len(names) + 1, bool)
            used[name_codes[rows]] = True
            found = self._codes("class", of, names, used)[name_codes[rows]]
            result[rows] = np.where(found >= 0, found, result[rows])
        if has_collective_args is not None and np.any(has_collective_args):
            on_device = np.isin(result, [CLASSES.index(c) for c in DEVICE_WORK])
            result[on_device & np.asarray(has_collective_args, bool)] = CLASSES.index("communication")
        if phase is not None:
            phase_codes, phases = encode_text(phase)
            forced = _lookup((_PHASES.get(text) for text in phases), CLASSES)[phase_codes]
            result = np.where(forced >= 0, forced, result)
        return decode_text(result, CLASSES)

    @cached_property
    def _classes_with_rules(self) -> list[str]:
        return list(dict.fromkeys(rule.of for rule in self.rules if rule.kind == "class"))

    def _codes(self, kind: str, of: str, texts: list[str], used: npt.NDArray[np.bool_] | None = None) -> Codes:
        """Return the class code of each text, -1 for none and at the end; a chunk's names were mostly seen before."""
        known = self._code_of.setdefault((kind, of), {})
        if len(known) >= _CACHE_SIZE:
            known.clear()
        codes = np.fromiter((known.get(text, _NOT_SEEN) for text in texts), np.int8, len(texts))
        new = codes == _NOT_SEEN
        rows = np.flatnonzero(new if used is None else new & used[:-1]).tolist()
        for i, found in zip(rows, self.match_all(kind, of, [texts[i] for i in rows]), strict=True):
            codes[i] = known[texts[i]] = -1 if found is None else CLASSES.index(found)
        return np.append(codes, np.int8(-1))

    def family(self, names: Text) -> pa.DictionaryArray:
        """See `kernel_family`."""
        codes, texts = encode_text(names)
        lut = _lookup((found or "unknown" for found in self.match_all("family", "", texts)), FAMILIES)
        return decode_text(lut[codes], FAMILIES)

    def cpu_kind(self, names: Text) -> pa.DictionaryArray:
        """See `cpu_kind`."""
        codes, texts = encode_text(names)
        lut = _lookup((found or "work" for found in self.match_all("cpu", "", texts)), CPU_KINDS)
        return decode_text(lut[codes], CPU_KINDS)


def read_rules(text: str, source: str) -> list[Rule]:
    """Parse a rules file; every mistake names its line."""
    reader = csv.DictReader(text.splitlines())
    if reader.fieldnames is None or list(reader.fieldnames)[:4] != _COLUMNS[:4]:
        raise UsageError(f"{source}: the first line must be {','.join(_COLUMNS)}")
    rules = []
    for row in reader:
        where, kind, of = f"{source} line {reader.line_num}", row["kind"], row["of"] or ""
        if kind not in _RESULTS:
            raise UsageError(f"{where}: kind {kind!r} is none of {', '.join(_RESULTS)}")
        if row["result"] not in _RESULTS[kind]:
            raise UsageError(f"{where}: result {row['result']!r} is none of {', '.join(_RESULTS[kind])}")
        if of and (kind not in ("class", "host") or of not in CLASSES):
            raise UsageError(f"{where}: `of` is a class, and only for the kinds class and host")
        pattern = rf"^(?:{row['pattern']})$" if kind == "category" else row["pattern"]
        if source != BUNDLED:  # ours are tested, and compiling all of them costs more than a small trace
            try:
                _compiled(pattern)
            except re.error as error:
                raise UsageError(f"{where}: bad pattern: {error}") from None
        rules.append(Rule(kind, of, pattern, row["result"]))
    return rules


@lru_cache(maxsize=8)
def _load(path: str | None) -> Classifier:
    return Classifier.load(path) if path else Classifier.load()


def default_classifier() -> Classifier:
    """Return the rules that come with perfkit, after those of PERFKIT_CLASSES if it is set."""
    return _load(os.environ.get("PERFKIT_CLASSES") or None)


def classify_events(
    category: Text,
    name: Text,
    has_collective_args: npt.ArrayLike | None = None,
    phase: Text | None = None,
    *,
    classifier: Classifier | None = None,
) -> pa.DictionaryArray:
    """Return the class of every row: one of `CLASSES` or null.

    `has_collective_args` marks rows with metadata of a communication library; a piece of device work
    that carries it is communication whatever its name. `phase` tells counters and flows.
    """
    return (classifier or default_classifier()).classify(category, name, has_collective_args, phase)


def kernel_family(names: Text, *, classifier: Classifier | None = None) -> pa.DictionaryArray:
    """Return the family of every kernel name: one of `FAMILIES`, `unknown` if no pattern knows it."""
    return (classifier or default_classifier()).family(names)


def cpu_kind(names: Text, *, classifier: Classifier | None = None) -> pa.DictionaryArray:
    """Return what an op or range means on a rank without a device: one of `CPU_KINDS`."""
    return (classifier or default_classifier()).cpu_kind(names)


def encode_text(values: Text) -> tuple[npt.NDArray[np.signedinteger[Any]], list[str]]:
    """Return codes and values of a text column; a null has the code -1, which indexes the last entry of a lookup."""
    if isinstance(values, pa.ChunkedArray):
        values = (
            values.unify_dictionaries().combine_chunks()
            if pa.types.is_dictionary(values.type)
            else values.combine_chunks()
        )
    if isinstance(values, pa.ChunkedArray):  # combine_chunks keeps several chunks of a very large column
        values = pa.concat_arrays(values.chunks)
    if not pa.types.is_dictionary(values.type):
        values = pc.dictionary_encode(values.cast(pa.utf8()))
    return codes_of(values), values.dictionary.to_pylist()


def _lookup(results: Iterable[str | None], vocabulary: Sequence[str]) -> Codes:
    index = {text: i for i, text in enumerate(vocabulary)}
    return np.array([*(-1 if r is None else index[r] for r in results), -1], np.int8)


def decode_text(codes: npt.NDArray[np.signedinteger[Any]], vocabulary: Sequence[str]) -> pa.DictionaryArray:
    """Return a text column of codes and values; -1 is a null."""
    if not len(vocabulary):
        return nulls(pa.dictionary(pa.int32(), pa.utf8()), len(codes))
    known = codes >= 0
    return dictionary(np.where(known, codes, 0).astype(np.int32), from_list(vocabulary, pa.utf8()), known)
