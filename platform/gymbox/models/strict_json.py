"""Strict JSON: what models and endpoints write, read without the constants that JSON does not have."""

from __future__ import annotations

import json
from typing import Any


def strict_json(text: str | bytes) -> Any:
    """The decoded value.

    Raises:
        ValueError: it is not JSON, or holds NaN or an infinity, which could not be written to a record.
        RecursionError: it is nested too deeply.
    """
    return _DECODER.decode(text if isinstance(text, str) else text.decode(json.detect_encoding(text), "surrogatepass"))


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse)
