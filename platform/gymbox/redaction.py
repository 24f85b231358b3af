"""Redaction: known secrets taken out of what is written down, by their value, wherever and however they stand."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator
from typing import Any
from urllib.parse import quote, quote_plus

SHORTEST = 6
"""Characters. What is shorter (`EMPTY`, as keys of local servers often are) would take harmless text with it."""

BEGINNING = 12
"""Characters of a longer secret that are not shown either: more than the beginnings that all keys of a provider have
in common."""


class Redaction:
    """Replaces every one of some secrets by a mark, equal ones by equal marks.

    Found are a secret as it is, escaped as in JSON (also JSON within JSON), URL-encoded, in hexadecimal, and in Base64
    of either alphabet, also where it is only a part of what was encoded.
    """

    def __init__(self, secrets: Iterable[str]) -> None:
        self._marks: dict[str, str] = {}
        for secret in secrets:
            if len(secret) >= SHORTEST:
                self._marks |= dict.fromkeys(forms_of(secret), mark_of(secret))
        longest_first = sorted(self._marks, key=len, reverse=True)
        self._found = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None

    def is_in(self, text: str) -> bool:
        """Whether a secret stands in a text."""
        return self._found is not None and self._found.search(text) is not None

    def text(self, text: str) -> str:
        """The text without secrets."""
        return text if self._found is None else self._found.sub(lambda found: self._marks[found[0]], text)

    def value(self, value: Any) -> Any:
        """A JSON value without secrets, in its keys neither."""
        if isinstance(value, str):
            return self.text(value)
        if self._found is not None and isinstance(value, list):
            # most of a long list are numbers
            return [self.value(part) if isinstance(part, str | list | dict) else part for part in value]
        if self._found is not None and isinstance(value, dict):
            return {self.text(name): self.value(part) for name, part in value.items()}
        return value

    def is_in_texts_of(self, events: Iterable[Any]) -> bool:
        """Whether a secret stands in the texts of a stream's events, put together where they belong together."""
        joined: dict[tuple[Any, ...], list[str]] = {}
        for event in events:
            for place, text in _texts(event, ()):
                joined.setdefault(place, []).append(text)
        return any(self.is_in("".join(texts)) for texts in joined.values())


def mark_of(secret: str) -> str:
    """What stands in the place of a secret."""
    return f"[redacted {hashlib.sha256(secret.encode('utf-8', 'replace')).hexdigest()[:8]}]"


def forms_of(secret: str) -> list[str]:
    """How a secret may stand in a text, the longest first; see `Redaction`."""
    return sorted(set(_forms(secret)), key=len, reverse=True)


def without(text: str, secret: str) -> str:
    """A text for people without a secret in any of its forms, also where it was cut off in the midst of one."""
    for form in forms_of(secret):
        text = text.replace(form, "***")
        while len(form) > BEGINNING and (at := text.find(form[:BEGINNING])) >= 0:
            begun = os.path.commonprefix([text[at:], form])
            text = f"{text[:at]}***{text[at + len(begun) :]}"
    return text


def _forms(secret: str) -> Iterator[str]:
    raw = secret.encode("utf-8", "surrogatepass")
    yield from (secret, quote(raw), quote(raw, safe=""), quote_plus(raw), raw.hex(), raw.hex().upper())
    for ascii in (True, False):
        once = json.dumps(secret, ensure_ascii=ascii)[1:-1]
        yield from (once, *(json.dumps(once, ensure_ascii=again)[1:-1] for again in (True, False)))
    for shift, mixed in ((0, 0), (1, 2), (2, 3)):
        # of the characters at both ends, some bits belong to the neighbours
        whole = (shift + len(raw)) * 8 // 6
        for encode in (base64.b64encode, base64.urlsafe_b64encode):
            core = encode(b"\0" * shift + raw).decode()[mixed:whole]
            if len(core) >= SHORTEST:
                yield core


def _texts(value: Any, place: tuple[Any, ...]) -> Iterator[tuple[tuple[Any, ...], str]]:
    if isinstance(value, str):
        yield place, value
    elif isinstance(value, list):
        for part in value:
            yield from _texts(part, place)
    elif isinstance(value, dict):
        numbers = tuple(value[name] for name in ("output_index", "content_index", "index") if name in value)
        for name, part in value.items():
            yield from _texts(part, (*place, *numbers, name))
