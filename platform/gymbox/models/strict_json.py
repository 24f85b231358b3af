"""Strict JSON: what models and endpoints read and write, without the constants that JSON does not have."""

from __future__ import annotations

import json
from typing import Any

from pydantic_core import from_json, to_json


def strict_json(text: str | bytes) -> Any:
    """The decoded value.

    Raises:
        ValueError: it is not JSON, or holds NaN or an infinity, which could not be written to a record.
        RecursionError: it is nested too deeply.
    """
    try:
        return from_json(text, allow_inf_nan=False)
    except ValueError:
        # several times slower: says what is wrong, and reads what only Python does: other encodings than UTF-8, and
        # halves of surrogate pairs
        decoded = text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass")
        return _DECODER.decode(decoded)


def json_bytes(value: Any) -> bytes:
    """The value as JSON in UTF-8, which has no halves of surrogate pairs: `?` stands for them.

    Raises:
        ValueError: it holds NaN or an infinity, or itself.
    """
    try:
        written = to_json(value, inf_nan_mode="constants")
    except ValueError:
        written = b"NaN"
    if b"NaN" in written or b"Infinity" in written:
        # as a word in a text, or else for a reason: the slower writer tells them apart
        text = json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return text.encode("utf-8", "replace")
    return written


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
