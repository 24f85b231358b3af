"""Recorded: what the model was last asked in rollouts that left no response, where a run has recorded its calls."""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection
from pathlib import Path
from typing import Any

from gymbox.models.cassettes import CALLS, RecordedCall, recorded_calls


class LastCalls:
    """Of each of these attempts the last recorded call: its request has all that was said before. Kept packed."""

    def __init__(self, run: Path, attempts: Collection[str]) -> None:
        """
        Raises:
            ConfigError: a line of a cassette is damaged.
        """
        self._packed: dict[str, tuple[int, bytes]] = {}
        if not attempts or not any((run / CALLS).glob("*.jsonl")):
            return
        for call in recorded_calls(run):
            if call.rollout in attempts and call.call >= self._packed.get(call.rollout, (0, b""))[0]:
                said = json.dumps([*_asked(call), *_answered(call)]).encode()
                self._packed[call.rollout] = call.call, zlib.compress(said)

    def of(self, attempt: Any) -> list[Any]:
        """Items or messages, in order; none where none are recorded."""
        found = self._packed.get(attempt) if isinstance(attempt, str) else None
        items: list[Any] = json.loads(zlib.decompress(found[1])) if found else []
        return items


def _asked(call: RecordedCall) -> list[Any]:
    """The history of a request: `messages` in Chat and Messages, `input` in Responses."""
    given = call.request.get("messages") or call.request.get("input") or []
    return given if isinstance(given, list) else [{"role": "user", "content": given}]


def _answered(call: RecordedCall) -> list[Any]:
    """What the answer adds to it."""
    answer = call.response or {}
    if call.dialect == "chat":
        choices = answer.get("choices") or []
        return [choice["message"] for choice in choices[:1] if isinstance(choice.get("message"), dict)]
    if call.dialect == "messages":
        return [{"role": "assistant", "content": answer["content"]}] if answer.get("content") else []
    output = answer.get("output")
    return output if isinstance(output, list) else []
