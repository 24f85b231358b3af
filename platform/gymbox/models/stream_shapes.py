"""Stream shapes: what an endpoint's events must look like, so that what reads them need not ask at every step.

Only what is read is looked at; further fields, and events of kinds that nobody here reads, pass.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import aclosing
from typing import Any, Required, TypedDict, cast

from gymbox_sandbox.problems import faults
from gymbox_sandbox.responses import Item, Message, Response, Usage
from pydantic import StrictFloat, StrictInt, StrictStr, TypeAdapter, ValidationError

from gymbox.errors import Invalid


class _Function(TypedDict, total=False):
    name: StrictStr | None


class _Piece(TypedDict, total=False):
    index: StrictInt | None
    id: StrictStr | None
    function: _Function | None


class _Delta(TypedDict, total=False):
    tool_calls: list[_Piece] | None


class _LogProbs(TypedDict, total=False):
    content: list[dict[str, Any]] | None


class _Choice(TypedDict, total=False):
    index: StrictInt | None
    delta: _Delta | None
    logprobs: _LogProbs | None
    token_ids: list[Any] | None
    finish_reason: StrictStr | None


class _Chunk(TypedDict, total=False):
    created: StrictInt | StrictFloat | None
    choices: list[_Choice] | None


class _Begun(TypedDict, total=False):
    created_at: StrictInt | StrictFloat | None
    usage: Usage | None
    output: list[dict[str, Any]] | None


class _ResponseEvent(TypedDict):
    response: _Begun


class _ItemEvent(TypedDict):
    output_index: StrictInt
    item: Item


class _Part(TypedDict, total=False):
    type: Required[StrictStr]
    text: StrictStr | None
    refusal: StrictStr | None
    annotations: list[Any] | None
    logprobs: list[Any] | None


class _PartEvent(TypedDict):
    output_index: StrictInt
    content_index: StrictInt
    part: _Part


class _SummaryPartEvent(TypedDict):
    output_index: StrictInt
    summary_index: StrictInt
    part: _Part


class _DeltaEvent(TypedDict, total=False):
    output_index: Required[StrictInt]
    content_index: StrictInt
    summary_index: StrictInt
    delta: Required[StrictStr]
    logprobs: list[Any] | None


class _ArgumentsEvent(TypedDict, total=False):
    output_index: Required[StrictInt]
    arguments: StrictStr | None


_CHUNK = TypeAdapter[Any](_Chunk)
_PARTS = TypeAdapter[Any](list[_Part])
_EVENTS: dict[str, TypeAdapter[Any]] = {
    "response.created": (_begun := TypeAdapter[Any](_ResponseEvent)),
    "response.in_progress": _begun,
    "response.output_item.added": (_item := TypeAdapter[Any](_ItemEvent)),
    "response.output_item.done": _item,
    "response.content_part.added": (_part := TypeAdapter[Any](_PartEvent)),
    "response.content_part.done": _part,
    "response.reasoning_summary_part.added": (_summary := TypeAdapter[Any](_SummaryPartEvent)),
    "response.reasoning_summary_part.done": _summary,
    "response.output_text.delta": (_delta := TypeAdapter[Any](_DeltaEvent)),
    "response.refusal.delta": _delta,
    "response.reasoning_text.delta": _delta,
    "response.reasoning_summary_text.delta": _delta,
    "response.function_call_arguments.delta": _delta,
    "response.function_call_arguments.done": TypeAdapter[Any](_ArgumentsEvent),
}


def check_chunk(chunk: dict[str, Any]) -> None:
    """Let a Chat chunk pass that can be read.

    Raises:
        Invalid: it cannot; each fault is named.
    """
    _check(_CHUNK, chunk, "a chunk")


def check_event(event: dict[str, Any]) -> None:
    """Let an event of the Responses API pass that can be read.

    Raises:
        Invalid: as `check_chunk`.
    """
    kind = event.get("type")
    if not isinstance(kind, str):
        raise Invalid(f"an event of the stream has no type: {event!r:.200}")
    if kind in _EVENTS:
        _check(_EVENTS[kind], event, f"a {kind}")


def check_parts(response: Response) -> None:
    """Let a Response pass whose messages' parts can be read.

    Raises:
        Invalid: as `check_chunk`.
    """
    for index, item in enumerate(response.output):
        if isinstance(item, Message) and isinstance(item.content, list):
            _check(_PARTS, item.content, f"output[{index}]")


def _check(shape: TypeAdapter[Any], value: Any, what: str) -> None:
    try:
        shape.validate_python(value)
    except ValidationError as error:
        raise Invalid(f"{what} is wrong: {faults(error)}"[:500]) from error


async def checked(
    events: AsyncIterator[dict[str, Any]], check: Callable[[dict[str, Any]], None]
) -> AsyncIterator[dict[str, Any]]:
    """The events, each as soon as `check` has let it pass.

    Raises: what `check` raises.
    """
    async with aclosing(cast(Any, events)) as source:
        async for event in source:
            check(event)
            yield event
