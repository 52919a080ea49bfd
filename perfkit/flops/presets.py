"""Named models: data/presets.toml as TransformerSpec.

    preset("llama3-8b") -> TransformerSpec
    preset_names() -> list of names

A name matches whole, with case, dashes, underscores and spaces folded (`Llama-3-8B` is `llama3-8b`), without
the owner of a Hugging Face repository and without the word of a tuned checkpoint, which changes no shape
(`meta-llama/Llama-3.1-8B-Instruct`). Only dimensions are stored; parameters are counted from them, and a test
compares with published totals. `like` takes over another model's table, so that a variant shows what differs.
"""

from __future__ import annotations

import difflib
import re
import sys
from functools import cache
from importlib import resources
from typing import Any

from perfkit.errors import UsageError
from perfkit.flops.spec import TransformerSpec, spec_from_dict

if sys.version_info >= (3, 11):
    import tomllib
else:  # pragma: no cover
    import tomli as tomllib


@cache
def _tables() -> dict[str, dict[str, Any]]:
    text = resources.files("perfkit.flops").joinpath("data", "presets.toml").read_text("utf-8")
    return tomllib.loads(text)


@cache
def _index() -> dict[str, str]:
    index = {}
    for name, table in _tables().items():
        for alias in (name, *table.get("aliases", ())):
            assert _fold(alias) not in index, alias
            index[_fold(alias)] = name
    return index


def _fold(name: str) -> str:
    key = name.strip().lower()
    if re.fullmatch(r"[\w.-]+/[\w.-]+", key):
        key = key.partition("/")[2]
    key = re.sub(r"^meta-(?=llama)", "", key)
    key = re.sub(r"[-_](?:hf|base|instruct|chat|it)$", "", key)
    return re.sub(r"[-_\s]+", "", key)


def _dimensions(name: str) -> dict[str, Any]:
    table = _tables()[name]
    base = _dimensions(table["like"]) if "like" in table else {}
    return base | {key: value for key, value in table.items() if key not in ("source", "aliases", "like")}


def preset_names() -> list[str]:
    """Names of all presets, without aliases."""
    return list(_tables())


def preset_source(name: str) -> str:
    """Where the dimensions of a preset come from."""
    return str(_tables()[_index()[_fold(name)]]["source"])


def preset(name: str, *, instead: str = "--spec FILE.json or --hf-config config.json") -> TransformerSpec:
    """Return a named model; an error says what the caller takes `instead` of a name."""
    try:
        canonical = _index()[_fold(name)]
    except KeyError:
        close = difflib.get_close_matches(_fold(name), _index(), n=4, cutoff=0.6)
        near = f"near it: {', '.join(sorted({_index()[c] for c in close}))}; " if close else ""
        raise UsageError(
            f"no preset {name!r}",
            next_step=f"{near}list all with `perfkit mfu --list`, or use {instead}",
        ) from None
    return spec_from_dict({"name": canonical, **_dimensions(canonical)})
