"""HTML that is escaped unless it was made here.

    tag("td", name, class_="num")      -> Html
    Html                               a str that is known to be markup; only `tag` and `raw` make one

Anything that is not Html is text: it is cleaned of unprintable characters and escaped, in content and in attributes.
There is no way to write an event handler, a style or a link: attributes are checked against a list.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

from perfkit.report.format import clean

_ATTRIBUTE = re.compile(
    r"class|id|scope|colspan|title|for|type|placeholder|hidden|role|tabindex|open|lang|charset|name|content|http-equiv|"
    r"autocomplete|value|min|max|step|aria-[a-z]+|data-[a-z]+|viewBox|preserveAspectRatio|x|y|x1|x2|y1|y2|cx|cy|r|rx|d|width|height|"
    r"text-anchor|fill-opacity|dominant-baseline|focusable"
)
_VOID = frozenset({"meta", "input", "br"})


class Html(str):
    """Text that is markup already."""

    __slots__ = ()


def tag(name: str, /, *children: object, **attributes: object) -> Html:
    """Make an element; `class_` and `data_x` become `class` and `data-x`. None and False leave a thing out."""
    opening = [name]
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        assert _ATTRIBUTE.fullmatch(key), f"attribute {key!r} is not on the list"
        if value is True:
            opening.append(key)
        elif value is not None and value is not False:
            opening.append(f'{key}="{html.escape(clean(value))}"')
    start = f"<{' '.join(opening)}>"
    return Html(start if name in _VOID else f"{start}{text(*children)}</{name}>")


def text(*children: object) -> Html:
    """Join children: markup as it is, lists one by one, everything else escaped."""
    parts = []
    for child in children:
        if isinstance(child, Html):
            parts.append(child)
        elif isinstance(child, Iterable) and not isinstance(child, (str, bytes)):
            parts.append(text(*child))
        elif child is not None:
            parts.append(Html(html.escape(clean(child))))
    return Html("".join(parts))


def raw(markup: str) -> Html:
    """Vouch for markup: only for files of this package."""
    return Html(markup)
