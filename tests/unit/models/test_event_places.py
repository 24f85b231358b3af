"""Places that a server left out of its events."""

from typing import Any

import pytest
from gymbox.models.event_places import Places


def filled(*events: dict[str, Any]) -> list[dict[str, Any]]:
    places = Places()
    for event in events:
        places.fill(event)
    return list(events)


def added(id: str | None, **more: Any) -> dict[str, Any]:
    return {"type": "response.output_item.added", "item": {"id": id} if id else {}, **more}


def delta(item_id: str, kind: str = "output_text", **more: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}.delta", "item_id": item_id, "delta": "x", **more}


def test_places_that_are_given_stay_and_are_gone_on_from() -> None:
    found = filled(added("a", output_index=4), delta("a", output_index=4, content_index=2), added("b"), delta("b"))
    assert [event["output_index"] for event in found] == [4, 4, 5, 5]
    assert [event.get("content_index") for event in found] == [None, 2, None, 0]


def test_an_item_ends_where_it_began_and_one_without_an_id_stands_alone() -> None:
    ended = {"type": "response.output_item.done", "item": {"id": "a"}}
    found = filled(added("a"), added(None), added(None), ended)
    assert [event["output_index"] for event in found] == [0, 1, 2, 0]


def test_a_summarys_parts_are_counted_apart_from_a_messages() -> None:
    begins = {"type": "response.reasoning_summary_part.added", "item_id": "a"}
    found = filled(added("a"), dict(begins), dict(begins), delta("a", "reasoning_summary_text"), delta("a"))
    assert [event.get("summary_index") for event in found[1:]] == [0, 1, 1, None]
    assert found[-1]["content_index"] == 0


@pytest.mark.parametrize(
    "event",
    [
        {},
        {"type": 7},
        {"type": "response.completed"},
        delta("nobody"),
        {"type": "response.output_text.delta", "item_id": ["a"]},
        added("a", output_index="first"),
        added("a", output_index=[1]),
        {"type": "response.output_text.delta", "item": "text"},
    ],
)
def test_what_cannot_be_placed_stays_as_it_is(event: dict[str, Any]) -> None:
    assert filled({**event}) == [event]
