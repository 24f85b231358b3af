"""Texts: when two rows count as the same, and when the one gives the other away.

exact         the same row, whatever the order of its fields; `id` and NeMo Gym's `_ng_…` numbers do not count
normalised    the same once every text is NFKC, in lower case, and its white space is one blank
prompt        what the user is told is the same, normalised; the rest of the task may differ
n-gram        of the words' n-grams in what the user is told, the share that stand in some row of the other file
"""

from __future__ import annotations

import hashlib
import json
import re
import unicodedata
from array import array
from typing import Any

from gymbox.row_check import PARAMS

_WORD = re.compile(r"\w+")


def exact_digest(fields: dict[str, Any]) -> bytes:
    """16 bytes, the same for rows that are exactly the same."""
    return _digest(_told(fields))


def normalised_digest(fields: dict[str, Any]) -> bytes:
    """16 bytes, the same for rows that are the same once normalised."""
    return _digest(_normalised(_told(fields)))


def prompt_digest(fields: dict[str, Any]) -> bytes | None:
    """16 bytes, the same for rows whose user says the same. None: the user says nothing."""
    text = normalised(prompt_text(fields))
    return _digest(text) if text else None


def normalised(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).casefold().split())


def prompt_text(fields: dict[str, Any]) -> str:
    """What the user says in a row, its texts joined by newlines. Not what the system says, which many rows share."""
    params = fields.get(PARAMS)
    given = params.get("input") if isinstance(params, dict) else None
    if isinstance(given, str):
        return given
    items = given if isinstance(given, list) else []
    said: list[str] = []
    for item in items:
        if isinstance(item, dict) and item.get("role") == "user":
            content = item.get("content")
            parts = content if isinstance(content, list) else [{"text": content}]
            said += [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "\n".join(said)


def ngrams(text: str, length: int) -> array[int]:
    """8-byte digests of the different n-grams of words in a text, normalised; none where it has fewer words."""
    words = _WORD.findall(normalised(text))
    grams = {" ".join(words[at : at + length]) for at in range(len(words) - length + 1)}
    return array("Q", b"".join(sorted(hashlib.blake2b(gram.encode(), digest_size=8).digest() for gram in grams)))


def _told(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if name != "id" and not name.startswith("_ng_")}


def _normalised(value: Any) -> Any:
    if isinstance(value, str):
        return normalised(value)
    if isinstance(value, list):
        return [_normalised(part) for part in value]
    if isinstance(value, dict):
        return {name: _normalised(part) for name, part in value.items()}
    return value


def _digest(value: Any) -> bytes:
    return hashlib.blake2b(json.dumps(value, sort_keys=True).encode(), digest_size=16).digest()
