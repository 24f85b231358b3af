"""Logs: one line an event, as JSON or for people, with the ids it belongs to and without secrets."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self, TextIO

from gymbox.printable import printable_json, printable_lines
from gymbox.redaction import forms_of, mark_of

_ids: ContextVar[dict[str, str] | None] = ContextVar("gymbox_log_ids", default=None)
_scope: ContextVar[Scope | None] = ContextVar("gymbox_log_scope", default=None)
_ours = logging.getLogger("gymbox")
_PATTERNS = re.compile(
    r"gbx_(?:admin|key|sbx)_[A-Za-z0-9_-]+"
    r"|\bsk-[A-Za-z0-9_-]{16,}"
    r"|(?<=[Bb]earer )[A-Za-z0-9._~+/=-]{8,}"
    r"|\bAKIA[0-9A-Z]{16}\b"
    r"|-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
    re.DOTALL,
)
_hidden: dict[str, str] = {}
_secrets: set[str] = set()


def hide(secret: str) -> None:
    """Never let this value into a log line, however it is encoded (see `Redaction`). Short values are ignored."""
    _secrets.add(secret)
    if len(secret) >= 8:
        _hidden.update(dict.fromkeys(forms_of(secret), mark_of(secret)))


def hidden() -> frozenset[str]:
    """All values that were to be hidden, for other records than logs."""
    return frozenset(_secrets)


def redact(text: str) -> str:
    """`text` with every hidden value, and whatever looks like a key or a token, replaced by a mark.

    Equal secrets get equal marks, so lines can still be matched up.
    """
    for secret, mark in _hidden.items():
        if secret in text:
            text = text.replace(secret, mark)
    return _PATTERNS.sub(lambda found: mark_of(found[0]), text)


@contextmanager
def about(**ids: str) -> Iterator[None]:
    """Every line logged inside, also by tasks started there, carries these ids (`sandbox=…`, `rollout=…`)."""
    token = _ids.set({**(_ids.get() or {}), **ids})
    try:
        yield
    finally:
        _ids.reset(token)


def ids() -> dict[str, str]:
    """The ids that lines logged here and now carry."""
    return dict(_ids.get() or {})


class JsonLines(logging.Formatter):
    """One JSON object a line: time, level, logger, message, ids, and the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": redact(record.getMessage()),
            **ids(),
        }
        if record.exc_info:
            fields["traceback"] = redact(self.formatException(record.exc_info))
        return printable_json(json.dumps(fields, ensure_ascii=False))


class ConsoleLines(logging.Formatter):
    """One readable line: time, level, message, ids; then the traceback where there is one."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        where = " ".join(f"{name}={value}" for name, value in ids().items())
        line = f"{time} {record.levelname.lower():7} {record.getMessage()}{f'  ({where})' if where else ''}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return printable_lines(redact(line))


def setup(
    *, level: str = "INFO", form: Literal["json", "console"] = "console", stream: TextIO | None = None
) -> logging.StreamHandler[TextIO]:
    """Send the logs of this process to `stream` (default stderr); called once, by whoever is `main`."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines() if form == "json" else ConsoleLines())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("asyncio", "aiohttp.access", "urllib3", "docker", "uvicorn"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    return handler


class _LastResort(logging.Handler):
    """Prints warnings with what they are, where a program has set up no logging: Python would print them bare."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers and _ours.handlers == [self]:
            text = "\n".join([record.getMessage(), *([self._traceback(record)] if record.exc_info else [])])
            print(printable_lines(redact(f"gymbox: {record.levelname.lower()}: {text}")), file=sys.stderr)

    def _traceback(self, record: logging.LogRecord) -> str:
        assert record.exc_info
        return logging.Formatter().formatException(record.exc_info)


def in_programs() -> None:
    """For what Python programs call: leave the logs to the program's own logging. Where it has none, warnings are
    printed as such; a handler of the logger `gymbox`, such as `logging.NullHandler()`, takes the place of that."""
    if not _ours.handlers:
        _ours.addHandler(_LastResort())


class Waits:
    """Says in a log that something is waited for where it takes more than a moment, once for each thing."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._told: set[str] = set()

    @contextmanager
    def of(self, text: str, *, moment: float) -> Iterator[None]:
        """While that is waited for what `text` says; `moment` is the seconds of which nothing is said."""
        timer = asyncio.get_running_loop().call_later(moment, self._tell, text)
        try:
            yield
        finally:
            timer.cancel()

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._log.warning("%s", text)


class _File(logging.FileHandler):
    """What it cannot write is on the console all the same; a full disk is told of by whatever it stops."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        pass

    def close(self) -> None:
        with suppress(OSError):
            super().close()


class Scope:
    """One piece of work whose lines are told apart from those of others in this process: what is logged within the
    block, and by tasks and `asyncio.to_thread` begun there, unless they enter a scope of their own."""

    def __enter__(self) -> Self:
        self._token = _scope.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _scope.reset(self._token)

    @contextmanager
    def into(self, path: Path) -> Iterator[None]:
        """Meanwhile write its lines to a file, too, a JSON object each; one that is there is gone on with.

        Raises:
            OSError: it cannot be opened.
        """
        handler = _File(path, encoding="utf-8")
        handler.setFormatter(JsonLines())
        handler.addFilter(lambda record: _scope.get() is self)
        root = logging.getLogger()
        root.addHandler(handler)
        try:
            yield
        finally:
            root.removeHandler(handler)
            handler.close()
