"""The package as it is installed and as its README describes it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

import perfkit
from perfkit.cli.main import COMMANDS, load_command, main
from tests.conftest import ROOT

README = (ROOT / "README.md").read_text()
EXTRAS = ("torch", "dash", "plotly", "ray", "hta", "pynvml", "nvtx")


def test_the_module_map_lists_every_module_and_no_other():
    listed = set(re.findall(r"^  (\w+(?:\.py|/))", README.split("## Module map")[1], flags=re.MULTILINE))
    folder = ROOT / "perfkit"
    there = {f"{path.name}/" for path in folder.iterdir() if (path / "__init__.py").exists()}
    there |= {path.name for path in folder.glob("*.py") if path.name != "__main__.py"}
    assert listed == there


def test_the_command_table_lists_every_command_and_no_other():
    listed = set(re.findall(r"^\| `perfkit ([\w-]+)", README.split("## Commands")[1], flags=re.MULTILINE))
    assert listed == set(COMMANDS)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_with_an_example(name, capsys):
    assert main([name, "--help"]) == 0
    assert f"perfkit {name}" in capsys.readouterr().out.split("usage:")[1].split("\n", 1)[1]
    assert load_command(name).__doc__


def test_every_public_name_resolves():
    for name in perfkit.__all__:
        assert getattr(perfkit, name) is not None
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = perfkit.no_such_name


def test_importing_perfkit_imports_nothing_heavy():
    code = "import sys, perfkit.cli.main as m; m.build_parser(); print([n for n in sys.argv[1:] if n in sys.modules])"
    heavy = ("numpy", "pyarrow", "pandas", "duckdb", "rich", *EXTRAS)
    done = subprocess.run([sys.executable, "-c", code, *heavy], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_usage_errors_end_with_2_and_help_with_0(capsys):
    assert main([]) == 2
    assert main(["no-such-command"]) == 2
    assert main(["--help"]) == 0
    assert main(["--version"]) == 0
    assert f"perfkit {perfkit.__version__}" in capsys.readouterr().out


def test_the_table_reference_is_current():
    from perfkit.schema import render_reference

    assert (ROOT / "docs/tables.md").read_text() == render_reference(), "run `make docs`"


def test_no_document_names_a_path_of_a_developers_machine():
    files = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.split()
    for name in files:
        path = ROOT / name
        if (
            path.suffix in (".md", ".py", ".toml", ".c", ".txt", ".csv", "")
            and path.is_file()
            and path.name != Path(__file__).name
        ):
            found = re.findall(r"(?<![\w.])/(?:work|root)/\w+", path.read_text(errors="replace"))
            assert not found, f"{name}: {found}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_wheel_works_in_a_venv_without_extras_and_without_a_compiler(tmp_path):
    environment = {**os.environ, "CC": "/bin/false"}
    wheels = tmp_path / "wheels"
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(wheels), str(ROOT)]
    subprocess.run(build, env=environment, check=True)
    (wheel,) = wheels.glob("*.whl")
    assert "perfkit/capture/unedited/site/sitecustomize.py" in zipfile.ZipFile(wheel).namelist()  # `perfkit run`
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv/bin/python"
    install = [str(python), "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*install, *map(str, wheels.glob("*.whl"))], check=True)
    check = (
        "import perfkit, perfkit_dashboards, importlib.util as u, perfkit.sources.scan as s;"
        f"print([n for n in {EXTRAS!r} if u.find_spec(n)], s.have_c_scanner())"
    )
    seen = subprocess.run([str(python), "-c", check], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert seen.stdout.strip() == "[] False"
    subprocess.run([str(tmp_path / "venv/bin/perfkit"), "--help"], cwd=tmp_path, capture_output=True, check=True)
    command = ["ingest", str(ROOT / "sample_traces/ddp_gloo"), "--store", str(tmp_path / "store")]
    done = subprocess.run(
        [str(tmp_path / "venv/bin/perfkit"), *command], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert "2 of 2 ranks" in done.stdout
