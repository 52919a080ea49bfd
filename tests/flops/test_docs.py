"""The Python blocks of docs/mfu.md are run, and its table names every convention."""

from __future__ import annotations

import ast
import inspect
import itertools
import re
from pathlib import Path

from perfkit.flops import spec
from perfkit.flops.conventions import CONVENTIONS

PAGE = Path(__file__).resolve().parents[2] / "docs" / "mfu.md"


def test_the_worked_examples_hold():
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 7
    namespace: dict[str, object] = {}
    for block in blocks:
        exec(block, namespace)


def rows_of(section: str) -> dict[str, str]:
    text = PAGE.read_text("utf-8").split(f"## {section}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `([\w-]+)`[^|]*\| (.*?) \|", text, re.MULTILINE))


def test_every_convention_is_in_the_table():
    assert set(rows_of("Conventions")) == set(CONVENTIONS)


def test_every_spec_key_is_in_the_table_with_the_words_of_its_docstring():
    (cls,) = (n for n in ast.parse(inspect.getsource(spec)).body if getattr(n, "name", "") == "TransformerSpec")
    docs = {
        field.target.id: doc.value.value
        for field, doc in itertools.pairwise(cls.body)
        if isinstance(field, ast.AnnAssign) and isinstance(doc, ast.Expr)
    }
    assert set(docs) == set(spec.FIELDS)
    assert rows_of("Spec keys") == docs


def test_the_families_asked_for_have_a_worked_example():
    headings = re.findall(r"^### (.*)$", PAGE.read_text("utf-8"), re.MULTILINE)
    assert [h.split(":")[0] for h in headings] == [
        "Grouped queries",
        "Experts",
        "Latent attention",
        "Sliding window",
        "LoRA",
    ]
