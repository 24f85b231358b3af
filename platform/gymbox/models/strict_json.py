"""Strict JSON: what models and endpoints read and write, without the constants that JSON does not have."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json, to_json

DEEPEST = 200
"""Lists and objects within each other; of more, a writer along the way would fail. Every reader ends somewhere."""


def strict_json(text: str | bytes) -> Any:
    """The decoded value.

    Raises:
        ValueError: it is not JSON, or holds NaN or an infinity, which could not be written to a record.
        RecursionError: it is nested too deeply.
    """
    try:
        return from_json(text, allow_inf_nan=False)
    except (ValueError, TypeError) as error:  # TypeError: a text with half a surrogate pair
        if str(error).startswith("recursion limit"):
            raise RecursionError(_TOO_DEEP) from error
        # several times slower: says what is wrong, and reads what only Python does: other encodings than UTF-8, and
        # halves of surrogate pairs
        decoded = text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
        found = _DECODER.decode(decoded)
        _refuse_depth(found)
        return found


def without_halves(value: Any, text: str | bytes) -> Any:
    """The value that was read from `text`, `?` for each half of a surrogate pair, which could not be written to a
    record."""
    read = text if isinstance(text, str) else text.decode("latin-1")
    # a search for one character is many times quicker than that for several, and most often enough
    return _whole(value) if "\\" in read and ("\\ud" in read or "\\uD" in read) else value


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [_whole(part) for part in value]
    if isinstance(value, dict):
        return {_whole(name): _whole(part) for name, part in value.items()}
    return value


def json_bytes(value: Any) -> bytes:
    """The value as JSON in UTF-8, which has no halves of surrogate pairs: `?` stands for them.

    Raises:
        ValueError: it holds NaN or an infinity, or itself.
    """
    try:
        written = to_json(value, inf_nan_mode="constants")
    except ValueError:
        written = b"NaN"
    # one byte is found, or not, many times quicker than a word
    if (b"N" in written and b"NaN" in written) or (b"I" in written and b"Infinity" in written):
        # as a word in a text, or else for a reason: the slower writer tells them apart
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")
    return written


def _refuse_depth(value: Any) -> None:
    inner = [value]
    for _ in range(DEEPEST + 2):
        inner = [
            part
            for each in inner
            if isinstance(each, list | dict)
            for part in (each.values() if isinstance(each, dict) else each)
        ]
        if not inner:
            return
    raise RecursionError(_TOO_DEEP)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_TOO_DEEP = f"it is nested more than {DEEPEST} times"
_DECODER = json.JSONDecoder(parse_constant=_refuse)
