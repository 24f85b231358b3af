"""Chat citations: where a text comes from, as Chat has it (nested) and as Responses have it (flat).

    {"type": "url_citation", "url_citation": {"url": …, "start_index": …}}
    {"type": "url_citation", "url": …, "start_index": …}

An annotation of another kind is the same in both.
"""

from __future__ import annotations

from typing import Any

_KIND = "url_citation"
_PLACES = ("start_index", "end_index")


def annotations_from_chat(given: Any) -> list[Any]:
    """The annotations of a Chat message as those of an output text."""
    return [_flat(each) for each in given] if isinstance(given, list) else []


def annotations_for_chat(given: list[Any], before: int) -> list[Any]:
    """The annotations of an output text as those of a Chat message.

    Args:
        before: characters that stand before the text in the message.
    """
    return [_nested(each, before) for each in given]


def _flat(annotation: Any) -> Any:
    cited = annotation.get(_KIND) if isinstance(annotation, dict) else None
    if not isinstance(cited, dict):
        return annotation
    return {name: value for name, value in annotation.items() if name != _KIND} | cited | {"type": _KIND}


def _nested(annotation: Any, before: int) -> Any:
    if not isinstance(annotation, dict) or annotation.get("type") != _KIND or "url" not in annotation:
        return annotation
    cited = {name: value for name, value in annotation.items() if name != "type"}
    moved = {name: cited[name] + before for name in _PLACES if isinstance(cited.get(name), int)}
    return {"type": _KIND, _KIND: cited | moved}
