"""What a name means to an analysis, and which hints say it where the name has gone.

meaning_of(name) -> Meaning     its class, family, kind of host work, number format, roles
hints_of(meaning) -> [text]     words that may say the same, fewest first
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from functools import lru_cache

from perfkit.analysis.classify import default_classifier
from perfkit.redact.names import HOST_HINTS, KERNEL_HINTS, PRECISIONS, ROLE_HINTS, TENSOR_CORES

Meaning = tuple[str | None, ...]
NO_MEANING: Meaning = (None,) * 7
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
def host_kind(name: str) -> str | None:
    """Return the kind of host work that the name of a range or frame stands for."""
    return _first(_patterns("host", ""), name.lower())


def meaning_of(name: str) -> Meaning:
    """Return what perfkit reads in a name, of a kernel or of a range: which of the two it is may not be known yet."""
    text = name.lower()
    special, family = _first(_patterns("class", "compute"), text), _first(_patterns("family", ""), text)
    return _whole_meaning(text, special, family, host_kind(text))


def meanings_of(names: Sequence[str]) -> list[Meaning]:
    """Return the same of many names, ten times faster."""
    match_all, texts = default_classifier().match_all, [name.lower() for name in names]
    found = (match_all(kind, of, texts) for kind, of in (("class", "compute"), ("family", ""), ("host", "")))
    return [_whole_meaning(*each) for each in zip(texts, *found, strict=True)]


def _whole_meaning(text: str, special: str | None, family: str | None, host: str | None) -> Meaning:
    family = None if special else family
    is_product = family in ("gemm", "conv", "attention")
    precision, tensor = (_first(rules, text) if is_product else None for rules in (_PRECISIONS, _TENSOR_CORES))
    roles = (_first([role], text) for role in _ROLES)
    return special, family, host, precision, tensor, *roles


_PRECISIONS = [(re.compile(pattern), word) for word, pattern in PRECISIONS]
_TENSOR_CORES = [(re.compile(TENSOR_CORES[1]), TENSOR_CORES[0])]
_ROLES = [(re.compile(pattern), word) for word, pattern in ROLE_HINTS]


@lru_cache(maxsize=4096)
def meaning_of_hint(hint: str) -> Meaning:
    """Return what a hint says in front of a token."""
    return meaning_of(f"[{hint}] symbol_0123456789")


@lru_cache(maxsize=4096)
def hints_of(meaning: Meaning) -> list[str]:
    """Return the words that may say a meaning, fewest first."""
    _, _, host, precision, tensor, *roles = meaning
    kernels = ["", *(hint for hint in KERNEL_HINTS if meaning_of(hint)[:2] == meaning[:2])]
    hosts = ["", *(hint for hint in HOST_HINTS if host_kind(hint) == host)] if host else [""]
    others = [["", word] if word else [""] for word in (precision, tensor, *roles)]
    return sorted((" ".join(filter(None, group)) for group in itertools.product(kernels, hosts, *others)), key=len)
