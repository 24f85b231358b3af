"""Judgements: what a verifier asked its judge about a rollout, and what was answered, where a run has recorded it."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict

from gymbox.errors import ConfigError
from gymbox.models.cassettes import JUDGE_CALLS, Judged, RecordedCall, call_in
from gymbox.reports.trajectories import Item, Room, Text, asked_of, said_in

_ROLLOUT = re.compile(rb'\{"rollout": "([^"\\]*)", ')
"""How a line of a cassette begins, from which it is told whose it is without reading all of it."""
SHORT = 40
"""Characters up to which a field of an answer is something to be voted on, and no explanation."""


class Vote(TypedDict):
    """One call, whether or not its answer was taken."""

    vote: int
    attempt: int
    outcome: Literal["taken", "remembered", "unusable", "failed", "cancelled"]
    said: list[Item]
    why: NotRequired[Text]
    """Of an answer that was not taken."""
    instead: NotRequired[Text]
    """What was taken in its place."""
    seconds: float
    tokens: NotRequired[int]
    cost: NotRequired[float]
    file: str
    """Where all of it is."""
    line: int


class Judgement(TypedDict):
    """One question with all that were asked it."""

    asked: list[Item]
    votes: list[Vote]
    tally: list[tuple[str, list[tuple[str, int]]]]
    """Of several answers that were taken: by field, how many said what, the most first."""


class JudgeCalls:
    """Where the calls of each attempt's judge stand in a run; they are read when they are asked for."""

    def __init__(self, run: Path) -> None:
        """
        Raises:
            ConfigError: a line of a cassette is damaged.
        """
        self._run = run
        self._places: dict[str, list[tuple[Path, int, int]]] = {}
        """By attempt: file, number of the line and its offset."""
        for path in sorted((run / JUDGE_CALLS).glob("*.jsonl")):
            self._note(path)

    def of(self, attempt: Any) -> list[tuple[RecordedCall, str, int]]:
        """The calls of an attempt in their order, each with the file and line that it stands in.

        Raises:
            ConfigError: a cassette is damaged, or was changed while it was read.
        """
        found = []
        for path, number, offset in self._places.get(attempt, []) if isinstance(attempt, str) else []:
            try:
                with path.open("rb") as file:
                    file.seek(offset)
                    call = call_in(file.readline(), f"{path}:{number}")
            except OSError as error:
                raise ConfigError(f"cannot read {path}: {error.strerror}") from error
            found.append((call, str(path.relative_to(self._run)), number))
        return sorted(found, key=lambda each: each[0].call)

    def _note(self, path: Path) -> None:
        offset = 0
        try:
            with path.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    if not line.endswith(b"\n"):
                        break  # whoever wrote it was killed in the middle
                    begun = _ROLLOUT.match(line)
                    attempt = begun[1].decode() if begun else call_in(line, f"{path}:{number}").rollout
                    self._places.setdefault(attempt, []).append((path, number, offset))
                    offset += len(line)
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {path}: {error}") from error


def judgements(calls: Sequence[tuple[RecordedCall, str, int]], room: Room) -> list[Judgement]:
    """The questions of a verify, in the order in which they were first asked; `room` is used up by this."""
    questions: dict[str, list[tuple[RecordedCall, str, int]]] = {}
    for each in calls:
        questions.setdefault(_question(each[0].request), []).append(each)
    return [_judgement(votes, room) for votes in questions.values() if room.whole > 0]


def _judgement(calls: list[tuple[RecordedCall, str, int]], room: Room) -> Judgement:
    asked, _ = asked_of(calls[0][0].request, room)
    ordered = sorted(calls, key=lambda each: (_judged(each[0]).vote, _judged(each[0]).attempt))
    return {
        "asked": asked,
        "votes": [_vote(call, file, line, room) for call, file, line in ordered],
        "tally": _tally([text for call, _, _ in ordered if (text := _taken(call)) is not None]),
    }


def _question(request: dict[str, Any]) -> str:
    """The same for each vote; `max_output_tokens` depends on what is left of the budget."""
    return json.dumps({name: value for name, value in request.items() if name != "max_output_tokens"}, sort_keys=True)


def _judged(call: RecordedCall) -> Judged:
    return call.judge or Judged(question=0)  # of runs from before it was recorded


def _vote(call: RecordedCall, file: str, line: int, room: Room) -> Vote:
    judged = _judged(call)
    made: Vote = {
        "vote": judged.vote,
        "attempt": judged.attempt,
        "outcome": _outcome(call),
        "said": said_in(call.response, room),
        "seconds": call.seconds,
        "file": file,
        "line": line,
    }
    if why := judged.unusable or (call.error or {}).get("detail"):
        made["why"] = room.cut(str(why))
    if judged.instead is not None:
        made["instead"] = room.cut(judged.instead)
    if call.usage is not None:
        made["tokens"] = call.usage.input_tokens + call.usage.output_tokens
    if call.cost is not None:
        made["cost"] = call.cost
    return made


def _outcome(call: RecordedCall) -> Literal["taken", "remembered", "unusable", "failed", "cancelled"]:
    judged = _judged(call)
    if call.error is not None:
        return "failed"
    if call.cancelled or call.response is None:
        return "cancelled"
    if judged.unusable is not None:
        return "unusable"
    return "remembered" if judged.remembered else "taken"


def _taken(call: RecordedCall) -> str | None:
    """The answer that counts; None where there is none."""
    if _outcome(call) not in ("taken", "remembered"):
        return None
    said = said_in(call.response, Room(text=1 << 30, whole=1 << 30))
    return _judged(call).instead or "".join(item["text"] for item in said if item["kind"] == "message")


def _tally(texts: list[str]) -> list[tuple[str, list[tuple[str, int]]]]:
    fields: dict[str, Counter[str]] = {}
    for text in texts if len(texts) > 1 else []:
        try:
            value = json.loads(text)
        except (ValueError, RecursionError):
            value = text
        for name, each in (value if isinstance(value, dict) else {"answer": value}).items():
            told = each if isinstance(each, str) else json.dumps(each)
            if len(told) <= SHORT and not isinstance(each, list | dict):
                fields.setdefault(str(name)[:SHORT], Counter())[told] += 1
    # what not all of them say in a few words is no field that is voted on
    return [(name, counts.most_common()) for name, counts in fields.items() if counts.total() == len(texts)]
