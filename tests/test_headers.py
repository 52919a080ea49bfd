"""What the header of a module draws is there: `name(arguments) -> …` names a function and parameters that it has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT

MODULES = sorted((ROOT / "perfkit").rglob("*.py"))
ELSEWHERE = {
    "perfkit/capture/integrations/huggingface.py": {"Trainer"},  # of the framework
    "perfkit/capture/integrations/lightning.py": {"Trainer"},
    "perfkit/cli/main.py": {"add_arguments", "run"},  # what every command has
    "perfkit/sources/base.py": {"peek", "read"},  # what every source has
}


def drawn(header: str) -> Iterator[tuple[str, list[str]]]:
    """Yield name and argument names of each call in a header; a value or a type may stand for an argument."""
    lines = [re.split(r" *->|  ", line[4:])[0] for line in header.splitlines() if re.match(r"    \w", line)]
    for text in (part for line in lines for part in re.split(r" · \.?|; | = ", line)):
        if not re.match(r"(?!perfkit\.)[\w.]+\(.*\)", text):  # a whole path is of another module
            continue
        code = re.sub(r", \.\.\.(?=[)}\]])", "", text.rstrip("; …").replace("…", "..."))
        try:
            call: ast.expr = ast.parse(code, mode="eval").body
        except SyntaxError:
            yield text, []  # its arguments are no names
            continue
        while isinstance(call, ast.Call):  # of `Truth(job).of(rank)` both
            given = [arg.id for arg in call.args if isinstance(arg, ast.Name) and arg.id.islower()]
            given += [keyword.arg for keyword in call.keywords if keyword.arg]
            if isinstance(call.func, ast.Name | ast.Attribute):
                yield ast.unparse(call.func).rpartition(".")[2], given
            call = call.func.value if isinstance(call.func, ast.Attribute) else call.func


def defined(tree: ast.Module) -> dict[str, set[str]]:
    """Return the parameters of each function, method and class; `*` for what takes any."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            takes = {arg.arg for arg in every} | ({"*"} if node.args.vararg or node.args.kwarg else set())
            found.setdefault(node.name, set()).update(takes)
        elif isinstance(node, ast.ClassDef):
            takes = found.setdefault(node.name, set())
            for one in node.body:
                if isinstance(one, ast.FunctionDef) and one.name == "__init__":
                    takes |= {arg.arg for arg in ast.walk(one.args) if isinstance(arg, ast.arg)}
                elif isinstance(one, ast.AnnAssign):
                    takes.add(ast.unparse(one.target))
                elif isinstance(one, ast.Assign):  # close = wait
                    found.setdefault(ast.unparse(one.targets[0]), {"*"})
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                found.setdefault(alias.asname or alias.name, set()).add("*")
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_header_names_what_is_there(path: Path) -> None:
    tree = ast.parse(path.read_text())
    calls = list(drawn(ast.get_docstring(tree, clean=False) or ""))
    there = defined(tree)
    if calls and path.name == "__init__.py":  # it draws its package
        for other in path.parent.glob("*.py"):
            there = {**defined(ast.parse(other.read_text())), **there}
    wrong = []
    for name, given in calls:
        if name in ELSEWHERE.get(str(path.relative_to(ROOT)), ()):
            continue
        takes = there.get(name)
        if takes is None:
            wrong.append(f"no {name}")
        elif "*" not in takes:
            wrong += [f"{name} has no {one}" for one in given if one not in takes]
    assert not wrong
