"""Cassettes: the files in which model calls stand, one JSON object a line, written by `capture` and read by whoever
replays them or rebuilds trajectories.

    rollout   id of the rollout as the call named it, or ""
    call      its number among the calls of that rollout, from 0, in the order in which they began
    dialect   responses, chat, messages or count_tokens; `stream` says whether it was streamed
    model     name of the model; `digest` identifies the request whatever its model and streaming
    judge     of a judge's call: which question and vote it was for, and what became of the answer; see `Judged`
    tokens    the three token fields of an answer whose dialect has no place for them
    request   as it came; response  the answer, None where there was none; events  of a stream, as they came
    error     `{kind, detail, …}` of a call that failed; `cancelled`: the caller went away before the end
    began     seconds since 1970; seconds  it took; first_event  seconds until a stream's first event
    tries     every try at the back end, where it makes several: replica, status, kind, seconds
    usage     input_tokens, cached_tokens, output_tokens, reasoning_tokens, whatever the dialect
    cost      by the model's `price`, None without one
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gymbox.errors import ConfigError
from gymbox.models.prices import Spent

Dialect = Literal["responses", "chat", "messages", "count_tokens"]
CALLS = "calls"
"""Folder of the cassettes in a run's."""
JUDGE_CALLS = f"judge/{CALLS}"
"""Folder of those of its judge's calls, which are no part of a trajectory."""
_UNSAID = frozenset({"model", "stream", "stream_options"})
"""Fields of a request that do not make it another one."""
_RUN = re.compile(r"[0-9a-f]{8}-")
_ATTEMPT = re.compile(r"\.(\d+\.\d+|again\d+-[0-9a-f]{8})$")
"""Of a rollout; or of a scoring anew of what one has left."""


class Judged(BaseModel):
    """What a call of a judge was for."""

    model_config = ConfigDict(extra="ignore")

    question: int
    """Its number in its verify; each vote is a question."""
    vote: int = 0
    """Of those on the same question."""
    attempt: int = 0
    """How often it had been asked in vain."""
    remembered: bool = False
    """The answer had been given before, to the same question; no model was asked."""
    unusable: str | None = None
    """Why the answer was not taken."""
    instead: str | None = None
    """The answer that was taken in its place: another verify that asked the same had one first."""


class RecordedCall(BaseModel):
    """One line of a cassette."""

    model_config = ConfigDict(extra="ignore")

    rollout: str = ""
    call: int
    dialect: Dialect
    stream: bool = False
    model: str = ""
    judge: Judged | None = None
    digest: str
    request: dict[str, Any]
    response: dict[str, Any] | None = None
    events: list[dict[str, Any]] | None = None
    """A last event that holds the whole response stands without it."""
    tokens: dict[str, Any] | None = None
    error: dict[str, Any] | None = None
    cancelled: bool = False
    began: float = 0
    seconds: float = 0
    first_event: float | None = None
    tries: list[dict[str, Any]] = Field(default_factory=list)
    usage: Spent | None = None
    cost: float | None = None


def request_digest(request: dict[str, Any]) -> str:
    """What identifies a request: the same for the same question, asked of any model, streamed or not."""
    said = {name: value for name, value in request.items() if name not in _UNSAID}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:32]


def rollout_key(rollout: str) -> str:
    """What identifies a rollout in every run of the same tasks: its id without the run's name and without the
    attempt."""
    return _ATTEMPT.sub("", _RUN.sub("", rollout, count=1) if _RUN.match(rollout) else rollout)


def cassette_files(path: Path) -> list[Path]:
    """The files of a cassette: of a run, of a folder with such files, or one file alone.

    Raises:
        ConfigError: there are none.
    """
    for folder in (path / CALLS, path):
        files = sorted(folder.glob("*.jsonl")) if folder.is_dir() else []
        if files and (folder.name == CALLS or not (folder / "rollouts.jsonl").exists()):
            return files
    if path.is_file():
        return [path]
    raise ConfigError(f"{path} holds no recorded model calls; record some with runner.capture=on")


def recorded_calls(path: Path) -> Iterator[RecordedCall]:
    """The calls of a cassette, in the order in which they ended.

    Raises:
        ConfigError: there is no cassette, or a line other than a file's torn last one is damaged.
    """
    for file in cassette_files(path):
        with file.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                if not line.endswith(b"\n"):
                    break  # whoever wrote it was killed in the middle
                yield call_in(line, f"{file}:{number}")


def call_in(line: bytes, where: str = "a cassette") -> RecordedCall:
    """The call that a line tells of.

    Raises:
        ConfigError: it is no such line.
    """
    try:
        return RecordedCall.model_validate_json(line)
    except ValidationError as error:
        raise ConfigError(f"{where} is no recorded call: {error}") from error
