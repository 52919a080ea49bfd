"""Every error about an input tells its reader what to do."""

from __future__ import annotations

import ast
import pickle
from pathlib import Path

import pytest

from perfkit import errors
from tests.conftest import ROOT

ABOUT_INPUTS = {"InputError", "UnsupportedInput", "CorruptInput", "UnsafeInput", "NotATrace"}


def raised_without_a_next_step(file: Path) -> list[str]:
    calls = (node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call))
    return [
        f"{file.relative_to(ROOT)}:{call.lineno}"
        for call in calls
        if isinstance(call.func, ast.Name) and call.func.id in ABOUT_INPUTS
        if not any(keyword.arg == "next_step" for keyword in call.keywords)
    ]


@pytest.mark.parametrize("package", ["sources", "store", "engine", "cli"])
def test_every_error_about_an_input_names_the_next_step(package):
    files = list((ROOT / "perfkit" / package).rglob("*.py"))
    assert files
    assert [place for file in files for place in raised_without_a_next_step(file)] == []


def test_an_error_crosses_processes_whole():
    error = errors.UnsafeInput("a bomb", path="x.gz", next_step="unpack it")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), copy.path) == (errors.UnsafeInput, "x.gz: a bomb; unpack it", "x.gz")
