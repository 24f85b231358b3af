"""Printable: the text of models, tools and others as people are shown it, which can do nothing to a terminal and does
not read otherwise than it is. Only what is shown is changed; what is stored keeps the exact text."""

from __future__ import annotations

import re

_UNSAFE = r"\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff"
"""Control characters, what begins a terminal's sequences among them; line separators; characters that turn the
direction of writing; halves of surrogate pairs."""
_IN_A_LINE = re.compile(rf"[\t\n{_UNSAFE}]")
_IN_LINES = re.compile(rf"[{_UNSAFE}]")


def printable(text: str, limit: int | None = 300) -> str:
    """On one line, unsafe characters as escapes, and of at most `limit` characters before these are made."""
    cut = text if limit is None or len(text) <= limit else text[: limit - 1] + "…"
    return _IN_A_LINE.sub(_escape, cut)


def printable_lines(text: str) -> str:
    """The same of all of a text, whose lines and tabs stay."""
    return _IN_LINES.sub(_escape, text)


def printable_json(text: str) -> str:
    """JSON that can do nothing to a terminal either, and means the same: such characters stand in strings alone, where
    JSON has escapes of its own for them."""
    return _IN_LINES.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def _escape(found: re.Match[str]) -> str:
    return found[0].encode("unicode_escape", "surrogatepass").decode()
