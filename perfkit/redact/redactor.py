"""Decide, string by string, what stays and what becomes a token.

Default deny: a string stays only if it is known to come from a public library or from the profiler itself. An
identifier of a library stays up to its first word that is not public (`names`); the token that follows is of the
whole identifier. Where the rest said what a kernel is, a hint in brackets says it instead (`meaning`).
"""

from __future__ import annotations

import hashlib
import json
import re
import secrets
from collections import Counter
from collections.abc import Sequence

from perfkit.analysis.windows import USER_STEP
from perfkit.redact.meaning import NO_MEANING, Meaning, hints_of, host_kind, meaning_of, meaning_of_hint, meanings_of
from perfkit.redact.names import (
    ALWAYS_HASHED,
    BETWEEN,
    BUILTIN_OWNERS,
    C_FUNCTIONS,
    CLASSES,
    FUNCTIONS,
    HOST_HINTS,
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
    PYTHON_METHODS,
    SAFE_STRINGS,
    STDLIB,
    STDLIB_FILES,
    SURE_PACKAGES,
    SYMBOL_WORDS,
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
from perfkit.redact.text import NOT_TEXT, text_of, words_of

TOKEN = re.compile(r"[a-z]+_[0-9a-f]{10,}(?:_\d+)?")

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


class Redactor:
    """Decides, string by string, what stays and what becomes a token; remembers both."""

    def __init__(self, salt: bytes | None = None) -> None:
        self._salt = salt or secrets.token_bytes(32)
        self._tokens: dict[tuple[str, str], str] = {}
        self._owners: dict[str, tuple[str, str]] = {}
        self._kinds: list[str] = []
        self._parts: list[str] = []
        self._meanings: dict[str, Meaning] = {}
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
        known = {word for part in self._parts for word in words_of(part)}
        return not self._kinds and all(word in known or word.isdigit() for word in words_of(text))

    def prepare(self, names: Sequence[str]) -> None:
        """Look up what names mean before they are asked for: the classifier is ten times faster for many at once."""
        self._hinting = False
        texts = dict.fromkeys((*names, *(self._decide("name", name) for name in names)))
        self._hinting = True
        texts = dict.fromkeys(text.removeprefix(_EVALUATE) for text in texts if not TOKEN.fullmatch(text))
        self._meanings.update(zip(texts, meanings_of(list(texts)), strict=True))

    def entry(self, key: bytes, separator: bytes, value: bytes | None) -> tuple[bytes, tuple[str, ...]]:
        """Redact JSON text: a key and the string under it, or, without a separator, only that string."""
        name = text_of(key)
        text = b""
        kinds: tuple[str, ...] = ()
        if separator:
            new_key, kinds = self.key(name)
            text = (key if new_key == name else json.dumps(new_key).encode()) + separator
        if value is not None:
            old = text_of(value)
            new, more = self.value(name, old)
            text += value if new == old else json.dumps(new).encode()
            kinds += more
        return text, kinds

    def _decide(self, key: str, value: str) -> str:
        if value == "":
            return value
        if not _is_known_key(key) or value.endswith(NOT_TEXT):
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
            is_token = TOKEN.fullmatch(text) is not None
            for hint in hints_of(meaning):
                hinted = f"[{hint}] {text}" if hint else text
                if (meaning_of_hint(hint) if is_token else meaning_of(hinted)) == meaning:
                    self._part(hint)
                    return hinted
        return redacted

    def _meaning(self, name: str) -> Meaning:
        return NO_MEANING if TOKEN.fullmatch(name) else self._meanings.get(name) or meaning_of(name)

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
        if not inside and not file.startswith("<") and (kind := host_kind(text)) and host_kind(redacted) != kind:
            hint = next((hint for hint in HOST_HINTS if host_kind(f"{hint}/x.py(1): f") == kind), "")
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
