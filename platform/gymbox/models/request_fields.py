"""Request fields: what the converters of Chat and of Messages requests do alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from gymbox.errors import Invalid, Problem
from gymbox.models.strict_json import strict_json


def refuse(body: dict[str, Any], names: Iterable[str], where: str) -> None:
    """Take fields that say nothing (null, false, empty) out of a request.

    Raises:
        Invalid: one of them says something, and `where` has no place for it.
    """
    for name in names:
        if body.pop(name, None):
            raise Invalid(f"{name}: there is no place for it in {where}")


def items_of_each(
    messages: Any, items_of: Callable[[Any], Sequence[dict[str, Any]]], format: str
) -> list[dict[str, Any]]:
    """The items of a history.

    Args:
        items_of: makes those of one message; it raises a ValueError or Invalid where it cannot.
        format: how the API is called.

    Raises:
        Invalid: a message that cannot be expressed, by its number.
    """
    if not isinstance(messages, list) or not messages:
        raise Invalid(f"messages: a {format} request needs a list of messages")
    items: list[dict[str, Any]] = []
    for index, message in enumerate(messages):
        try:
            items += items_of(message)
        except (ValueError, Invalid) as error:
            text = error.detail if isinstance(error, Problem) else error
            raise Invalid(f"messages[{index}]: {text}") from error
    return items


def take_tools(given: dict[str, Any]) -> tuple[list[dict[str, Any]], Any, bool | None]:
    """Take `tools`, `tool_choice` and `parallel_tool_calls` out of a request's params; where there are no tools, what
    is said of them counts for nothing.

    Raises:
        Invalid: a choice among no tools.
    """
    tools = given.pop("tools", [])
    choice = given.pop("tool_choice", None)
    parallel = given.pop("parallel_tool_calls", None)
    if tools:
        return tools, choice, parallel
    if choice not in (None, "auto", "none"):
        raise Invalid(f"tool_choice: {choice!r:.100} chooses among tools, and there are none")
    return [], None, None


def object_in(metadata: dict[str, Any], name: str) -> dict[str, Any] | None:
    """The JSON object that a text of the metadata is; None where there is no such text.

    Raises:
        Invalid: it is another thing.
    """
    if not isinstance(metadata.get(name), str):
        return None
    try:
        found = strict_json(metadata[name])
    except (ValueError, RecursionError) as error:
        raise Invalid(f"metadata.{name}: it is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise Invalid(f"metadata.{name}: a JSON object is needed")
    return found
