"""Load: keep-alive HTTP requests from raw sockets, so that what is measured is the server and not its caller."""

from __future__ import annotations

import asyncio
import socket
import time
from dataclasses import dataclass, field


class BadAnswer(Exception):
    """A server answered with anything but 200, or hung up."""


def request_bytes(path: str, body: bytes, token: str = "none") -> bytes:
    """One POST as it goes over the line."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {token}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def is_whole(answer: bytes | bytearray) -> bool:
    """Whether these bytes are all of an answer.

    Raises:
        BadAnswer: its status is not 200.
    """
    end = answer.find(b"\r\n\r\n")
    if end < 0:
        return False
    if answer[9:12] != b"200":
        raise BadAnswer(bytes(answer[:600]).decode(errors="replace"))
    _, found, rest = bytes(answer[:end]).lower().partition(b"content-length:")
    if found:
        return len(answer) >= end + 4 + int(rest.partition(b"\r\n")[0])
    return answer.endswith(b"\r\n0\r\n\r\n")


class Line:
    """One kept-alive connection that asks and waits, without an event loop in between."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def seconds(self, request: bytes, until: bytes = b"") -> float:
        """Seconds until the answer is there: all of it, or its first bytes up to `until`.

        Raises:
            BadAnswer: it is none.
        """
        answer = bytearray()
        found = 0.0
        began = time.perf_counter()
        self._socket.sendall(request)
        while True:
            data = self._socket.recv(262_144)
            if not data:
                raise BadAnswer(f"hung up after {bytes(answer[:600])!r}")
            answer += data
            if until and not found and until in answer:
                found = time.perf_counter() - began
            if is_whole(answer):
                if until and not found:
                    raise BadAnswer(f"{until!r} never came")
                return found or time.perf_counter() - began


@dataclass
class Count:
    """What came of many requests."""

    answered: int = 0
    failed: list[str] = field(default_factory=list)
    first: float = 0.0
    """Seconds from the start to the first answer."""
    last: float = 0.0
    """Seconds from the start to the last answer."""
    peak: int = 0
    """Requests in flight at once at most."""
    sent: int = 0


class _Caller(asyncio.Protocol):
    """One connection of many: asks again at each answer until `stop`."""

    def __init__(self, request: bytes, count: Count, began: float, stop: float, done: asyncio.Future[None]) -> None:
        self.request, self.count, self.began, self.stop, self.done = request, count, began, stop, done
        self.answer = bytearray()
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def ask(self) -> None:
        self.count.sent += 1
        self.count.peak = max(self.count.peak, self.count.sent - self.count.answered - len(self.count.failed))
        self.transport.write(self.request)

    def data_received(self, data: bytes) -> None:
        self.answer += data
        try:
            if not is_whole(self.answer):
                return
        except BadAnswer as error:
            self.end(str(error))
            return
        now = time.perf_counter() - self.began
        self.count.answered += 1
        self.count.first = self.count.first or now
        self.count.last = now
        self.answer.clear()
        if now < self.stop:
            self.ask()
        else:
            self.end()

    def connection_lost(self, error: Exception | None) -> None:
        self.end(f"the connection was lost: {error}")

    def end(self, failure: str = "") -> None:
        if not self.done.done():
            if failure:
                self.count.failed.append(failure)
            self.done.set_result(None)
            self.transport.close()


async def load(port: int, request: bytes, connections: int, seconds: float, deadline: float) -> Count:
    """Ask over many connections at once for `seconds` (0: each asks once), and wait for what is in flight.

    The connections are open before the first request leaves. What is not answered by `deadline` counts as failed.
    """
    loop, count = asyncio.get_running_loop(), Count()
    waits = [loop.create_future() for _ in range(connections)]
    callers = [_Caller(request, count, 0.0, seconds, done) for done in waits]
    for first in range(0, connections, 1000):
        opening = (loop.create_connection(lambda c=c: c, "127.0.0.1", port) for c in callers[first : first + 1000])
        await asyncio.gather(*opening)
    began = time.perf_counter()
    for number, caller in enumerate(callers):
        caller.began = began
        caller.ask()
        if number % 100 == 99:
            await asyncio.sleep(0)
    await asyncio.wait(waits, timeout=deadline)
    for caller in callers:
        caller.end("not answered")
    return count
