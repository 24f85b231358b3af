"""Relay: what listens on a sandbox's loopback where its network policy lets something out.

It decides nothing. Each connection is passed on to a unix socket in the sandbox's directory, with one byte before it
that says which port it came to; what may be reached is decided behind that socket, outside. There is no other way out:
the sandbox's network namespace has no interface but the loopback, or one more that leads to its services and nowhere
else. Only the engine knows where these are, so questions about their names go to its resolver.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from gymbox_sandbox import prctl
from gymbox_sandbox.engine import close_all_but

if TYPE_CHECKING:
    from asyncio import StreamReader, StreamWriter

EGRESS_SOCKET = "egress.sock"
LOOPBACK = "127.0.0.1"
SERVICE_NAMES = ("127.0.0.11", 53)
"""Docker's resolver in each container that is on a network of its own."""
_CHUNK = 64 * 1024
_LONGEST_QUESTION = 512
_ANSWER_WITHIN = 10
"""Seconds for one question about a name."""
_MOST_QUESTIONS = 64
"""About names, at once; more are not answered."""
_BACKLOG = 256


class Ports(NamedTuple):
    """Where the relay listens; 0 takes a free port."""

    proxy: int = 3128
    models: int = 3129
    web: int = 80
    """For programs that know no proxy, as the next one: our names lead to the loopback."""
    tls: int = 443
    names: int = 53


PORTS = Ports()
_KINDS = {"proxy": b"p", "models": b"m", "web": b"h", "tls": b"t", "names": b"n"}
"""As gymbox.egress.ways has them."""
WAYS = {"hosts": ("proxy", "web", "tls", "names"), "models": ("models", "names")}


def variables(ways: str, ports: Ports = PORTS, services: str = "") -> Mapping[str, str]:
    """Environment variables by which programs find the relay.

    Args:
        ways: some of WAYS, with commas between.
        services: names that are reached without it, likewise.
    """
    found: dict[str, str] = {}
    if "hosts" in ways:
        proxy = f"http://{LOOPBACK}:{ports.proxy}"
        for name in ("http_proxy", "https_proxy"):
            found |= {name: proxy, name.upper(): proxy}
        direct = ",".join(filter(None, ("localhost,127.0.0.1,::1", services)))
        found |= {"no_proxy": direct, "NO_PROXY": direct}
    if "models" in ways:
        models = f"http://{LOOPBACK}:{ports.models}"
        # the sandbox's real key is added outside: clients only insist on having one
        found |= {"OPENAI_MODEL": "default", "ANTHROPIC_MODEL": "default"}
        found |= {"OPENAI_BASE_URL": f"{models}/v1", "OPENAI_API_KEY": "added-outside"}
        found |= {"ANTHROPIC_BASE_URL": models, "ANTHROPIC_API_KEY": "added-outside"}
    return found


def start(ways: str, directory: str, ports: Ports = PORTS, services: str = "") -> int:
    """Fork a relay, which ends with this process; returns its pid once all its ports are open. Arguments: see
    `variables`.

    Raises:
        OSError: a port cannot be opened.
    """
    listeners = listen(ways, ports)
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            prctl.hide_memory()
            prctl.signal_when_parent_dies(signal.SIGKILL)
            close_all_but({listener.fileno() for _, listener in listeners})  # above all what ends others by closing
            if os.getppid() == parent:
                asyncio.run(serve(listeners, f"{directory}/{EGRESS_SOCKET}", services))
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)
    for _, listener in listeners:
        listener.close()
    return pid


def listen(ways: str, ports: Ports = PORTS) -> Sequence[tuple[str, socket.socket]]:
    """Listening sockets for these ways, by kind; `names` has two, for TCP and for datagrams.

    Raises:
        OSError: a port cannot be opened.
    """
    kinds = dict.fromkeys(kind for way in ways.split(",") for kind in WAYS[way])
    opened: list[tuple[str, socket.socket]] = []
    try:
        for kind in kinds:
            listener = socket.create_server((LOOPBACK, getattr(ports, kind)), backlog=_BACKLOG)
            opened.append((kind, listener))
            if kind == "names":
                datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
                opened.append((kind, datagrams))
                datagrams.bind(listener.getsockname())
    except OSError:
        for _, listener in opened:
            listener.close()
        raise
    return opened


async def serve(listeners: Sequence[tuple[str, socket.socket]], egress: str, services: str = "") -> None:
    """Pass on what comes to `listeners` until cancelled; questions about `services` to their own resolver."""
    names = frozenset(filter(None, services.split(",")))
    async with contextlib.AsyncExitStack() as stack:
        for kind, listener in listeners:
            listener.setblocking(False)
            if listener.type == socket.SOCK_DGRAM:
                stack.push_async_callback(_ended, asyncio.create_task(_answer_questions(listener, egress, names)))
            else:
                relay = _Relay(_KINDS[kind], egress)
                server = await asyncio.start_server(relay.connected, sock=listener, backlog=_BACKLOG)
                stack.push_async_callback(relay.close)
                stack.callback(server.close)
        await asyncio.Event().wait()


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})


class _Relay:
    """Passes on the connections to one port."""

    def __init__(self, kind: bytes, egress: str) -> None:
        self._kind = kind
        self._egress = egress
        self._open: set[asyncio.Task[None]] = set()

    async def connected(self, reader: StreamReader, writer: StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        task.add_done_callback(self._open.discard)
        try:
            out_reader, out_writer = await asyncio.open_unix_connection(self._egress)
        except OSError:  # nobody decides now, so nothing leaves
            writer.close()
            return
        out_writer.write(self._kind)
        halves = [
            asyncio.create_task(_pass_on(reader, out_writer)),
            asyncio.create_task(_pass_on(out_reader, writer)),
        ]
        try:
            await asyncio.wait({halves[1]})  # what is outside has the last word
        finally:
            for half in halves:
                half.cancel()
            await asyncio.gather(*halves, return_exceptions=True)
            writer.close()
            out_writer.close()

    async def close(self) -> None:
        """End all connections."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)


async def _pass_on(reader: StreamReader, writer: StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK):
        writer.write(chunk)
        await writer.drain()
    writer.write_eof()


async def _answer_questions(datagrams: socket.socket, egress: str, services: frozenset[str]) -> None:
    loop = asyncio.get_running_loop()
    asked: set[asyncio.Task[None]] = set()
    while True:
        try:
            question, asker = await loop.sock_recvfrom(datagrams, _LONGEST_QUESTION + 1)
        except OSError:  # someone whom we answered is no more
            continue
        if len(question) > _LONGEST_QUESTION or len(asked) >= _MOST_QUESTIONS:
            continue
        answer = _service_answer(question) if _name_in(question) in services else _answer(question, egress)
        task = asyncio.create_task(_send_back(answer, asker, datagrams))
        asked.add(task)
        task.add_done_callback(asked.discard)


async def _send_back(answer: Awaitable[bytes], asker: object, datagrams: socket.socket) -> None:
    """Answer one question; one that is not answered stays without answer, as questions do."""
    with contextlib.suppress(OSError, EOFError, TimeoutError):
        async with asyncio.timeout(_ANSWER_WITHIN):
            await asyncio.get_running_loop().sock_sendto(datagrams, await answer, asker)  # type: ignore[arg-type]


async def _answer(question: bytes, egress: str) -> bytes:
    reader, writer = await asyncio.open_unix_connection(egress)
    try:
        writer.write(_KINDS["names"] + len(question).to_bytes(2) + question)
        return await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
    finally:
        writer.close()


async def _service_answer(question: bytes) -> bytes:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as resolver:
        await loop.sock_connect(resolver, SERVICE_NAMES)
        await loop.sock_sendall(resolver, question)
        return await loop.sock_recv(resolver, 4096)


def _name_in(question: bytes) -> str:
    """The name that a DNS message asks for (RFC 1035, 4.1.2), if it is one label, as those of services are; else
    `""`."""
    length = question[12] if len(question) > 13 else 0
    whole = 0 < length < 64 and question[13 + length : 14 + length] == b"\0"
    return question[13 : 13 + length].decode("ascii", "replace").lower() if whole else ""
