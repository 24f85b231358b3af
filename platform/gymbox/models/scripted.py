"""Scripted: a model that replays given replies, or the gold replies of the row it is asked about."""

from __future__ import annotations

import asyncio
import json
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from gymbox_sandbox.responses import FunctionCall, Item, Message, Reasoning, Response, ResponsesParams, Usage
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError

from gymbox.dataset import lines_of
from gymbox.errors import ConfigError, ErrorKind, ModelFailure
from gymbox.models import Call, Model

Reply = list[dict[str, Any]]
"""The output items of one turn. `call_id` may be left out, `arguments` may be an object, `content` a string."""
Fault = Literal["unauthorized", "rate_limited", "unavailable", "timed_out", "bad_response", "refused_request"]


class Tokens(BaseModel):
    """Tokens of an answer."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: int = Field(0, ge=0)
    output: int = Field(0, ge=0)


class ScriptedModel(Model):
    """Replays, turn by turn, `replies` where given, else the row's gold replies.

    It keeps no state: which turn it is follows from the request, whose history ends with the replies of the turns
    before. Served over HTTP, where no row is at hand, the gold of the row whose input the request begins with is found
    in `datasets`. It makes no tokens; of those that it says it has used, `usage` decides.

    Raises (`responses`):
        ModelFailure: there is no reply for this turn (`model_refused_request`), or `fail_with` says so.
    """

    name: str = "scripted"
    replies: list[Reply] | None = None
    """One list of output items a turn."""
    datasets: list[Path] = Field(default_factory=list)
    """JSONL files with rows that have `gold_replies`."""
    latency: float = Field(0, ge=0)
    """Seconds that each answer takes."""
    fail_with: dict[int, Fault] = Field(default_factory=dict)
    """Failures by turn, counted from 0: `{1: rate_limited}`."""
    usage: Tokens = Tokens()
    """What each answer says that it has used, to try budgets and prices: `{input: 900, output: 100}`."""

    _gold: dict[str, list[Reply] | None] = PrivateAttr(default_factory=dict)
    _lengths: list[int] = PrivateAttr(default_factory=list)

    async def open(self) -> None:
        """
        Raises:
            ConfigError: a dataset cannot be read, or a row of it is wrong.
        """
        self._gold = {}
        for path in self.datasets:
            for number, line in await asyncio.to_thread(list, lines_of(path)):
                try:
                    row = json.loads(line)
                    params = ResponsesParams.model_validate(row.get("responses_create_params", {}))
                except (ValueError, AttributeError, ValidationError) as error:
                    raise ConfigError(f"{path}, line {number}: {error}") from error
                if row.get("gold_replies") is not None:
                    self._remember(params.items, row["gold_replies"])
        self._lengths = sorted({int(key.partition(":")[0]) for key in self._gold}, reverse=True)

    def _remember(self, items: Sequence[Item], gold: list[Reply]) -> None:
        key = _key(items)
        # the same input with another gold: neither may be taken for the other
        self._gold[key] = gold if self._gold.get(key, gold) == gold else None

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        replies = self._replies(params.items, call)
        turn = _turn(params.items, replies)
        if self.latency:
            await asyncio.sleep(self.latency)
        if turn in self.fail_with:
            kind = ErrorKind(f"model_{self.fail_with[turn]}")
            raise ModelFailure(kind, f"model {self.name!r} fails in turn {turn}, as its configuration says")
        if turn >= len(replies):
            text = f"model {self.name!r} has no reply for turn {turn}: its script has {len(replies)}"
            raise ModelFailure(ErrorKind.MODEL_REFUSED_REQUEST, text)
        return Response.model_validate(
            {
                "id": f"resp_{uuid.uuid4().hex}",
                "object": "response",
                "created_at": time.time(),
                "model": self.name,
                "status": "completed",
                "output": _whole(replies[turn], turn),
                "usage": Usage(
                    input_tokens=self.usage.input,
                    output_tokens=self.usage.output,
                    total_tokens=self.usage.input + self.usage.output,
                ),
            }
        )

    def _replies(self, items: Sequence[Item], call: Call) -> list[Reply]:
        if self.replies is not None:
            return self.replies
        if call.gold is not None:
            return call.gold
        for length in self._lengths:
            found = self._gold.get(_key(items[:length])) if length <= len(items) else None
            if found is not None:
                return found
        where = (
            "the row has no gold_replies" if not self.datasets else "no row of its datasets begins like this request"
        )
        text = f"model {self.name!r} has nothing to replay: {where}, and its configuration has no replies"
        raise ModelFailure(ErrorKind.MODEL_REFUSED_REQUEST, text)


def _key(items: Sequence[Item]) -> str:
    return f"{len(items)}:{json.dumps([_said(item) for item in items])}"


def _turn(items: Sequence[Item], replies: list[Reply]) -> int:
    """How many of the replies the history ends with, other parties' items left aside."""
    spoken = [_said(item) for item in items if _is_spoken(item)]
    for turns in range(len(replies), 0, -1):
        script = [_said(item) for number in range(turns) for item in _items(replies[number], number)]
        if script and spoken[-len(script) :] == script:
            return turns
    return 0


def _is_spoken(item: Item) -> bool:
    return isinstance(item, FunctionCall) or (isinstance(item, Message) and item.role == "assistant")


def _said(item: Item) -> list[str]:
    """What identifies an item, whatever its shape: two ways to write the same thing give the same."""
    if isinstance(item, Message):
        return ["system" if item.role == "developer" else item.role, item.text]
    if isinstance(item, FunctionCall):
        return [item.call_id, item.name, item.arguments]
    return [item.type, json.dumps(item.dump(), sort_keys=True)]


def _items(reply: Reply, turn: int) -> list[Item]:
    found = Response.model_validate({"output": _whole(reply, turn)}).output
    return [item for item in found if not isinstance(item, Reasoning)]


def _whole(reply: Reply, turn: int) -> list[dict[str, Any]]:
    """The items of a reply with what an author may leave out."""
    return [_whole_item(item, f"{turn}_{index}") for index, item in enumerate(reply)]


def _whole_item(item: dict[str, Any], place: str) -> dict[str, Any]:
    if item.get("type") == "function_call":
        arguments = item.get("arguments", {})
        text = arguments if isinstance(arguments, str) else json.dumps(arguments)
        return {"id": f"fc_{place}", "status": "completed", "call_id": f"call_{place}", **item, "arguments": text}
    if item.get("type", "message") == "message":
        content = item.get("content", "")
        parts = [{"type": "output_text", "text": content, "annotations": []}] if isinstance(content, str) else content
        whole = {"type": "message", "id": f"msg_{place}", "role": "assistant", "status": "completed"}
        return {**whole, **item, "content": parts}
    return item
