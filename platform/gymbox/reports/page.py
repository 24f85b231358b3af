"""Page: a report as one HTML file that asks for nothing else, put together from `assets` and the report's own data.

The data stand in script elements that no browser runs, as gzip in Base64: no text of a model can end such an element.
What is shown of them is made by `assets/*.js`, which only ever sets text. The policy in the head holds it to that: it
names the digest of the one script and the one style sheet, allows no connection, and no string to become HTML or code
(Content Security Policy level 3; Trusted Types).
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import BinaryIO

from gymbox.printable import printable
from gymbox.reports.embedded import Embedded, pack
from gymbox.reports.report import Report
from gymbox.reports.sources import Source
from gymbox.reports.trajectories import TEXT, Room

SCRIPTS = (
    *("dom", "formats", "data", "charts", "plots", "figures", "metrics", "subsets"),
    *("compared", "agents"),
    *("rows", "columns", "filters", "table", "judge", "rollout", "reader", "page"),
)
"""In the order in which they stand in the page; they share one scope."""
STYLES = ("page", "figures", "table", "reader", "media")
MARGIN = 64 * 1024
"""Bytes kept free for what is between the packed parts."""


@dataclass(frozen=True)
class PageOptions:
    """What a page has room for."""

    size: int = 30_000_000
    """Bytes; trajectories beyond are left out, and the page says so."""
    text: int = TEXT
    """Characters of one text."""
    answers: bool = True
    """Whether what only the verifier saw is in it."""


def write_page(file: BinaryIO, report: Report, sources: Sequence[Source], options: PageOptions) -> None:
    """Write the page of a report on these runs. Memory grows with their rows, not with their trajectories.

    Raises:
        ConfigError: a run has changed since it was read.
    """
    head, between, tail = _shell(report.title)
    said = pack(report.dumped())
    rows = [source.rows.told() for source in sources]
    taken = len(head) + len(between) + len(said) + sum(len(pack(_json(each))) for each in rows)
    share = max(0, options.size - taken - MARGIN - 40 * sum(len(source.rows) for source in sources) // 10)
    places = []
    embedded = [Embedded(share // len(sources)) for _ in sources]
    try:
        for source, each in zip(sources, embedded, strict=True):
            room = Room(text=options.text)
            places.append(each.add(source, source.rows.by_priority(), room=room, answers=options.answers))
        file.write(head)
        file.write(_data("report", said))
        for number, (told, found) in enumerate(zip(rows, places, strict=True)):
            told["chunk"] = [place[0] if place else -1 for place in found]
            told["place"] = [place[1] if place else -1 for place in found]
            file.write(_data(f"rows-{number}", pack(_json(told))))
        file.write(between)
        for number, each in enumerate(embedded):
            for chunk, content in enumerate(each.packed()):
                file.write(_data(f"chunk-{number}-{chunk}", content))
        file.write(tail)
    finally:
        for each in embedded:
            each.close()


def _shell(title: str) -> tuple[bytes, bytes, bytes]:
    """What stands before the data, between them and the trajectories, and at the end. The script comes before the
    trajectories, so a page is there to be used before they have all been read."""
    assets = files("gymbox.reports") / "assets"
    style = "\n".join((assets / f"{name}.css").read_text("utf-8") for name in STYLES)
    script = "\n".join((assets / f"{name}.js").read_text("utf-8") for name in SCRIPTS)
    script = f'(() => {{\n"use strict";\n{script}}})();\n'
    page = (assets / "page.html").read_text("utf-8")
    policy = "; ".join(_policy(style, script))
    for name, content in (("policy", policy), ("title", html.escape(printable(title, None))), ("style", style)):
        page = page.replace(f"<!-- {name} -->", content)
    head, _, rest = page.partition("<!-- data -->")
    before, _, after = rest.partition("<!-- script -->")
    between, _, tail = f"{before}<script>{script}</script>{after}".partition("<!-- trajectories -->")
    return head.encode(), between.encode(), tail.encode()


def _policy(style: str, script: str) -> Iterator[str]:
    yield "default-src 'none'"
    yield f"script-src '{_digest(script)}'"
    yield f"style-src '{_digest(style)}'"
    yield "img-src data:"
    yield "base-uri 'none'"
    yield "form-action 'none'"
    yield "require-trusted-types-for 'script'"
    yield "trusted-types 'none'"


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _data(name: str, packed: bytes) -> bytes:
    return b'<script type="text/plain" id="%s">%s</script>\n' % (name.encode(), packed)


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()
