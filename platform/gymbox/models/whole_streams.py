"""Whole streams: the answer that the pieces of a stream make together, in the dialect that they came in."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

_ADDED_UP = frozenset({"content", "reasoning_content", "reasoning", "refusal"})
_LISTED = frozenset({"reasoning_details", "annotations"})
_OF_CALL = frozenset({"index", "id", "type", "function"})


def answer_of_chunks(chunks: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The Chat answer that a stream's chunks make; None where they are not one. Fields that are not known are kept,
    the last value of each."""
    answer = GrowingAnswer()
    for chunk in chunks:
        answer.add(chunk)
    return answer.whole()


class GrowingAnswer:
    """The Chat answer that chunks make. Calls are told apart by their index, and where an endpoint gives several of
    them one index, by their id."""

    def __init__(self) -> None:
        self._answer: dict[str, Any] = {}
        self._choices: dict[int, _Choice] = {}

    def add(self, chunk: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
        """Take the next chunk; the pieces of the first choice's calls in it, each with its call's number."""
        pieces: list[tuple[int, dict[str, Any]]] = []
        for given in chunk.get("choices") or []:
            index = given.get("index") or 0
            found = self._choices.setdefault(index, _Choice(index)).add(given)
            pieces += found if index == 0 else []
        self._answer |= {name: value for name, value in chunk.items() if name != "choices" and value is not None}
        return pieces

    def identify(self, call: int, identity: str) -> str:
        """The id of a call of the first choice: its own, or else this from now on."""
        found = self._choices[0].calls[call]
        found["id"] = found["id"] or identity
        return str(found["id"])

    def whole(self) -> dict[str, Any] | None:
        """The answer so far; None where there is none."""
        if not self._choices:
            return None
        choices = [self._choices[index].whole() for index in sorted(self._choices)]
        return {**self._answer, "object": "chat.completion", "choices": choices}


class _Choice:
    def __init__(self, index: int) -> None:
        self.calls: list[dict[str, Any]] = []
        self._choice: dict[str, Any] = {"index": index}
        self._message: dict[str, Any] = {"role": "assistant", "content": None}
        self._texts: dict[str, list[str]] = {}
        self._arguments: list[list[str]] = []
        self._places: dict[Any, int] = {}
        """Number of the call that an index stands for at the time."""

    def add(self, given: dict[str, Any]) -> list[tuple[int, dict[str, Any]]]:
        pieces: list[tuple[int, dict[str, Any]]] = []
        for name, value in (given.get("delta") or {}).items():
            if value is None:
                continue
            if name == "tool_calls":
                pieces = [(self._add_call(piece), piece) for piece in value if isinstance(piece, dict)]
            elif name in _ADDED_UP and isinstance(value, str):
                self._texts.setdefault(name, []).append(value)
            elif name in _LISTED and isinstance(value, list):
                self._message.setdefault(name, []).extend(value)
            else:
                self._message[name] = value
        for name, value in given.items():
            if name in ("delta", "index") or value is None:
                continue
            if name == "logprobs":
                kept = self._choice.setdefault("logprobs", {"content": []})
                kept["content"] += value.get("content") or []
            elif name == "token_ids":
                self._choice.setdefault("token_ids", []).extend(value)
            else:
                self._choice[name] = value
        return pieces

    def _add_call(self, piece: dict[str, Any]) -> int:
        index, identity = piece.get("index"), piece.get("id")
        given = piece.get("function")
        function: dict[str, Any] = given if isinstance(given, dict) else {}
        number = self._places.get(index)
        known = self.calls[number] if number is not None else None
        other = known is not None and identity and known["id"] and identity != known["id"]
        # without an index, a name begins a call
        unnumbered = index is None and function.get("name") and (not identity or known is None)
        if known is None or number is None or other or unnumbered:
            number = self._places[index] = len(self.calls)
            known = {"id": None, "type": "function", "function": {"name": ""}}
            self.calls.append(known)
            self._arguments.append([])
        known["id"] = known["id"] or identity
        known["function"]["name"] = known["function"]["name"] or function.get("name") or ""
        if isinstance(function.get("arguments"), str):
            self._arguments[number].append(function["arguments"])
        known |= {name: value for name, value in piece.items() if name not in _OF_CALL and value is not None}
        return number

    def whole(self) -> dict[str, Any]:
        message = {**self._message, **{name: "".join(texts) for name, texts in self._texts.items()}}
        if self.calls:
            message["tool_calls"] = [
                {**call, "function": {**call["function"], "arguments": "".join(arguments)}}
                for call, arguments in zip(self.calls, self._arguments, strict=True)
            ]
        return {**self._choice, "message": message}


def message_of_events(events: Iterable[dict[str, Any]]) -> dict[str, Any] | None:
    """The Messages answer that a stream's events make; None where they are not one."""
    message: dict[str, Any] = {}
    blocks: dict[int, dict[str, Any]] = {}
    for event in events:
        kind = event.get("type")
        if kind == "message_start":
            message = {**event["message"]}
        elif kind == "content_block_start":
            blocks[event["index"]] = {**event["content_block"]}
        elif kind == "content_block_delta" and event["index"] in blocks:
            _add_delta(blocks[event["index"]], event["delta"])
        elif kind == "message_delta" and message:
            message |= event.get("delta") or {}
            message["usage"] = {**(message.get("usage") or {}), **(event.get("usage") or {})}
    if not message:
        return None
    return {**message, "content": [_ended_block(blocks[index]) for index in sorted(blocks)]}


_DELTAS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}


def _add_delta(block: dict[str, Any], delta: dict[str, Any]) -> None:
    name = _DELTAS.get(delta.get("type", ""))
    if name is not None:
        block[name] = (block.get(name) or "") + (delta.get(name) or "")
    elif delta.get("type") == "citations_delta":
        block["citations"] = [*(block.get("citations") or []), delta.get("citation")]


def _ended_block(block: dict[str, Any]) -> dict[str, Any]:
    text = block.pop("partial_json", None)
    if text:
        try:
            block["input"] = json.loads(text)
        except ValueError:
            block["input"] = {"partial_json": text}
    return block
