"""Replay: a model that answers from a cassette what was answered before. No model, no key, no network."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Literal

from gymbox_sandbox.responses import Response, ResponsesParams
from pydantic import PrivateAttr

from gymbox.errors import ErrorKind, ModelFailure, from_wire
from gymbox.models import Call, Model
from gymbox.models.cassettes import Dialect, RecordedCall, recorded_calls, request_digest, rollout_key
from gymbox.models.events import TERMINAL, Event, one_by_one, replayed

_Key = tuple[Dialect, str, str]


class ReplayModel(Model):
    """Answers each request as the cassette has it: the same bytes, streamed as it was streamed, failed as it failed.

    A request is matched with the recorded calls of the same rollout (of any run of the same tasks) first by its place
    in that rollout, then by what it asks; and with any other rollout's by what it asks. Where the same was asked
    several times, the answers come in their order, and the last one again. A call that was cut off by its caller has
    no answer. A request in a dialect that was not recorded is converted to the Responses format.

    Raises (`responses` and the others):
        ModelFailure: `model_refused_request`: nothing like it is recorded (the text names the nearest that is, and
            where it differs); else what the recorded call failed with.
        ConfigError: (`open`) there is no cassette, or it is damaged.
    """

    name: str = "replay"
    cassette: Path
    """The folder of a run that was made with `runner.capture=on`, one that `gymbox serve model --capture-dir` filled,
    or one file of it."""
    match: Literal["request", "order"] = "request"
    """`request`: the request must be the recorded one. `order`: within a rollout, the n-th call gets the n-th answer,
    whatever it asks."""

    _calls: dict[_Key, list[RecordedCall]] = PrivateAttr(default_factory=dict)
    """By dialect, rollout and digest; the rollout is "*" for any, the digest "" for any."""
    _dialects: set[str] = PrivateAttr(default_factory=set)
    _used: set[int] = PrivateAttr(default_factory=set)
    _heard: dict[str, int] = PrivateAttr(default_factory=dict)

    async def open(self) -> None:
        if not self._calls:
            await asyncio.to_thread(self._load)

    def _load(self) -> None:
        latest: dict[str, str] = {}
        calls = list(recorded_calls(self.cassette))
        for call in calls:
            latest[rollout_key(call.rollout)] = call.rollout
        for call in calls:
            key = rollout_key(call.rollout)
            # of a rollout that was tried again, the last attempt is the one that counts
            # what a judge remembered was no call; and it will remember it again
            if call.cancelled or (call.judge and call.judge.remembered) or (key and latest[key] != call.rollout):
                continue
            self._dialects.add(call.dialect)
            places: list[_Key] = [(call.dialect, "*", call.digest)]
            if key:
                places += [(call.dialect, key, ""), (call.dialect, key, call.digest)]
            for place in places:
                self._calls.setdefault(place, []).append(call)
        for found in self._calls.values():
            found.sort(key=lambda call: (call.began, call.call))

    async def close(self) -> None:
        self._used.clear()
        self._heard.clear()

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        return Response.model_validate(_answer(await self._recorded("responses", params.dump(), call)))

    async def stream(self, params: ResponsesParams, call: Call) -> AsyncIterator[Event]:
        found = await self._recorded("responses", params.dump(), call)
        if found.events is None:
            for event in replayed(_answer(found)):
                yield event
            return
        for event in found.events:
            if event.get("type") in TERMINAL and event.get("response") is None:
                event = {**event, "response": found.response or _failed(found)}
            yield event

    async def chat_completions(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        if await self._has("chat"):
            return _answer(await self._recorded("chat", body, call))
        return await super().chat_completions(body, call)

    async def messages(self, body: dict[str, Any], call: Call) -> dict[str, Any]:
        if await self._has("messages"):
            return _answer(await self._recorded("messages", body, call))
        return await super().messages(body, call)

    async def chat_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[dict[str, Any]]:
        found = await self._recorded("chat", body, call) if await self._has("chat") else None
        async for chunk in super().chat_stream(body, call) if found is None else _events(found, _chunks):
            yield chunk

    async def messages_stream(self, body: dict[str, Any], call: Call) -> AsyncIterator[dict[str, Any]]:
        found = await self._recorded("messages", body, call) if await self._has("messages") else None
        async for event in super().messages_stream(body, call) if found is None else _events(found, _message_events):
            yield event

    async def _has(self, dialect: Dialect) -> bool:
        await self.open()
        return dialect in self._dialects

    async def _recorded(self, dialect: Dialect, request: dict[str, Any], call: Call) -> RecordedCall:
        """The call that answers this request, now used up.

        Raises:
            ModelFailure: there is none; or as it was recorded.
            Problem: as it was recorded.
        """
        await self.open()
        key, digest = rollout_key(call.rollout), await asyncio.to_thread(request_digest, request)
        place = self._heard.get(call.rollout, 0)
        self._heard[call.rollout] = place + 1
        of_rollout = self._calls.get((dialect, key, ""), [])
        at_place = of_rollout[place] if place < len(of_rollout) else None
        found = at_place if at_place and (self.match == "order" or at_place.digest == digest) else None
        if found is None and self.match == "request":
            asked = self._calls.get((dialect, key, digest)) or self._calls.get((dialect, "*", digest)) or []
            fresh = (each for each in asked if id(each) not in self._used)
            found = next(fresh, asked[-1] if asked else None)
        if found is None:
            nearest = at_place or self._nearest(dialect, key, request)
            raise ModelFailure(
                ErrorKind.MODEL_REFUSED_REQUEST, self._miss(dialect, call.rollout, place, request, nearest)
            )
        self._used.add(id(found))
        if found.error is not None and not (found.stream and found.events):
            raise _failure(found)
        return found

    def _nearest(self, dialect: Dialect, key: str, request: dict[str, Any]) -> RecordedCall | None:
        within = self._calls.get((dialect, key, "")) or [
            call
            for (of, rollout, _), calls in self._calls.items()
            if (of, rollout) == (dialect, "*")
            for call in calls
        ]
        return max(within[:1000], key=lambda call: _alike(call.request, request), default=None)

    def _miss(
        self, dialect: str, rollout: str, place: int, request: dict[str, Any], nearest: RecordedCall | None
    ) -> str:
        asked = f"call {place} of rollout {rollout or '(none)'} ({dialect}) is not recorded in {self.cassette}"
        if nearest is None:
            return f"{asked}, which holds no {dialect} calls"
        there = f"call {nearest.call} of rollout {nearest.rollout or '(none)'}"
        fault = difference(nearest.request, request)
        if fault is None:
            return f"{asked}; nearest is {there}, which asks the same"
        return f"{asked}; nearest is {there}: {fault}"


def difference(recorded: Any, asked: Any, where: str = "request") -> str | None:
    """The first place where two requests differ, told for people; None where they are the same."""
    if isinstance(recorded, dict) and isinstance(asked, dict):
        for name in {**recorded, **asked}:
            if where == "request" and name in ("model", "stream", "stream_options"):
                continue
            fault = difference(recorded.get(name), asked.get(name), f"{where}.{name}")
            if fault is not None:
                return fault
        return None
    if isinstance(recorded, list) and isinstance(asked, list):
        for index, (old, new) in enumerate(zip(recorded, asked, strict=False)):
            fault = difference(old, new, f"{where}[{index}]")
            if fault is not None:
                return fault
        if len(recorded) != len(asked):
            return f"{where} has {len(asked)} entries, recorded were {len(recorded)}"
        return None
    return None if recorded == asked else f"{where} is {_shown(asked)}, recorded was {_shown(recorded)}"


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 120 else f"{text[:117]}…"


def _alike(recorded: dict[str, Any], asked: dict[str, Any]) -> tuple[int, int]:
    """How many entries of the history are the same from its beginning on, and how many fields are."""
    one, other = (request.get("input", request.get("messages")) for request in (recorded, asked))
    same = 0
    if isinstance(one, list) and isinstance(other, list):
        for old, new in zip(one, other, strict=False):
            if old != new:
                break
            same += 1
    return same, sum(recorded.get(name) == value for name, value in asked.items())


def _answer(found: RecordedCall) -> dict[str, Any]:
    if found.response is None:
        raise _failure(found)
    return found.response


def _failure(found: RecordedCall) -> Exception:
    """What a recorded call failed with, to be raised again."""
    error = found.error or {"rollout_kind": ErrorKind.MODEL_BAD_RESPONSE, "detail": "the recorded call has no answer"}
    kind, detail = error.get("rollout_kind"), str(error.get("detail") or "the recorded call failed")
    if isinstance(kind, str) and kind in ErrorKind:
        return ModelFailure(ErrorKind(kind), detail, retry_after=error.get("retry_after"))
    if "status" in error:
        return from_wire(error["status"], error, where="the recorded call")
    return ModelFailure(ErrorKind.MODEL_BAD_RESPONSE, detail)


def _failed(found: RecordedCall) -> dict[str, Any]:
    error = found.error or {}
    told = {"code": error.get("rollout_kind"), "message": error.get("detail")}
    return {"object": "response", "status": "failed", "error": told, "output": []}


async def _events(found: RecordedCall, made: Any) -> AsyncIterator[dict[str, Any]]:
    if found.events is not None:
        for event in found.events:
            yield event
        return
    async for event in made(_answer(found)):
        yield event


async def _chunks(answer: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """A plain Chat answer, asked for as a stream."""
    from gymbox.models.chat_answers import response_from_chat
    from gymbox.models.chat_streams import chat_from_events

    async for chunk in chat_from_events(one_by_one(replayed(response_from_chat(answer).dump()))):
        yield chunk


async def _message_events(answer: dict[str, Any]) -> AsyncIterator[dict[str, Any]]:
    """A plain Messages answer, asked for as a stream."""
    from gymbox.models.messages_answers import response_from_messages
    from gymbox.models.messages_streams import messages_from_events

    async for event in messages_from_events(one_by_one(replayed(response_from_messages(answer).dump()))):
        yield event
