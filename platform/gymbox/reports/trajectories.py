"""Trajectories: rollouts as a page's reader shows them. All of it is text that a model, a tool or a dataset wrote: it
may have any shape, any length and any character, and nothing here takes it for more than text."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

from gymbox.evaluation.rollouts import Rollout

if TYPE_CHECKING:
    from gymbox.reports.judgements import Judgement

TEXT = 20_000
"""Characters of one text that are shown; of a longer one, its beginning and its end."""
WHOLE = 400_000
"""Characters of one rollout."""
END = 4
"""One part in so many of what is shown of a long text is its end."""
HIDDEN = ("verifier_metadata", "gold_replies", "gold_judgements")
"""Fields of a row that its agent did not see."""
LEAST = 100
"""Characters that any item counts for at least, so that a million empty ones are bounded, too."""


class Text(TypedDict):
    """A text, or what is shown of it."""

    text: str
    end: NotRequired[str]
    """What follows a gap."""
    length: NotRequired[int]
    """Of the whole, where this is not all of it: characters."""


class Item(Text):
    """One thing that was said, thought, called or answered."""

    kind: str
    """`message`, `reasoning`, `call`, `result`, or the item's own type where that is not known here."""
    by: NotRequired[str]
    """A message's role; a call's tool."""
    call: NotRequired[str]
    """Which call a result is of."""


class Attempt(TypedDict):
    """A failed one, before the last."""

    error: dict[str, str]
    timings: dict[str, float]


class Trajectory(TypedDict):
    """One rollout, whole."""

    file: str
    """Where all of it is."""
    line: int
    asked: list[Item]
    done: list[Item]
    left_out: int
    """Items for which there was no room."""
    answered: bool
    """Whether there is a response, if an empty one."""
    tools: list[Item]
    hidden: list[Item]
    error: dict[str, Text]
    timings: dict[str, float]
    components: dict[str, float]
    metrics: dict[str, float]
    tokens: dict[str, float]
    """As the model counted them, details included."""
    calls: dict[str, float]
    """What was recorded of the model's calls: how many, their seconds, tokens and cost."""
    skills: list[Item]
    """That the agent had."""
    masked: str | None
    """Why it is not to be trained on; None where it may be."""
    facts: dict[str, str]
    attempts: list[Attempt]
    judged: NotRequired[list[Judgement]]
    """What its verifier asked a judge, where that is recorded."""


@dataclass
class Room:
    """How much of one rollout may still be shown."""

    text: int = TEXT
    whole: int = WHOLE

    def cut(self, text: str) -> Text:
        """The text, or its beginning and end."""
        allowed = min(self.text, max(self.whole, 0))
        self.whole -= max(min(len(text), allowed), LEAST)
        if len(text) <= allowed:
            return {"text": text}
        end = allowed // END
        return {"text": text[: allowed - end], "end": text[len(text) - end :], "length": len(text)}

    def item(self, kind: str, text: str, *, by: str | None = None, call: str | None = None) -> Item:
        """An item of this text, cut as above."""
        cut = self.cut(text)
        made: Item = {"kind": kind, "text": cut["text"]}
        if "length" in cut:
            made["end"], made["length"] = cut["end"], cut["length"]
        if by is not None:
            made["by"] = by
        if call is not None:
            made["call"] = call
        return made


def trajectory(
    rollout: Rollout, file: str, *, room: Room, answers: bool = True, recorded: Sequence[Any] = ()
) -> Trajectory:
    """What there is to read of a rollout.

    Args:
        recorded: what its model had been asked and answered, to be shown where there is no response.
        file: the name of the one its line is in.
        room: what may be shown of it; used up by this.
        answers: also what only the verifier saw.
    """
    line = rollout.line
    params, response = _object(line.get("responses_create_params")), line.get("response")
    error = _object(line.get("error"))
    told = {name: room.cut(_text(error.get(name))) for name in ("kind", "stage", "detail", "logs") if error.get(name)}
    if rollout.error and not told:
        told = {"kind": room.cut(rollout.error), "detail": room.cut(rollout.detail)}
    asked, out_of_asked = asked_of(params, room)
    answered = isinstance(response, dict)
    done, out_of_done = _items(_object(response).get("output") if answered else _beyond(recorded, params), room)
    return {
        "file": file,
        "line": rollout.number,
        "asked": asked,
        "done": done,
        "left_out": out_of_asked + out_of_done,
        "answered": answered,
        "tools": list(_tools(params.get("tools"), room)),
        "hidden": [room.item(name, _text(line[name])) for name in HIDDEN if answers and line.get(name)],
        "error": told,
        "timings": numbers(line.get("timings")),
        "components": rollout.components,
        "metrics": rollout.metrics,
        "tokens": numbers(_flat(_object(line.get("usage")))),
        "calls": numbers(line.get("calls")),
        "skills": list(_skills(_object(line.get("skills_ref")), room)),
        "masked": _masked(line),
        "facts": _facts(rollout),
        "attempts": [_attempt(each, room) for each in _list(line.get("failed_attempts"))],
    }


def asked_of(params: dict[str, Any], room: Room) -> tuple[list[Item], int]:
    """The history of a request in the form of the Responses API, and how many items of it there is no room for."""
    return _items(_input(params), room)


def said_in(response: Any, room: Room) -> list[Item]:
    """What an answer in that form says, as far as there is room."""
    return _items(_object(response).get("output"), room)[0]


def opening(line: dict[str, Any], longest: int) -> str:
    """How what a row asks begins: the user's first message, on one line."""
    for item in _input(_object(line.get("responses_create_params"))):
        if isinstance(item, dict) and item.get("role") in (None, "user"):
            return " ".join(_content(item.get("content"))[: 4 * longest].split())[:longest]
    return ""


def numbers(values: Any) -> dict[str, float]:
    """Those of an object's fields that are finite numbers."""
    return {
        str(name): value
        for name, value in _object(values).items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e300
    }


def _input(params: dict[str, Any]) -> list[Any]:
    given, instructions = params.get("input"), params.get("instructions")
    items = [{"role": "user", "content": given}] if isinstance(given, str) else _list(given)
    return [{"role": "system", "content": instructions}, *items] if instructions else items


def _beyond(recorded: Sequence[Any], params: dict[str, Any]) -> list[Any]:
    """Of a recorded history what came after the messages of the row, which stand at its beginning."""
    said = {_content(_object(item).get("content")) for item in _input(params)}
    first = next((n for n, item in enumerate(recorded) if _content(_object(item).get("content")) not in said), None)
    return [] if first is None else list(recorded[first:])


def _items(items: Any, room: Room) -> tuple[list[Item], int]:
    """Those for which there is room, and how many there is none for."""
    found: list[Item] = []
    every = _list(items)
    for number, item in enumerate(every):
        if room.whole <= 0:
            return found, len(every) - number
        found.extend(_item(_object(item) or {"type": "item", "value": item}, room))
    return found, 0


def _item(item: dict[str, Any], room: Room) -> Iterator[Item]:
    kind = item.get("type") or ("message" if "role" in item else "item")
    if kind == "message" and item.get("role") == "tool":  # as Chat has it
        yield room.item("result", _content(item.get("content")), call=_name(item.get("tool_call_id")))
    elif kind == "message":
        if (text := _content(item.get("content"))) or not item.get("tool_calls"):
            yield room.item("message", text, by=_name(item.get("role") or "assistant"))
        for call in _list(item.get("tool_calls")):
            asked = _object(_object(call).get("function"))
            yield _call(asked.get("name"), asked.get("arguments"), _object(call).get("id"), room)
    elif kind == "function_call":
        yield _call(item.get("name"), item.get("arguments"), item.get("call_id"), room)
    elif kind == "function_call_output":
        yield room.item("result", _content(item.get("output")), call=_name(item.get("call_id")))
    elif kind == "reasoning":
        parts = [*_list(item.get("summary")), *_list(item.get("content"))]
        yield room.item("reasoning", "\n".join(_content([part]) for part in parts))
    else:
        yield room.item(_name(kind), _text(item))


def _call(name: Any, arguments: Any, id: Any, room: Room) -> Item:
    return room.item("call", _text(arguments), by=_name(name), call=_name(id))


def _tools(tools: Any, room: Room) -> Iterator[Item]:
    for tool in _list(tools):
        if room.whole <= 0:
            return
        named = _object(_object(tool).get("function")) or _object(tool)
        yield room.item("tool", _text(tool), by=_name(named.get("name") or named.get("type")))


def _masked(line: dict[str, Any]) -> str | None:
    if line.get("mask_reason"):
        return _name(line["mask_reason"])
    return "no reason is told" if line.get("mask_sample") else None


def _skills(ref: dict[str, Any], room: Room) -> Iterator[Item]:
    for skill in _list(ref.get("skills")):
        if room.whole <= 0:
            return
        named = _object(skill)
        version = f" {_name(named['version'])}" if named.get("version") else ""
        told = named.get("description") if isinstance(named.get("description"), str) else skill
        yield room.item("skill", _text(told), by=f"{_name(named.get('name'))}{version}")


def _facts(rollout: Rollout) -> dict[str, str]:
    line, found = rollout.line, {"rollout": rollout.id, "stopped": rollout.stop_reason or ""}
    found["sandbox"] = _name(line.get("sandbox"))
    found["model"] = _name(_object(line.get("response")).get("model"))
    found["agent"] = _name(_object(line.get("agent_ref")).get("name"))
    skills = _object(line.get("skills_ref"))
    found["skills"] = " ".join(_name(skills[name]) for name in ("path", "hash") if skills.get(name))
    if "reverified" in line:
        found["before it was scored anew"] = _text(line["reverified"])[:LEAST]
    return {name: value for name, value in found.items() if value}


def _attempt(attempt: Any, room: Room) -> Attempt:
    told = _object(attempt)
    error = _object(told.get("error"))
    return {
        "error": {
            name: room.cut(_text(error[name]))["text"] for name in ("kind", "stage", "detail") if error.get(name)
        },
        "timings": numbers(told.get("timings")),
    }


def _content(content: Any) -> str:
    """Of a message or a result: the text of its parts; of other parts, all of it."""
    if isinstance(content, list):
        return "\n".join(_part(part) for part in content)
    return _text(content)


def _part(part: Any) -> str:
    for name in ("text", "refusal"):
        if isinstance(part, dict) and isinstance(part.get(name), str):
            return str(part[name])
    return _text(part)


def _flat(usage: dict[str, Any]) -> dict[str, Any]:
    """Token counts, with those that stand a level deeper."""
    inner = {
        f"{name.partition('_tokens')[0]}: {each}": n for name, v in usage.items() for each, n in _object(v).items()
    }
    return {**usage, **inner}


def _text(value: Any) -> str:
    if value is None:
        return ""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _name(value: Any) -> str:
    """A short text: of a role, a tool, an id."""
    text = _text(value)
    return text if len(text) <= 200 else f"{text[:199]}…"


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
