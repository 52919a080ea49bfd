"""Run a function over many inputs: in local processes, on Ray, or a share of it in each of many processes.

with open_engine("ray", address="10.0.0.1:6379") as engine: perfkit.ingest(..., engine=engine)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from perfkit.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from perfkit.engine.base import Engine

ENGINES = ("local", "ray")


@contextmanager
def open_engine(name: str, *, address: str | None = None) -> Iterator[Engine | None]:
    """Open an engine by name; None for the local one, which every command sizes for its own work."""
    if name == "local":
        if address is not None:
            raise UsageError("--address is where a Ray cluster is", next_step="add --engine ray")
        yield None
        return
    from perfkit.engine.ray import RayEngine

    engine = RayEngine(address)
    try:
        yield engine
    finally:
        engine.close()


def add_engine_arguments(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Declare `--engine` and `--address`."""
    parser.add_argument(
        "--engine", choices=ENGINES, default="local", help="where the ranks are worked on (default: processes here)"
    )
    parser.add_argument(
        "--address", metavar="A", help="of the Ray cluster (default: RAY_ADDRESS, else a new local Ray)"
    )
