"""Copy a Kineto trace without what identifies its owner: hosts, users, paths, own functions and models.

    redact_trace(source, target, salt=None)     -> RedactionReport
    redact_traces(sources, folder, salt=None)   -> a report of each: ranks of one job, whose tokens fit together

Default deny. A string stays only if it is known to come from a public library or from the profiler itself;
every other string, and every unknown key, becomes a token such as `fn_3fa9c1d204`. Tokens are keyed hashes:
the same name gives the same token within one export (and across exports with the same salt), and nobody
without the salt can test a guess. Numbers, times and shapes are copied byte for byte.

The text is rewritten string by string as it streams past, never parsed and written anew: ns digits,
64-bit integers and layout survive, memory stays flat, and a cut trace gives a cut copy. What is between the
strings is checked to be JSON, so that nothing can hide there. Afterwards the copy is read again, and is
deleted if one of the hashed names is still in it.

An identifier of a library stays up to its first word that is not public (`redact_names`); the token that follows
is of the whole identifier. Where the rest said what a kernel is, a hint in brackets says it instead.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import re
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Protocol, cast

from isal import isal_zlib

from perfkit.analysis.classify import default_classifier
from perfkit.analysis.windows import USER_STEP
from perfkit.errors import CorruptInput, PerfkitError, UnsupportedInput, UsageError, cannot_write
from perfkit.redact_names import (
    ALWAYS_HASHED,
    BETWEEN,
    BUILTIN_OWNERS,
    C_FUNCTIONS,
    CLASSES,
    FORM_WORDS,
    FUNCTIONS,
    HOST_HINTS,
    KERNEL_HINTS,
    KEY_KINDS,
    KNOWN_KEYS,
    LABELS,
    LIBRARY_NAME,
    LONG_NUMBER,
    LONG_NUMBER_KEYS,
    METRIC_KEY,
    MODULES,
    NAME_KEYS,
    NAMESPACES,
    NODES,
    NUMBER,
    OPTIMIZERS,
    PACKAGES,
    PLAIN,
    PRECISIONS,
    PYTHON_METHODS,
    ROLE_HINTS,
    SAFE_STRINGS,
    STDLIB,
    STDLIB_FILES,
    SURE_PACKAGES,
    SYMBOL_WORDS,
    TENSOR_CORES,
    TORCH_FUNCTIONS,
    VERSION,
    VERSION_KEYS,
    is_group,
    is_known,
    is_library,
    is_part,
    is_telling,
    known_length,
    stdlib_functions,
)
from perfkit.sources.base import Input
from perfkit.sources.detect import find_inputs
from perfkit.sources.inputs import SliceStream, decompress
from perfkit.sources.kineto import rank_in_name

CHUNK_BYTES = 4 << 20
MAX_STRING_BYTES = 64 << 20
_TOKEN = re.compile(r"[a-z]+_[0-9a-f]{10,}(?:_\d+)?")

_FRAME = re.compile(r"(?P<file>.*?\.pyx?|<[^<>]*>)\((?P<line>\d{1,7})\): (?P<function>.*)", re.DOTALL)
_PACKAGE_ROOT = re.compile(r"(?:.*/)?(?:(site-packages|dist-packages)|lib(?:64)?/python\d\.\d+)/(.*)", re.DOTALL)
_PATH = re.compile(r"[\w./]+")
_FUNCTION = re.compile(r"(?:\w|<(?:module|locals|lambda|(?:list|dict|set)comp|genexpr)>|\.)+|<resume in \w+>")
"""What the path of a library's file and a function in it are made of: nothing else can be hidden in them."""
_FROZEN = re.compile(r"<frozen ([\w.]+)>")
_MODULE = re.compile(r"nn\.Module: (\w+?)((?:_\d{1,6})?)")
_OPTIMIZER = re.compile(r"Optimizer\.(step|zero_grad)#(\w+)\.(step|zero_grad)")
_BUILTIN = re.compile(r"<built-in (function|method) (\w*)(?: of ([\w.]+) object at (0x[0-9a-fA-F]{1,16}))?>")
_EVALUATE = "autograd::engine::evaluate_function: "
_BACKWARD = re.compile(r"(\w+?)Backward(\d{0,3})")
_LABELLED = re.compile(
    r"((?:nccl|gloo|mpi|ucc|xccl):|(?:DistributedDataParallel|FullyShardedDataParallel|DataParallel)\.)(\w+)"
    r"((?: \d{1,6}(?:->|<-)\d{1,6})?)"
)
"""A collective, or a method of a wrapper of torch."""
_GRAPH = re.compile(r"## Call CompiledFxGraph (\w+) ##")
_QUALIFIED = re.compile(r"(?<!\w)(?:::)?\d*[^\W\d]\w*(?:::(?:\d*[^\W\d]\w*|\(anonymous namespace\)))*")
_SIGNATURE = re.compile(r"\w+(?:\(.*\)|\.kd)?", re.DOTALL)


@dataclass(slots=True)
class RedactionReport:
    """What was hashed."""

    source: str
    target: str
    names: dict[str, int] = field(default_factory=dict)
    """Distinct names hashed, by kind."""
    occurrences: dict[str, int] = field(default_factory=dict)
    """How often, by kind."""
    strings_kept: int = 0
    """Distinct strings that stayed."""
    bytes_in: int = 0
    bytes_out: int = 0
    problem: str | None = None
    """What is wrong with the source, if it is cut or broken; so is the copy, then."""
    rank_recorded: bool = False
    """Whether the rank stands in the trace; otherwise only its file name may say it."""
    strings_checked: int = 0
    """Distinct strings of the copy in which every hashed name was looked for, and not found."""


class Redactor:
    """Decides, string by string, what stays and what becomes a token; remembers both."""

    def __init__(self, salt: bytes | None = None) -> None:
        self._salt = salt or secrets.token_bytes(32)
        self._tokens: dict[tuple[str, str], str] = {}
        self._owners: dict[str, tuple[str, str]] = {}
        self._kinds: list[str] = []
        self._parts: list[str] = []
        self._meanings: dict[str, _Meaning] = {}
        self._hinting = True
        self.kept: set[str] = set()
        self.kept_parts: set[str] = set()
        """Library names inside strings that were hashed in part."""

    @property
    def hashed(self) -> list[str]:
        """Every name that was replaced by a token."""
        return [name for _, name in self._tokens]

    def names_by_kind(self) -> dict[str, int]:
        """Distinct names hashed, by kind."""
        return dict(sorted(Counter(kind for kind, _ in self._tokens).items()))

    def token(self, kind: str, name: str) -> str:
        """Return the token of a name: keyed, stable, and never shared by two names."""
        self._kinds.append(kind)
        key = (kind, name)
        if key not in self._tokens:
            digest = hashlib.blake2b(f"{kind}\0{name}".encode("utf-8", "surrogatepass"), key=self._salt).hexdigest()
            digest = digest.replace("f16", "016")  # in a kernel's name that would be a number format
            length = 10
            while self._owners.get(token := f"{kind}_{digest[:length]}", key) != key:
                length += 2
            self._tokens[key] = token
            self._owners[token] = key
        return self._tokens[key]

    def key(self, key: str) -> tuple[str, tuple[str, ...]]:
        """Return what becomes of a key, and the kinds of names hashed in it."""
        if _is_known_key(key):
            self.kept.add(key)
            return key, ()
        return self.token("key", key), ("key",)

    def value(self, key: str, value: str) -> tuple[str, tuple[str, ...]]:
        """Return what becomes of a string under `key`, and the kinds of names hashed in it."""
        self._kinds.clear()
        self._parts.clear()
        new = self._decide(key, value)
        if new == value or self._is_all_parts(new):
            self.kept.add(new)
        return new, tuple(self._kinds)

    def _is_all_parts(self, text: str) -> bool:
        """Say whether nothing was hashed, though something was left out: the folders before a library's file."""
        known = {word for part in self._parts for word in _words(part)}
        return not self._kinds and all(word in known or word.isdigit() for word in _words(text))

    def prepare(self, names: Sequence[str]) -> None:
        """Look up what names mean before they are asked for: the classifier is ten times faster for many at once."""
        self._hinting = False
        texts = dict.fromkeys((*names, *(self._decide("name", name) for name in names)))
        self._hinting = True
        texts = dict.fromkeys(text.removeprefix(_EVALUATE) for text in texts if not _TOKEN.fullmatch(text))
        self._meanings.update(zip(texts, _meanings(list(texts)), strict=True))

    def entry(self, key: bytes, separator: bytes, value: bytes | None) -> tuple[bytes, tuple[str, ...]]:
        """Redact JSON text: a key and the string under it, or, without a separator, only that string."""
        name = _text_of(key)
        text = b""
        kinds: tuple[str, ...] = ()
        if separator:
            new_key, kinds = self.key(name)
            text = (key if new_key == name else json.dumps(new_key).encode()) + separator
        if value is not None:
            old = _text_of(value)
            new, more = self.value(name, old)
            text += value if new == old else json.dumps(new).encode()
            kinds += more
        return text, kinds

    def _decide(self, key: str, value: str) -> str:
        if value == "":
            return value
        if not _is_known_key(key) or value.endswith(_NOT_TEXT):
            return self.token("text", value)
        if key in ALWAYS_HASHED:
            return self.token(KEY_KINDS[key], value)
        if key == "Call stack":
            return ";".join(self._frame(frame) if frame else "" for frame in value.split(";"))
        if value in SAFE_STRINGS or (PLAIN.fullmatch(value) and not _is_account(key, value)):
            return value
        if VERSION_KEYS.fullmatch(key) and VERSION.fullmatch(value):
            return value
        if key in NAME_KEYS:
            return self._name(value)
        if LIBRARY_NAME.fullmatch(value) and key in ("pid", "tid", "labels", "cuda_sync_kind", "kind"):
            return value
        kind = KEY_KINDS.get(key, "text")
        return value if kind == "pg" and is_group(value) else self.token(kind, value)

    def _name(self, name: str) -> str:
        if name in SAFE_STRINGS or LIBRARY_NAME.fullmatch(name) or _is_metric(name):
            return name
        if USER_STEP.fullmatch(name) and name.isascii() and not is_telling(name):  # marks the windows of an analysis
            return name
        if name.startswith(_EVALUATE):
            return self._part(_EVALUATE) + self._name(name.removeprefix(_EVALUATE))
        if match := _BACKWARD.fullmatch(name):  # an analysis must still see that it is the backward pass
            if match[1] in NODES:
                return name
            checkpoint = "Checkpoint_" if "Checkpoint" in name else ""  # what runs again below it is recomputed
            return f"{self._part(checkpoint)}{self.token('fn', match[1])}Backward{match[2]}"
        if match := _LABELLED.fullmatch(name):
            return name if match[2] in LABELS else f"{self._part(match[1])}{self.token('label', match[2])}{match[3]}"
        if match := _GRAPH.fullmatch(name):
            return f"## Call CompiledFxGraph {self.token('graph', match[1])} ##"
        if _FRAME.fullmatch(name) or name.startswith(("<", "nn.Module: ", "Optimizer.")):
            return self._frame(name)
        if "/" in name and "::" not in name:
            return self._hinted(name, self.token("path", name))
        if "::" in name or "<" in name or name.startswith("void ") or _SIGNATURE.fullmatch(name):
            return self._hinted(name, self._symbol(name))
        return self._hinted(name, self.token("label", name))

    def _hinted(self, name: str, redacted: str) -> str:
        """Say what a kernel or range is where its name no longer does: the copy is analysed like the original."""
        if redacted == name or not self._hinting:
            return redacted
        meaning = self._meaning(name)
        if self._meaning(redacted) == meaning:
            return redacted
        for text in (redacted, self.token("symbol", name)):
            is_token = _TOKEN.fullmatch(text) is not None
            for hint in _hints(meaning):
                hinted = f"[{hint}] {text}" if hint else text
                if (_meaning_of_hint(hint) if is_token else _meaning(hinted)) == meaning:
                    self._part(hint)
                    return hinted
        return redacted

    def _meaning(self, name: str) -> _Meaning:
        return _NO_MEANING if _TOKEN.fullmatch(name) else self._meanings.get(name) or _meaning(name)

    def _frame(self, text: str) -> str:
        """Redact one entry of a call stack: `file.py(12): function`, a built-in, a module or an optimizer's step."""
        if match := _MODULE.fullmatch(text):
            module = self._keep(match[1] in MODULES, "module", match[1])
            return f"{self._part('nn.Module: ')}{module}{match[2]}"
        if match := _OPTIMIZER.fullmatch(text):
            optimizer = self._keep(match[2] in OPTIMIZERS, "class", match[2])
            return f"{self._part(f'Optimizer.{match[1]}#')}{optimizer}.{match[3]}"
        if match := _FRAME.fullmatch(text):
            return self._code(text, match["file"], match["line"], match["function"])
        if match := _BUILTIN.fullmatch(text):
            kind, function, owner, address = match.groups()
            is_public = owner in CLASSES or owner in BUILTIN_OWNERS
            is_public = is_public or (
                owner is not None and owner.split(".")[0] in BUILTIN_OWNERS | SURE_PACKAGES.keys() and is_known(owner)
            )
            is_method = is_public and owner not in CLASSES and is_known(function)
            is_function = function in PYTHON_METHODS or function in FUNCTIONS or function in C_FUNCTIONS
            is_function |= function in TORCH_FUNCTIONS or not function
            function = self._keep((is_method or is_function) and not is_telling(function), "fn", function)
            if owner is None:
                return f"<built-in {kind} {function}>"
            owner = self._keep((is_public or owner == "type") and not is_telling(owner), "class", owner)
            return f"<built-in {kind} {function} of {owner} object at {address}>"
        return self.token("fn", text)

    def _code(self, text: str, file: str, line: str, function: str) -> str:
        inside, is_library = _place(file, function)
        form = "<{}>" if file.startswith("<") else "{}.py"  # code without a file is analysed otherwise
        place = self._part(inside) if inside else form.format(self.token("file", file))
        frozen = _FROZEN.fullmatch(inside)
        module = frozen[1].replace(".", "/") if frozen else inside.removesuffix(".py")
        is_public = is_library and _FUNCTION.fullmatch(function) is not None and not is_telling(function)
        is_public = is_public or function in FUNCTIONS or function in stdlib_functions(module)
        redacted = f"{place}({line}): {self._keep(is_public, 'fn', function)}"
        if not inside and not file.startswith("<") and (kind := _host_kind(text)) and _host_kind(redacted) != kind:
            hint = next((hint for hint in HOST_HINTS if _host_kind(f"{hint}/x.py(1): f") == kind), "")
            return f"{self._part(hint)}/{redacted}" if hint else redacted
        return redacted

    def _keep(self, is_public: bool, kind: str, name: str) -> str:
        return self._part(name) if is_public else self.token(kind, name)

    def _part(self, text: str) -> str:
        self.kept_parts.add(text)
        self._parts.append(text)
        return text

    def _symbol(self, symbol: str) -> str:
        """Redact a C++ symbol: identifiers of libraries stay as far as they are known, and so do built-in types."""
        gaps = _QUALIFIED.split(symbol)
        if is_telling(symbol) or not all(BETWEEN.fullmatch(gap) for gap in gaps):
            return self.token("symbol", symbol)

        def redact(match: re.Match[str]) -> str:
            word = match.group().removeprefix("::")
            colons = match.group()[: -len(word)]
            if word in SYMBOL_WORDS or NUMBER.fullmatch(word):
                return self._part(match.group())
            root = word.partition("::")[0]
            known = 0
            if root in NAMESPACES and root != word:
                known = known_length(word, len(root))
            elif is_library(word):
                known = known_length(word)
            if known == len(word):
                return self._part(match.group())
            kept = self._part(word[:known].rstrip("_"))
            return colons + kept + ("_" if kept and kept[-1] != ":" else "") + self.token("symbol", word)

        return _QUALIFIED.sub(redact, symbol)


def _is_known_key(key: str) -> bool:
    return key in KNOWN_KEYS or _is_metric(key)


def _is_account(key: str, number: str) -> bool:
    """Say whether a number is longer than what this key counts."""
    if key in LONG_NUMBER_KEYS or number.startswith(("[", "(")):
        return False
    return is_telling(number) if key in NAME_KEYS else LONG_NUMBER.match(number) is not None


def _is_metric(name: str) -> bool:
    return METRIC_KEY.fullmatch(name) is not None and is_known(name) and not is_telling(name)


def _place(file: str, function: str) -> tuple[str, bool]:
    """Return the public part of a file's path, empty if there is none, and whether it surely is of a library."""
    if match := _FROZEN.fullmatch(file):
        return (file, False) if match[1].replace(".", "/") in STDLIB_FILES else ("", False)
    match = _PACKAGE_ROOT.fullmatch(file)
    inside = match[2] if match else file
    top, _, rest = inside.partition("/")
    if ".." in inside or is_telling(inside) or not (_PATH.fullmatch(inside) or inside in ("<string>", "<stdin>")):
        return "", False
    if rest and top in SURE_PACKAGES:
        return (inside, True) if is_part(inside, function) else ("", False)
    if rest and match and top in (PACKAGES if match[1] else STDLIB):
        return inside, True
    return (inside, match is not None) if inside.removesuffix(".py") in STDLIB_FILES else ("", False)


# --- what a name means to an analysis --------------------------------------------------------------

_Meaning = tuple[str | None, ...]
_NO_MEANING: _Meaning = (None,) * 7
"""What a token means."""


@lru_cache(maxsize=64)
def _patterns(kind: str, of: str) -> list[tuple[re.Pattern[str], str]]:
    """Return the classifier's rules for a search in one text, which is what it is slow at: it serves columns."""
    rules = default_classifier().rules
    return [
        (re.compile(rule.pattern, re.IGNORECASE), rule.result) for rule in rules if (rule.kind, rule.of) == (kind, of)
    ]


def _first(rules: Sequence[tuple[re.Pattern[str], str]], text: str) -> str | None:
    return next((result for pattern, result in rules if pattern.search(text)), None)


@lru_cache(maxsize=1 << 16)
def _host_kind(name: str) -> str | None:
    return _first(_patterns("host", ""), name.lower())


def _meaning(name: str) -> _Meaning:
    """Return what perfkit reads in a name, of a kernel or of a range: which of the two it is may not be known yet."""
    text = name.lower()
    special, family = _first(_patterns("class", "compute"), text), _first(_patterns("family", ""), text)
    return _whole_meaning(text, special, family, _host_kind(text))


def _meanings(names: Sequence[str]) -> list[_Meaning]:
    match_all, texts = default_classifier().match_all, [name.lower() for name in names]
    found = (match_all(kind, of, texts) for kind, of in (("class", "compute"), ("family", ""), ("host", "")))
    return [_whole_meaning(*each) for each in zip(texts, *found, strict=True)]


def _whole_meaning(text: str, special: str | None, family: str | None, host: str | None) -> _Meaning:
    family = None if special else family
    is_product = family in ("gemm", "conv", "attention")
    precision, tensor = (_first(rules, text) if is_product else None for rules in (_PRECISIONS, _TENSOR_CORES))
    roles = (_first([role], text) for role in _ROLES)
    return special, family, host, precision, tensor, *roles


_PRECISIONS = [(re.compile(pattern), word) for word, pattern in PRECISIONS]
_TENSOR_CORES = [(re.compile(TENSOR_CORES[1]), TENSOR_CORES[0])]
_ROLES = [(re.compile(pattern), word) for word, pattern in ROLE_HINTS]


@lru_cache(maxsize=4096)
def _meaning_of_hint(hint: str) -> _Meaning:
    return _meaning(f"[{hint}] symbol_0123456789")


@lru_cache(maxsize=4096)
def _hints(meaning: _Meaning) -> list[str]:
    """Return the words that may say a meaning, fewest first."""
    _, _, host, precision, tensor, *roles = meaning
    kernels = ["", *(hint for hint in KERNEL_HINTS if _meaning(hint)[:2] == meaning[:2])]
    hosts = ["", *(hint for hint in HOST_HINTS if _host_kind(hint) == host)] if host else [""]
    others = [["", word] if word else [""] for word in (precision, tensor, *roles)]
    return sorted((" ".join(filter(None, group)) for group in itertools.product(kernels, hosts, *others)), key=len)


# --- the text --------------------------------------------------------------------------------------

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_UNFINISHED = rb'"[^"\\]*(?:\\.[^"\\]*)*\\?\Z'
_ENTRY = re.compile(rb"(" + _STRING + rb"(?:\s*:\s*(?:" + _STRING + rb")?)?|" + _UNFINISHED + rb")", re.DOTALL)
"""A key with its string, a key alone, a string in a list, or one that the text ends in: without that the search would
go on inside of it, once for every `\\"`."""
_PARTS = re.compile(rb"(" + _STRING + rb")(?:(\s*:\s*)(" + _STRING + rb")?)?", re.DOTALL)
_GAP_DROPPED = b" \t\r\n0123456789+-.eE,:[]{}"
_GAP_WORDS = re.compile(rb"(?:tru|fals|null|NaN|nan|Infinity|infinity|inf)*")


_NOT_TEXT = "\0"
"""At the end of what is not UTF-8 or no JSON string: never equal to a known string, and always hashed whole."""


def _text_of(token: bytes) -> str:
    if b"\\" not in token:
        try:
            return token[1:-1].decode()
        except UnicodeDecodeError:
            return token[1:-1].decode("utf-8", "backslashreplace") + _NOT_TEXT
    try:
        return str(json.loads(token.decode("utf-8", "backslashreplace"), strict=False))
    except ValueError:
        return token.decode("utf-8", "backslashreplace") + _NOT_TEXT


class _Readable(Protocol):
    def read(self, size: int, /) -> bytes | None: ...


def _pieces(source: _Readable, path: str) -> Iterator[list[bytes]]:
    """Cut the text into lists of (text between, entry, text between, entry, …, text between).

    An entry at the end of a block waits for the next one: its colon or value may be there. The unfinished
    string at the end of a cut source is left out.
    """
    held = b""
    while block := source.read(CHUNK_BYTES):
        pieces = _ENTRY.split(held + block)
        num_held = 4 if _is_unfinished(pieces) else 2  # with the key before it
        held = b"".join(pieces[-num_held:])
        if len(held) > MAX_STRING_BYTES:
            raise CorruptInput(f"{MAX_STRING_BYTES:,} bytes without a string", path=path, next_step="is it a trace?")
        yield [*pieces[:-num_held], b""][: max(1, len(pieces) - num_held)]
    pieces = _ENTRY.split(held)
    yield pieces[:-2] if _is_unfinished(pieces) else pieces


def _is_unfinished(pieces: list[bytes]) -> bool:
    return len(pieces) > 1 and _PARTS.fullmatch(pieces[-2]) is None


def _check_gaps(gaps: bytes, path: str) -> None:
    """Refuse text between strings that is not JSON: an unquoted word would be copied unseen."""
    rest = gaps.translate(None, _GAP_DROPPED)
    if rest and not _GAP_WORDS.fullmatch(rest):
        raise CorruptInput(
            f"not JSON: {rest[:20]!r} outside of a string", path=path, next_step="export the trace again"
        )


def redact_stream(
    source: _Readable, target: BinaryIO, redactor: Redactor, *, path: str = "trace"
) -> tuple[int, int, Counter[str]]:
    """Copy JSON text with its strings redacted; return the bytes read and written, and what was hashed how often.

    Memory grows with the number of distinct strings, not with the size of the trace.
    """
    decided: dict[bytes, tuple[bytes, tuple[str, ...]]] = {}
    in_list: dict[tuple[bytes, bytes], tuple[bytes, tuple[str, ...]]] = {}
    new_text: dict[bytes, bytes] = {}  # of the entries with a key: all that the common case looks at
    uses: Counter[bytes] = Counter()
    occurrences: Counter[str] = Counter()
    num_read = num_written = 0
    list_key = b""  # a string in a list is judged by the key of the list
    for pieces in _pieces(source, path):
        gaps, entries = pieces[0::2], pieces[1::2]
        _check_gaps(b" ".join(gaps), path)
        out = [new_text.get(entry) for entry in entries]
        new = [index for index, text in enumerate(out) if text is None]
        redactor.prepare(_names([entries[index] for index in new]))
        for index in new:
            entry = entries[index]
            if index and out[index - 1] is not None and entries[index - 1] in new_text:
                list_key = entries[index - 1]
            if entry in new_text:
                out[index] = new_text[entry]
                continue
            key, separator, value = _parts(entry)
            if separator:
                decided[entry] = redactor.entry(key, separator, value)
                new_text[entry] = out[index] = decided[entry][0]
                continue
            if (list_key, entry) not in in_list:
                in_list[list_key, entry] = redactor.entry(_parts(list_key)[0], b"", key)
            out[index], kinds = in_list[list_key, entry]
            if kinds:
                occurrences.update(kinds)
        if entries and entries[-1] in new_text:
            list_key = entries[-1]
        uses.update(entries)
        num_read += sum(map(len, pieces))
        pieces[1::2] = [text or b"" for text in out]
        text = b"".join(pieces)
        num_written += len(text)
        target.write(text)
    for entry, (_, kinds) in decided.items():
        for kind in kinds:
            occurrences[kind] += uses[entry]
    return num_read, num_written, occurrences


def _names(entries: list[bytes]) -> list[str]:
    """Return the names of events and kernels among the entries, each once."""
    parts = (_parts(entry) for entry in dict.fromkeys(entries))
    return [_text_of(value) for key, _, value in parts if value and key in (b'"name"', b'"kernel"', b'"kernel_name"')]


def _parts(entry: bytes) -> tuple[bytes, bytes, bytes | None]:
    """Split an entry into its key, the separator and the string; a string in a list is all key."""
    match = _PARTS.fullmatch(entry)
    return (match[1], match[2] or b"", match[3]) if match else (b'""', b"", None)


def redact_trace(
    source: str | os.PathLike[str], target: str | os.PathLike[str], *, salt: str | None = None
) -> RedactionReport:
    """Write a redacted copy of the Kineto trace `source` to `target`, gzipped if that ends in `.gz`.

    `salt` makes tokens comparable between exports; keep it secret. Without it a random one is used and forgotten.
    """
    inputs = _kineto_inputs([source])
    if len(inputs) != 1:
        raise UsageError(f"{source}: {len(inputs)} traces in there", next_step="name a folder for the copies with -o")
    return _redact_input(inputs[0], Path(target), salt)


def redact_traces(
    sources: Sequence[str | os.PathLike[str]], folder: str | os.PathLike[str], *, salt: str | None = None
) -> list[RedactionReport]:
    """Write a redacted copy of every Kineto trace under `sources` into `folder`, named after its rank.

    All have one salt, random if none is given: names are the same in each, as they were in the traces.
    """
    inputs, folder = _kineto_inputs(sources), Path(folder)
    if not inputs:
        raise UsageError("no traces in there", next_step="name files or folders of torch.profiler traces")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(folder, error) from None
    salt = salt or secrets.token_hex()
    return [_redact_input(trace, free_name(folder, trace.path), salt) for trace in inputs]


def free_name(folder: Path, trace: str) -> Path:
    """Name the copy by what may be known of the trace: its rank. A file that is there is not replaced."""
    rank = rank_in_name(trace)
    stem = "redacted" if rank is None else f"redacted-rank{rank}"
    names = itertools.chain([stem], (f"{stem}.{number}" for number in itertools.count(2)))
    return next(path for name in names if not os.path.lexists(path := folder / f"{name}.json.gz"))


def _kineto_inputs(sources: Sequence[str | os.PathLike[str]]) -> list[Input]:
    found = find_inputs(sources)
    if found.rejected:
        raise found.rejected[0]
    for trace in found.inputs:
        if trace.kind != "kineto":
            raise UnsupportedInput(
                "an nsys export, which --redact does not cover yet",
                path=trace.path,
                next_step="give a torch.profiler JSON trace",
            )
    return found.inputs


def _redact_input(trace: Input, target: Path, salt: str | None) -> RedactionReport:
    if os.path.lexists(target) and (target.is_symlink() or not target.is_file()):
        raise UsageError(f"{target} is there and is no regular file", next_step="give another name with -o")
    if target.exists() and isinstance(trace.file, Path) and target.samefile(trace.file):
        raise UsageError(f"{target}: the copy would replace the trace", next_step="give another name with -o")
    redactor = Redactor(hashlib.blake2b(salt.encode()).digest() if salt else None)
    report = RedactionReport(trace.path, str(target))
    partial = target.with_name(target.name + ".part")
    try:
        with trace.open() as stream, _open_target(partial, gzipped=target.name.endswith(".gz")) as out:
            report.bytes_in, report.bytes_out, occurrences = redact_stream(stream, out, redactor, path=trace.path)
            report.problem = getattr(stream, "problem", None)
        report.strings_checked = _prove(partial, redactor, gzipped=target.name.endswith(".gz"))
        partial.replace(target)
    except OSError as error:
        raise PerfkitError(
            f"{target}: cannot be written: {error.strerror or error}", next_step="choose another place with -o"
        ) from error
    finally:
        partial.unlink(missing_ok=True)
    report.names = redactor.names_by_kind()
    report.occurrences = dict(sorted(occurrences.items()))
    report.strings_kept = len(redactor.kept)
    report.rank_recorded = "rank" in redactor.kept
    return report


def _open_target(path: Path, *, gzipped: bool) -> BinaryIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | getattr(os, "O_NOFOLLOW", 0), 0o600)
    raw = io.FileIO(descriptor, "wb")
    return cast(BinaryIO, _GzipWriter(raw)) if gzipped else io.BufferedWriter(raw)


class _GzipWriter(io.RawIOBase):
    """gzip without a name and a time in its header, which would say where and when the copy was made."""

    def __init__(self, raw: io.FileIO) -> None:
        super().__init__()
        self._raw = raw
        self._encoder = isal_zlib.compressobj(3, isal_zlib.DEFLATED, 31)

    def write(self, data: Any) -> int:
        """Compress and write all of `data`."""
        self._write_all(self._encoder.compress(data))
        return len(data)

    def close(self) -> None:
        """Finish the gzip data and close the file."""
        if not self.closed:
            try:
                self._write_all(self._encoder.flush())
            finally:
                self._raw.close()
                super().close()

    def _write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[self._raw.write(view) or 0 :]


def _prove(path: Path, redactor: Redactor, *, gzipped: bool) -> int:
    """Read the copy and look for every hashed name, whole or as a word; return how many strings were searched."""
    kept_words = {word for text in redactor.kept | redactor.kept_parts for word in _words(text)}
    secrets_whole = {name for name in redactor.hashed if name not in redactor.kept}
    secrets_words = {word for name in redactor.hashed for word in _secret_words(name)} - kept_words
    seen: set[bytes] = set()
    with decompress(lambda: SliceStream(path, path=str(path)), "gzip" if gzipped else "none", path=str(path)) as copy:
        for pieces in _pieces(copy, str(path)):
            seen.update(pieces[1::2])
    strings = {part for entry in seen for part in _parts(entry)[::2] if part}
    for token in strings:
        text = _text_of(token)
        if text in redactor.kept:
            continue
        if text in secrets_whole or not secrets_words.isdisjoint(_words(text)):
            raise PerfkitError(
                f"the copy still held a name that should have been hashed, and was deleted: {_masked(text)}",
                next_step="please report this as a bug in perfkit.redact",
            )
    return len(strings)


def _words(text: str) -> list[str]:
    return re.findall(r"[\w.-]+", text)


def _secret_words(name: str) -> list[str]:
    """Words of a hashed name that identify someone: not short, and not of a library."""
    return [word for word in _words(name) if len(word) > 4 and not _is_public(word)]


def _is_public(word: str) -> bool:
    if not any(letter.isalpha() for letter in word):  # no word at all: a short number, or it may be an address
        return re.fullmatch(r"[-_.]*\d{0,7}[-_.]*", word) is not None
    return word in FORM_WORDS or (
        not is_telling(word)
        and (word in KNOWN_KEYS or is_known(word) or bool(PLAIN.fullmatch(word) or LIBRARY_NAME.fullmatch(word)))
    )


def _masked(text: str) -> str:
    """Show the form of a text for a bug report: of what may be secret only the first letter and the length."""

    def mask(match: re.Match[str]) -> str:
        word = match.group()
        return word if _is_public(word) or _TOKEN.fullmatch(word) else f"{word[0]}…({len(word)} letters)"

    return repr(re.sub(r"[\w.-]+", mask, text[:200]))
