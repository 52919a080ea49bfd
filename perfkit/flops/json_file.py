"""Read a JSON object from a file, with errors that name the file and the next step.

read_json_object(path, what="a Hugging Face config.json") -> dict
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from perfkit.errors import CorruptInput, InputError


def read_json_object(path: Path, *, what: str) -> dict[str, Any]:
    """Return the object in the file; `what` says in an error what was expected."""
    try:
        document = json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        raise InputError("no such file", path=str(path), next_step=f"give {what}") from None
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=str(path), next_step=f"give {what}") from None
    except (ValueError, RecursionError) as error:  # bad JSON, bad UTF-8, absurd nesting
        raise CorruptInput(f"not valid JSON: {error}", path=str(path), next_step=f"give {what}") from None
    if not isinstance(document, dict):
        raise CorruptInput("not a JSON object", path=str(path), next_step=f"give {what}")
    return document
