"""Event places: where in the answer an event of the Responses API belongs, filled in where a server leaves it out.

llama.cpp's events name their item and give no `output_index`, `content_index` or `summary_index`. Items, and the parts
of each, begin in the order of their places.
"""

from __future__ import annotations

from gymbox.models.events import Event

_CONTENT = ("response.content_part.", "response.output_text.", "response.refusal.", "response.reasoning_text.")
_SUMMARY = ("response.reasoning_summary_part.", "response.reasoning_summary_text.")
_ITEM = "response.output_item."
_PLACED = (_ITEM, "response.function_call_arguments.", *_CONTENT, *_SUMMARY)


class Places:
    """The places of one answer's events."""

    def __init__(self) -> None:
        self._items: dict[str, int] = {}
        self._count = 0
        self._parts: dict[tuple[int, str], int] = {}
        """How many parts of an item have begun, by what counts them."""

    def fill(self, event: Event) -> None:
        """Put into an event what it lacks of its place; one that cannot be placed stays as it is."""
        kind = event.get("type")
        if not isinstance(kind, str) or not kind.startswith(_PLACED):
            return
        id = _item_id(event)
        place = event.get("output_index")
        if place is None:
            place = self._items.get(id, self._count if kind.startswith(_ITEM) else None)
        if not isinstance(place, int):
            return
        event["output_index"] = place
        if kind.startswith(_ITEM):
            self._count = max(self._count, place + 1)
            self._items |= {id: place} if id else {}
        elif kind.startswith(_CONTENT):
            self._fill_part(event, kind, place, "content_index")
        elif kind.startswith(_SUMMARY):
            self._fill_part(event, kind, place, "summary_index")

    def _fill_part(self, event: Event, kind: str, place: int, name: str) -> None:
        begun = self._parts.get((place, name), 0)
        if kind.endswith("_part.added"):
            begun = self._parts[place, name] = begun + 1
        if event.get(name) is None:
            event[name] = max(begun - 1, 0)


def _item_id(event: Event) -> str:
    item = event.get("item")
    id = event.get("item_id") or (item.get("id") if isinstance(item, dict) else None)
    return id if isinstance(id, str) else ""
