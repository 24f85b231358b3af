"""Capture: every call of a model, as it was asked and answered, written to a cassette without secrets."""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, Self

from gymbox.errors import ConfigError, ErrorKind, Problem
from gymbox.models import Call
from gymbox.models.cassettes import Dialect, RecordedCall, call_in, request_digest, rollout_key
from gymbox.models.prices import Price, Spent, spent_in
from gymbox.redaction import Redaction

log = logging.getLogger(__name__)

Mode = Literal["off", "on", "sampled"]
WAITING = 256
"""Finished calls that may wait to be written; beyond that, new ones begin only as these are."""
LARGEST_STREAM = 4 * 1024 * 1024
"""Bytes of a stream's events that are kept; of a longer one only the whole answer is."""
REMEMBERED = 65_536
"""Rollouts whose calls are counted; of those heard of longest ago, a further call counts from 0 again."""
LARGEST_FILE = 256 * 1024 * 1024
"""Bytes after which the next file is begun."""


@dataclass(slots=True)
class _Heard:
    """What is remembered of a rollout."""

    calls: int = 0
    places: list[tuple[Path, int, int]] = field(default_factory=list)
    """File, offset and length of each line that is on disk."""
    lost: int = 0
    """Calls that could not be written."""


class Capture:
    """Writes the calls of models into a folder; open within `async with`.

    What goes wrong in here never fails a call: it is logged once and counted for `calls_of`. The lines are made and
    written by one thread; a call waits only where that thread is far behind. They are flushed to the disk when the
    capture ends, so that a machine that loses power may lose the last ones.

    Args:
        mode: `sampled` records a part of the rollouts, all calls of each; which ones depends on the rollout's id
            without the run's name, so that it is the same in every run of the same tasks.
        rate: that part, 0 to 1.
        secrets: values that never reach the disk; see `Redaction`.

    Raises:
        ConfigError: the folder cannot be written to.
    """

    def __init__(self, folder: Path, *, mode: Mode = "on", rate: float = 1.0, secrets: Iterable[str] = ()) -> None:
        self.folder = folder
        self.mode = mode
        self.rate = rate
        self._redaction = Redaction(secrets)
        self._heard: OrderedDict[str, _Heard] = OrderedDict()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="capture")
        self._waiting: deque[Future[None]] = deque()
        self._file = -1
        self._path = folder
        self._size = 0
        self._failed = False

    async def __aenter__(self) -> Self:
        try:
            await asyncio.to_thread(self._next_file)
        except OSError as error:
            raise ConfigError(f"cannot write model calls to {self.folder}: {error.strerror}") from error
        return self

    async def __aexit__(self, *_: object) -> None:
        try:
            await asyncio.wrap_future(self._thread.submit(self._end))
        except OSError as error:
            log.warning("the last model calls in %s may be lost: %s", self.folder, error.strerror)
        finally:
            self._thread.shutdown()

    def records(self, rollout: str) -> bool:
        """Whether the calls of a rollout are recorded."""
        if self.mode != "sampled":
            return self.mode == "on"
        share = int.from_bytes(hashlib.sha256(rollout_key(rollout).encode()).digest()[:8]) / 2**64
        return share < self.rate

    async def recording(
        self,
        dialect: Dialect,
        model: str,
        price: Price | None,
        request: Callable[[], dict[str, Any]],
        call: Call,
        *,
        stream: bool = False,
        judge: dict[str, Any] | None = None,
    ) -> Recording:
        """Begin to record a call, as the next of its rollout.

        Args:
            request: gives the request's fields; called later, in another thread.
            judge: of a judge's call, the fields of `cassettes.Judged`; they may be changed until the call is left.
        """
        while self._behind() >= WAITING:
            # not awaited: whoever is cancelled here must not cancel the writing of another call
            await asyncio.wait([asyncio.wrap_future(self._waiting[0])])
        heard = self._of(call.rollout)
        number, heard.calls = heard.calls, heard.calls + 1
        head = {"rollout": call.rollout, "call": number, "dialect": dialect, "stream": stream, "model": model}
        if judge is not None:
            head["judge"] = judge
        return Recording(self, head, request, price, replace(call, tries=[]))

    def _of(self, rollout: str) -> _Heard:
        heard = self._heard.setdefault(rollout, _Heard())
        self._heard.move_to_end(rollout)
        if len(self._heard) > REMEMBERED:
            self._heard.popitem(last=False)
        return heard

    def keep(self, recording: Recording) -> None:
        """Have what was recorded written."""
        written = self._thread.submit(self._write, recording)
        self._behind()
        self._waiting.append(written)

    def _behind(self) -> int:
        """How many are still to be written; the thread takes them in their order."""
        while self._waiting and self._waiting[0].done():
            self._waiting.popleft()
        return len(self._waiting)

    async def calls_of(self, rollout: str) -> tuple[list[RecordedCall], int]:
        """The calls of a rollout in their order, and how many of them are missing; then it is forgotten."""
        return await asyncio.wrap_future(self._thread.submit(self._read, rollout))

    # what follows runs in the thread, one at a time

    def _write(self, recording: Recording) -> None:
        rollout = recording.head["rollout"]
        try:
            line = recording.line(self._redaction)
            if self._size and self._size + len(line) > LARGEST_FILE:
                self._next_file()
            rest = memoryview(line)
            while rest:
                rest = rest[os.pwrite(self._file, rest, self._size + len(line) - len(rest)) :]
        except Exception as error:  # a call is never failed by its record
            if not self._failed:
                self._failed = True
                log.warning("cannot record model calls in %s: %s: %s", self.folder, type(error).__name__, error)
            if rollout in self._heard:
                self._heard[rollout].lost += 1
            return
        if rollout and rollout in self._heard:
            self._heard[rollout].places.append((self._path, self._size, len(line)))
        self._size += len(line)

    def _read(self, rollout: str) -> tuple[list[RecordedCall], int]:
        heard = self._heard.pop(rollout, _Heard())
        found = []
        for path, offset, length in heard.places:
            try:
                with path.open("rb") as file:
                    file.seek(offset)
                    found.append(call_in(file.read(length), str(path)))
            except (OSError, ConfigError) as error:
                log.warning("a recorded call of rollout %s cannot be read back: %s", rollout, error)
        return sorted(found, key=lambda call: call.call), heard.calls - len(found)

    def _next_file(self) -> None:
        self._end()
        self.folder.mkdir(parents=True, exist_ok=True)
        number = max((int(path.stem) for path in self.folder.glob("*.jsonl") if path.stem.isdigit()), default=0)
        while True:
            number += 1
            self._path = self.folder / f"{number:04}.jsonl"
            try:
                # of prompts and answers nobody else on this machine need know
                self._file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            except FileExistsError:
                continue  # another process records here, too
            self._size = 0
            return

    def _end(self) -> None:
        if self._file < 0:
            return
        ended, self._file = self._file, -1
        try:
            os.fsync(ended)
        finally:
            os.close(ended)
        if not self._size:
            self._path.unlink(missing_ok=True)


class Recording:
    """A call under way that is recorded; leaving it (`with`) has it written, whatever came of it."""

    def __init__(
        self,
        capture: Capture,
        head: dict[str, Any],
        request: Callable[[], dict[str, Any]],
        price: Price | None,
        call: Call,
    ) -> None:
        self.head = head
        self.call = call
        """What to make the call with."""
        self.tokens: dict[str, Any] = {}
        """The token fields of the answer, where its dialect has no place for them."""
        self._capture = capture
        self._request = request
        self._price = price
        self._began, self._clock = time.time(), time.perf_counter()
        self._seconds = 0.0
        self._first_event: float | None = None
        self._response: Callable[[], dict[str, Any] | None] = lambda: None
        self._error: dict[str, Any] | None = None
        self._cancelled = False
        self._ended = False
        self._events: list[str] | None = [] if head["stream"] else None
        self._bytes = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: object) -> None:
        self._seconds = time.perf_counter() - self._clock
        if isinstance(error, Problem):
            self._error = {**error.to_wire(), **error.extra, "type": type(error).__name__}
        elif isinstance(error, asyncio.CancelledError | GeneratorExit):
            # who has the last event need not wait for the line to close
            self._cancelled = not self._ended
        elif error is not None:
            self._error = {"type": type(error).__name__, "detail": str(error)}
        self._capture.keep(self)

    def answered(self, response: Callable[[], dict[str, Any] | None]) -> None:
        """The call has this answer; `response` gives its fields, called later, in another thread."""
        self._response, self._ended = response, True

    def failed(self, error: dict[str, Any]) -> None:
        """The call's stream ended with an event that tells of this failure."""
        self._error, self._ended = error, True

    def saw(self, event: dict[str, Any]) -> None:
        """An event of a stream went by."""
        if self._first_event is None:
            self._first_event = time.perf_counter() - self._clock
        if self._events is not None:
            text = json.dumps(event)
            self._bytes += len(text)
            self._events.append(text)
            if self._bytes > LARGEST_STREAM:
                self._events = None

    def _answer(self) -> tuple[dict[str, Any] | None, Spent | None]:
        """The answer and what it took."""
        try:
            response = self._response()
            return response, spent_in(response)
        except Exception as error:  # an endpoint's nonsense that was passed on as it came
            text = f"its answer cannot be put together ({type(error).__name__}: {error})"
            self._error = self._error or {"rollout_kind": ErrorKind.MODEL_BAD_RESPONSE.value, "detail": text}
            return None, None

    def line(self, redaction: Redaction) -> bytes:
        """As a cassette has it."""
        request = self._request()
        response, spent = self._answer()
        record = {
            **self.head,
            "digest": request_digest(request),
            "began": self._began,
            "seconds": round(self._seconds, 6),
            "first_event": self._first_event and round(self._first_event, 6),
            "request": request,
            "response": response,
            **({"tokens": self.tokens} if self.tokens else {}),
            "error": self._error,
            "cancelled": self._cancelled,
            "tries": [_told(each) for each in self.call.tries or []],
            "usage": spent and asdict(spent),
            "cost": self._price.cost(spent) if self._price and spent else None,
        }
        events = [json.loads(text) for text in self._events] if self._events is not None else None
        # in pieces, a secret is not found by its value
        if events is not None and not redaction.is_in_texts_of(events):
            record["events"] = events
        # ASCII: also a reader that takes U+2028 for a line end reads it right
        return json.dumps(redaction.value(record)).encode() + b"\n"


def _told(tried: Any) -> dict[str, Any]:
    return {name: getattr(tried, name) for name in ("replica", "status", "kind", "seconds") if hasattr(tried, name)}
