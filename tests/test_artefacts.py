"""What `python -m build` makes is complete, and installs with each extra."""

from __future__ import annotations

import email
import json
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import perfkit
from tests.conftest import ROOT

DATA = {".py", ".csv", ".toml", ".c", ".css", ".js", ".typed"}
IMPORTS = {
    "dashboard": "import perfkit_dashboards.app",
    "s3": "import s3fs, perfkit; from perfkit.store.filesystems import is_remote; assert is_remote('s3://bucket/runs')",
    "ray": "import ray, perfkit.engine",
    "train": "import torch, perfkit.reference.train, pynvml, nvtx",
}


def packaged() -> set[str]:
    """Return every file that the wheel must hold, by its name inside it."""
    files = subprocess.run(["git", "ls-files", "perfkit", "dashboards"], cwd=ROOT, capture_output=True, text=True)
    named = (Path(name) for name in files.stdout.split())
    return {str(path).replace("dashboards/", "perfkit_dashboards/", 1) for path in named if path.suffix in DATA}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--outdir", str(folder), str(ROOT)]  # the wheel is built from the sdist
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_sdist_holds_what_the_wheel_is_made_of_and_nothing_else(wheel):
    (sdist,) = wheel.parent.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        held = {name.partition("/")[2] for name in archive.getnames()} - {""}
    sources = {name.replace("perfkit_dashboards/", "dashboards/", 1) for name in packaged()}
    assert sources - held == set()
    others = {name for name in held - sources if not name.startswith("perfkit.egg-info")}
    folders = {str(parent) for name in sources for parent in Path(name).parents}
    files = {"LICENSE", "README.md", "CHANGELOG.md", "constraints.txt", "pyproject.toml", "setup.py", "MANIFEST.in"}
    assert others - folders == files | {"PKG-INFO", "setup.cfg"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_metadata_names_the_licence_and_no_host(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        head = email.message_from_bytes(archive.read(metadata))
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    assert (head["Name"], head["Version"]) == ("perfkit", perfkit.__version__)
    assert head["License-Expression"] == "Apache-2.0"
    assert set(head.get_all("Provides-Extra")) == {"train", "dashboard", "hta", "ray", "s3", "test", "all"}
    assert head["Project-URL"] is None
    assert head["Description-Content-Type"] == "text/markdown"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_oldest_versions_that_pyproject_allows_read_write_and_analyze(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        needed = email.message_from_bytes(archive.read(metadata)).get_all("Requires-Dist")
    oldest = [text.replace(">=", "==") for text in needed if ";" not in text]
    assert len(oldest) == 6
    venv.create(tmp_path / "venv", with_pip=True)
    install = [str(tmp_path / "venv/bin/pip"), "install", "--quiet", "--only-binary=:all:", *oldest, str(wheel)]
    done = subprocess.run(install, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    trace = str(ROOT / "sample_traces/simulated_h100")
    for command in (["ingest", trace, "--store", "s", "--run", "r"], ["analyze", "r", "--store", "s"]):
        done = subprocess.run(
            [str(tmp_path / "venv/bin/perfkit"), *command, "--format", "json"],
            cwd=tmp_path, capture_output=True, text=True,
        )  # fmt: skip
        assert (done.returncode, done.stderr) == (0, "")
        assert json.loads(done.stdout)["schema_version"] == 1


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_wheel_built_from_the_sdist_holds_every_module_and_data_file(wheel):
    held = set(zipfile.ZipFile(wheel).namelist())
    expected = packaged()
    assert len(expected) > 200
    assert expected - held == set()
    assert not [name for name in held if name.startswith(("tests/", "benchmarks/", "notebooks/"))]


@pytest.mark.slow
@pytest.mark.timeout(1500)
@pytest.mark.parametrize("extra", IMPORTS)
def test_the_wheel_installs_and_works_with_an_extra(extra, wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv/bin/python")
    install = [python, "-m", "pip", "install", "--quiet", "--constraint", str(ROOT / "constraints.txt")]
    subprocess.run([*install, f"perfkit[{extra}] @ {wheel.as_uri()}"], check=True)
    subprocess.run([python, "-c", IMPORTS[extra]], cwd=tmp_path, check=True)
    command = [str(tmp_path / "venv/bin/perfkit"), "analyze", str(ROOT / "sample_traces/simulated_h100")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert "rank 2" in done.stdout
