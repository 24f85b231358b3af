"""Exchange: one request to a model's endpoint and its answer, bounded in bytes and seconds, faults by their kind."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Any

import aiohttp

from gymbox.errors import ErrorKind
from gymbox.http import HttpClient, retry_after
from gymbox.models.sse import LARGEST_EVENT
from gymbox.models.strict_json import strict_json, without_halves

LARGEST_ANSWER = 64 * 1024 * 1024
"""Bytes, after decompression; more is no answer."""
LARGEST_REFUSAL = 256 * 1024
"""Bytes that are read of an answer that tells of an error."""
KINDS = {kind.value: kind for kind in ErrorKind if kind.value.startswith("model_")}
_UNPAID = frozenset({"insufficient_quota", "billing_not_active", "billing_hard_limit_reached"})
_RATE = frozenset({"rate_limit_exceeded", "rate_limit_error", "rate_limit", "too_many_requests", "tokens", "requests"})
_OUR_FAULT = frozenset({"invalid_request_error", "invalid_prompt", "context_length_exceeded", "not_found_error"})
_EVENT_END = re.compile(rb"\r\n\r\n|\n\n|\r\r")
_TOKENS = re.compile(rb'"((?:total|input|output)_tokens)"\s*:\s*(\d{1,12})')
_LONGEST_TOKENS = 40
_FIELD = re.compile(rb"(data|event|id|retry)?:")


class Fault(Exception):
    """A try that gave no usable answer."""

    def __init__(self, kind: ErrorKind, text: str, *, retry_after: float | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text
        self.retry_after = retry_after


class Exchange:
    """A request that was answered with 200; close it when done.

    Args:
        seconds: until the answer is whole (`whole`), or its first event is there (`first_event`).
        idle: seconds for which a stream may bring nothing.
        until: when a stream must have ended, on the loop's clock.
    """

    def __init__(self, url: str, *, seconds: float, idle: float, until: float) -> None:
        self.url = url
        self.status: int | None = None
        self._answer_by = asyncio.get_running_loop().time() + seconds
        self._seconds = seconds
        self._idle = idle
        self._end_by = until
        self._response: aiohttp.ClientResponse | None = None
        self._begun = b""
        self._size = 0

    async def send(self, http: HttpClient, body: bytes, headers: dict[str, str]) -> None:
        """Send it and wait for the answer's head.

        Raises:
            Fault: no answer, or none with 200.
        """
        try:
            async with asyncio.timeout_at(self._answer_by):
                session = await http.session()
                # a key goes nowhere but to the address it was given for
                self._response = await session.post(self.url, data=body, headers=headers, allow_redirects=False)
                self.status = self._response.status
                if self.status != 200:
                    raise refused(self.status, self._response.headers, await self._beginning())
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
            self.close()
            raise self._fault(error) from error
        except BaseException:
            self.close()
            raise

    async def whole(self) -> Any:
        """The decoded answer.

        Raises:
            Fault: it is no JSON, tells of an error, is too large, or broke off.
        """
        try:
            body = await self._all()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._fault(error) from error
        try:
            found = decoded(body)
        except (ValueError, RecursionError) as error:
            text = f"answered {shown(body)}, which is no JSON"
            raise Fault(ErrorKind.MODEL_BAD_RESPONSE, text) from error
        raise_told_error(found)
        return found

    async def first_event(self) -> Any:
        """Wait for the first event of a stream; the decoded answer, where the endpoint gave a whole one instead.

        Raises:
            Fault: neither came, or what came tells of an error.
        """
        assert self._response is not None
        try:
            async with asyncio.timeout_at(self._answer_by):
                begun = bytearray()
                looked, known = 0, False
                while (part := await self._response.content.readany()) or not self._response.content.at_eof():
                    begun += part
                    if not known:
                        kept = begun.lstrip()
                        if kept.startswith((b"{", b"[")):
                            self._begun = bytes(begun)
                            return await self.whole()
                        known = bool(_FIELD.match(kept.removeprefix(b"\xef\xbb\xbf")))
                        if len(kept) > 8 and not known:
                            break
                    told, looked = _first_told(begun, looked)
                    if told is not None:
                        raise_told_error(told, of_event=True)
                        self._begun = bytes(begun)
                        return None
                    if len(begun) > LARGEST_EVENT:
                        break
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._fault(error) from error
        text = f"answered {shown(bytes(begun))}, which is no stream of events"
        raise Fault(ErrorKind.MODEL_BAD_RESPONSE, text)

    async def chunks(self) -> AsyncIterator[bytes]:
        """The answer's bytes as they come.

        Raises:
            Fault: it broke off, brought nothing for too long, or is too large.
        """
        parts, loop = self._parts(), asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout_at(min(loop.time() + self._idle, self._end_by)):
                    part = await anext(parts, None)
            except TimeoutError as error:
                late = loop.time() >= self._end_by
                text = (
                    "did not end within the call's deadline" if late else f"stopped for {self._idle:g} s in mid-answer"
                )
                raise Fault(ErrorKind.MODEL_TIMED_OUT, text) from error
            except (aiohttp.ClientError, OSError) as error:
                raise self._fault(error) from error
            if part is None:
                return
            yield part

    def close(self) -> None:
        """Close the connection, unless the answer was read to its end; safe to call twice."""
        if self._response is not None:
            self._response.close()

    async def _all(self) -> bytes:
        assert self._response is not None
        content = self._response.content
        if content.is_eof() and not self._begun and content.total_bytes <= LARGEST_ANSWER:
            # a small answer has come with its head: there is nothing to wait for, and no need of timer and iterators
            return content.read_nowait()
        async with asyncio.timeout_at(self._answer_by):
            return b"".join([part async for part in self._parts()])

    async def _parts(self) -> AsyncIterator[bytes]:
        assert self._response is not None
        if self._begun:
            begun, self._begun = self._begun, b""
            self._size += len(begun)
            yield begun
        async for part in self._response.content.iter_any():
            self._size += len(part)
            if self._size > LARGEST_ANSWER:
                raise Fault(ErrorKind.MODEL_BAD_RESPONSE, f"answered more than {LARGEST_ANSWER >> 20} MiB")
            yield part

    async def _beginning(self) -> bytes:
        assert self._response is not None
        read = bytearray()
        try:
            async for part in self._response.content.iter_any():
                read += part
                if len(read) > LARGEST_REFUSAL:
                    break
        except (aiohttp.ClientError, OSError):
            pass  # the status says enough
        if len(read) > LARGEST_REFUSAL:
            self._response.close()
        return bytes(read[:LARGEST_REFUSAL])

    def _fault(self, error: Exception) -> Fault:
        if isinstance(error, TimeoutError) and not isinstance(error, aiohttp.ClientError):
            return Fault(ErrorKind.MODEL_TIMED_OUT, f"did not answer within {self._seconds:g} s")
        cause = f"{type(error).__name__}: {error}"[:300]
        causes = [error, error.__cause__, error.__context__]
        unreadable = (aiohttp.ClientResponseError, aiohttp.http_exceptions.ContentEncodingError, aiohttp.InvalidURL)
        if any(isinstance(each, unreadable) for each in causes):
            return Fault(ErrorKind.MODEL_BAD_RESPONSE, f"gave an answer that cannot be read ({cause})")
        broken = isinstance(error, aiohttp.ClientPayloadError | aiohttp.ServerDisconnectedError)
        what = "broke off" if broken else "could not be reached"
        return Fault(ErrorKind.MODEL_UNAVAILABLE, f"{what} ({cause})")


def _first_told(begun: bytearray, looked: int) -> tuple[Any, int]:
    """The data of the first event that has any (decoded where it is JSON), and where to look on."""
    while (end := _EVENT_END.search(begun, max(looked, 0))) is not None:
        block = begun[looked : end.start()].decode(errors="replace").removeprefix("\ufeff")
        lines = re.split(r"\r\n|\n|\r", block)
        data = "\n".join(line[5:].removeprefix(" ") for line in lines if line.startswith("data:"))
        if data.strip() not in ("", "[DONE]"):
            if "error" not in block:
                return data, end.end()
            try:
                return decoded(data.encode()), end.end()
            except (ValueError, RecursionError):
                return data, end.end()
        looked = end.end()
    return None, looked


def refused(status: int, headers: Any, body: bytes) -> Fault:
    """What an answer that is not 200 tells."""
    told: Any = None
    try:
        told = decoded(body)
        code, text = error_of(told)
    except (ValueError, RecursionError):
        code, text = "", shown(body) if body else "no body"
    kind = _told_kind(told) or kind_of_status(status)
    if code in _UNPAID:
        kind = ErrorKind.MODEL_UNAUTHORIZED
    if 300 <= status < 400 and headers.get("Location"):
        text = f"go to {headers['Location']:.300}; set base_url to the address that answers"
    return Fault(kind, f"answered {status}: {text}", retry_after=retry_after(headers))


def raise_told_error(found: Any, *, of_event: bool = False) -> None:
    """Do nothing, unless an answer with status 200 (or a stream's first event) tells of an error.

    Raises:
        Fault: it does.
    """
    if not isinstance(found, dict) or found.get("output") or found.get("choices"):
        return
    told = found
    if of_event and found.get("type") == "response.failed" and isinstance(found.get("response"), dict):
        told = found["response"]
    if not told.get("error") and not (of_event and found.get("type") == "error"):
        return
    code, text = error_of(told)
    raise Fault(kind_of_code(code), f"answered with an error: {text}")


def kind_of_code(code: str) -> ErrorKind:
    """The kind of an error that came without a status of its own."""
    if code in KINDS:
        return KINDS[code]
    if code.isascii() and code.isdigit() and len(code) == 3:
        return kind_of_status(int(code))
    if code in _UNPAID or code in ("invalid_api_key", "authentication_error", "permission_error", "billing_error"):
        return ErrorKind.MODEL_UNAUTHORIZED
    if code in _RATE or "rate_limit" in code:
        return ErrorKind.MODEL_RATE_LIMITED
    return ErrorKind.MODEL_REFUSED_REQUEST if code in _OUR_FAULT else ErrorKind.MODEL_UNAVAILABLE


def kind_of_status(status: int) -> ErrorKind:
    """The kind that a status stands for."""
    if status in (401, 402, 403, 407):
        return ErrorKind.MODEL_UNAUTHORIZED
    if status == 429:
        return ErrorKind.MODEL_RATE_LIMITED
    if status in (408, 504):
        return ErrorKind.MODEL_TIMED_OUT
    if status in (409, 425) or status >= 500:
        return ErrorKind.MODEL_UNAVAILABLE
    return ErrorKind.MODEL_REFUSED_REQUEST if status >= 400 else ErrorKind.MODEL_BAD_RESPONSE


def _told_kind(body: Any) -> ErrorKind | None:
    """The kind that a model served by gymbox gives with its refusal, in the dialect's error or beside it."""
    if not isinstance(body, dict):
        return None
    error = body.get("error")
    told = body.get("rollout_kind") or (error.get("rollout_kind") if isinstance(error, dict) else None)
    return KINDS.get(told) if isinstance(told, str) else None


def error_of(body: Any) -> tuple[str, str]:
    """Code and sentence of an error body, in any of the shapes that endpoints use."""
    found = body.get("error") or body if isinstance(body, dict) else body
    if not isinstance(found, dict):
        return "", f"{found!r:.300}"
    code = found.get("code") or found.get("type") or ""
    text = found.get("message") or found.get("detail") or found
    return str(code), text[:500] if isinstance(text, str) else f"{text!r:.500}"


def shown(body: bytes) -> str:
    """The beginning of a body, for people."""
    return f"{body[:200].decode(errors='replace')!r}" if body else "nothing"


def tokens_in(answer: Any) -> int | None:
    """How many tokens an answer says that it took, with its request."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(usage, dict):
        return None
    names = ("total_tokens",) if usage.get("total_tokens") else ("input_tokens", "output_tokens")
    found = [usage[name] for name in names if isinstance(usage.get(name), int)]
    return sum(found) if found else None


def decoded(body: bytes) -> Any:
    """Strict JSON: no NaN, and no half of a surrogate pair, which could not be written to a record.

    Raises:
        ValueError, RecursionError: it is none.
    """
    return without_halves(strict_json(body), body)


class ByteStream:
    """A streamed answer, begun: its first event is there, and tells of no error. Iterate over it for its bytes."""

    def __init__(
        self, exchange: Exchange, whole: Any, failure: Callable[[Fault], Exception], *, count_tokens: bool
    ) -> None:
        self.whole = whole
        """The decoded answer where the endpoint gave a whole one instead; then there are no bytes to read."""
        self.tokens: int | None = None
        """What the stream told of its tokens so far, where they are counted."""
        self._exchange = exchange
        self._failure = failure
        self._counts = count_tokens
        self._parts = self._passing()

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._parts

    async def aclose(self) -> None:
        """Read no more of it."""
        await self._parts.aclose()

    async def _passing(self) -> AsyncGenerator[bytes]:
        if self.whole is not None:
            return
        tail = b""
        usage: dict[str, int] = {}
        try:
            async for part in self._exchange.chunks():
                if self._counts:
                    # found in passing: who reads the events need not tell how many tokens they were
                    usage |= {name.decode(): int(told) for name, told in _TOKENS.findall(tail + part)}
                    self.tokens = tokens_in({"usage": usage})
                    tail = part[-_LONGEST_TOKENS:]
                yield part
        except Fault as fault:
            raise self._failure(fault) from fault
