"""Every example that `--help` shows is typed here: it is understood, and it does what it says or stands in NOT_RUN."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from perfkit.cli.main import build_parser

NOT_RUN = {
    r"^perfkit demo": "tests/cli/test_demo.py runs it",
    r"^perfkit run ": "tests/capture runs it",
    r"s3://": "needs a bucket; tests/store and tests/engine have one",
    r"…": "shortened for the reader",
    r"^perfkit hardware --calibrate": "tests/hardware runs it",
    r"^perfkit hang": "needs a job that hung; tests/analysis/test_hang.py",
    r"^perfkit trace": "needs a live run; tests/capture",
    r"^perfkit serve-metrics (?!.*--once)": "serves until it is stopped; tests/capture",
    r"^perfkit dashboard": "serves until it is stopped, or asks; tests/dashboards",
    r"^perfkit health --(expect-gpus|sniff)": "its exit code is the state of this machine; tests/cli/test_health.py",
    r"--days 365": "takes a minute; shorter ones run in tests/simulate",
}
JUDGES = {"--fail-on": (0, 1), "perfkit health --store": (0, 1, 3)}
"""Their exit code is a verdict."""

WORLD = """
perfkit simulate trace --ranks 8 --steps 12 --layers 2 --seed 3 -o traces
for k in 0 3; do cp traces/rank0000$k.pt.trace.json.gz rank$k.json.gz; done
perfkit simulate trace --ranks 2 --steps 12 --layers 2 --seed 4 -o base
perfkit simulate trace --ranks 2 --steps 12 --layers 2 --seed 5 -o new
mkdir pair; cp -r base pair/before; cp -r new pair/after
tar czf dump.tar.gz base
perfkit simulate fleet --clusters 1 --days 20 --runs 12 --seed 1 -o runs
for k in traces:llama-8b base:baseline new:candidate base:baseline-2 new:candidate-2; do
  perfkit ingest ${k%%:*} --store runs --run ${k##*:}
  perfkit analyze ${k##*:} --store runs --format json -o /dev/null
done
python - <<'END'
import time, perfkit
pk = perfkit.init(run="llama-8b", rank=0, world_size=1, store="runs", model="llama3-8b", seq_len=8192)
for step in range(20):
    with pk.step(tokens=8192):
        time.sleep(0.01)
pk.finish()
END
cat > sacct.txt <<'END'
JobID|JobName|User|Partition|Cluster|State|ExitCode|Submit|Eligible|Start|End|AllocTRES|NNodes|NodeList
71|pretrain|ada|gpu|prod-a|COMPLETED|0:0|2025-03-01T08:00:00|2025-03-01T08:00:00|2025-03-01T08:05:00|2025-03-01T20:05:00|gres/gpu=16,node=2|2|n[01-02]
END
echo '{"apiVersion": "v1", "kind": "List", "items": []}' > pods.json
echo 'model,seq_len,tokens_per_second_per_device,hardware,dtype
llama3-8b,8192,5762,NVIDIA H100 80GB HBM3,bf16' > rows.csv
"""


def examples(parser: argparse.ArgumentParser | None = None) -> Iterator[str]:
    """Yield the commands in the epilogs of all parsers, without what is said about them."""
    parser = parser or build_parser()
    text = re.sub(r"\\\n\s+", "", parser.epilog or "")
    for line in re.findall(r"^(?:\s*|examples?: )(perfkit .*)$", text, re.MULTILINE):
        yield re.split(r"\s{2,}(?=\S)|\s+#", line)[0].strip()
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for child in action.choices.values():
                yield from examples(child)


ALL = sorted(set(examples()))


@pytest.mark.parametrize("example", ALL)
def test_an_example_is_understood(example: str) -> None:
    words = shlex.split(example.split(" | ")[0].replace("…", ""))[1:]
    build_parser().parse_args(words)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("world")
    shell(WORLD, folder)
    return folder


def shell(command: str, folder: Path, allowed: tuple[int, ...] = (0,)) -> str:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command], cwd=folder, env={**os.environ, "PATH": path},
        stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode in allowed, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("example", [e for e in ALL if not any(re.search(why, e) for why in NOT_RUN)], ids=str)
def test_an_example_does_what_it_says(example: str, world: Path, tmp_path: Path) -> None:
    shell(f"cp -rl {shlex.quote(str(world))}/. .", tmp_path)  # the store replaces files, it never changes one
    typed = example.split(" | ")[0].replace("/var/lib/node_exporter/", "")
    if "traces/before" in typed:
        shell("rm -r traces; mv pair traces", tmp_path)
    if typed.startswith("perfkit simulate"):
        shell("rm -r traces", tmp_path)
    said = shell(typed, tmp_path, next((codes for word, codes in JUDGES.items() if word in typed), (0,)))
    written = re.search(r" -o (\S+)", typed)
    assert (tmp_path / written[1]).exists() if written else said.strip()


def test_every_reason_not_to_run_an_example_has_one() -> None:
    assert not [why for why in NOT_RUN if not any(re.search(why, example) for example in ALL)]
