"""Arms perfkit in every Python process of `perfkit run`, then lets the machine's own sitecustomize run."""

import importlib.machinery
import importlib.util
import os
import sys


def _run_the_next_one() -> None:
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - before anything is imported
    rest = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]  # noqa: PTH100
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", rest)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


def _arm() -> None:
    try:
        from perfkit.capture.unedited.importing import arm
    except ImportError:
        if "PERFKIT_RUN_TOLD" not in os.environ:
            os.environ["PERFKIT_RUN_TOLD"] = "1"
            sys.stderr.write(f"perfkit: not installed for {sys.executable}; this process is not recorded\n")
        return
    arm()


if os.environ.get("PERFKIT_RUN"):
    _arm()
_run_the_next_one()
