"""Ways: the connections of one sandbox, each of which begins with one byte that says what its relay took it for."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Sequence
from functools import cache
from urllib.parse import urlsplit

import h11

from gymbox.egress.ledger import Ledger, Refused
from gymbox.egress.names import LONGEST, answer
from gymbox.egress.places import Places
from gymbox.egress.plain import Talk, Target, absolute, authority, forward, head_of, origin, refuse
from gymbox.egress.tunnels import check_name, closed, hello, tunnel
from gymbox.network import Strict, Way, is_address

MOST_CONNECTIONS = 256
"""Of one sandbox at once; one more is closed at once."""
MOST_LOOK_UPS = 4
"""Of names, of one sandbox at once: each holds a thread for as long as it takes, and those are shared."""
HEAD_WITHIN = 15.0
"""Seconds in which a request's head, a TLS client's first words, or a question about a name must be there."""
PROXY, TLS, PLAIN, NAME, MODELS = b"pthnm"
KINDS = {PROXY: "proxy", TLS: "tls", PLAIN: "http", NAME: "dns", MODELS: "models"}


@cache
def _trusted() -> ssl.SSLContext:
    """Whom model servers are known by. To read that takes so long that all sandboxes would wait for each call."""
    return ssl.create_default_context()


class ModelsAt(Strict):
    """Where a sandbox's model calls go."""

    url: str
    """Of the proxy, or of one model."""
    key: str
    """Of this sandbox; it is added here, and never enters the sandbox."""
    one: bool = False
    """Whether it is one model's, so that there is nothing but `/v1/…`."""


class Ways:
    """What one sandbox may reach, and what becomes of each of its connections."""

    def __init__(
        self,
        way: Way,
        models: ModelsAt | None,
        ledger: Ledger,
        places: Places,
        *,
        most: int = MOST_CONNECTIONS,
        head_within: float = HEAD_WITHIN,
    ) -> None:
        self._way = way
        self._models = models
        self._ledger = ledger
        self._places = places
        self._most = most
        self._head_within = head_within
        self._open: set[asyncio.Task[None]] = set()
        self._closed = False
        self._look_ups = asyncio.Semaphore(MOST_LOOK_UPS)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to its end. Never raises, also where `close` ends it."""
        try:
            await self._serve(reader, writer)
        except asyncio.CancelledError:
            if not self._closed:
                raise

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        kind = "any"
        try:
            if self._closed:
                return  # it was taken a moment before
            if len(self._open) > self._most:
                raise Refused("(connection)", f"there are {self._most} already")
            async with asyncio.timeout(self._head_within):
                first = await reader.readexactly(1)
            kind = KINDS.get(first[0], "unknown")
            match first[0]:
                case int() as byte if byte == NAME:
                    await self._name(reader, writer)
                case int() as byte if byte == TLS:
                    await self._tls(reader, writer)
                case int() as byte if byte in (PROXY, PLAIN, MODELS):
                    await self._http(byte, Talk(h11.SERVER, reader, writer))
                case _:
                    raise Refused("(connection)", "it is of no known kind")
        except Refused as refusal:
            self._ledger.refuse(kind, refusal)
        except (OSError, EOFError, TimeoutError, ssl.SSLError, h11.ProtocolError):
            pass  # it broke off, or fell silent: the sandbox's own matter, or the host's that it reached
        except Exception as error:  # a fault of ours, which the sandbox may bring about as often as it likes
            self._ledger.refuse(kind, Refused("(connection)", f"it cannot be served ({type(error).__name__})"))
        finally:
            try:
                await closed(writer)
            finally:
                self._open.discard(task)

    def lead_models(self, models: ModelsAt) -> None:
        """Send model calls there from now on."""
        self._models = models

    async def close(self) -> None:
        """End all connections, and those that come yet."""
        self._closed = True
        for task in list(self._open):
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    async def _http(self, kind: int, client: Talk) -> None:
        try:
            request = await head_of(client, self._head_within)
            if kind == MODELS:
                await self._model_call(request, client)
            elif kind == PROXY and request.method == b"CONNECT":
                await self._connect(authority(request.target.decode("latin-1")), client)
            else:
                target = absolute(request) if kind == PROXY else origin(request)
                self._check(target)
                server = await self._places.connect(target.host, target.port, self._look_ups)
                await self._forwarded(request, client, server, target)
        except Refused as refusal:
            await refuse(client, refusal)
            raise

    async def _connect(self, target: Target, client: Talk) -> None:
        self._check(target)
        if target.port == 80:
            raise Refused(str(target), "plain HTTP is asked for with http://…, not by CONNECT")
        server = await self._places.connect(target.host, target.port, self._look_ups)
        try:
            await client.send(h11.Response(status_code=200, headers=[], reason="Connection established"))
            first = client.connection.trailing_data[0]
            if target.port == 443:
                first, asked = await hello(client.reader, first, self._head_within)
                check_name(target.host, asked)
        except BaseException:
            await closed(server[1])
            raise
        self._ledger.passed()
        await tunnel((client.reader, client.writer), server, first)

    async def _tls(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """TLS that a name of ours led to without a proxy: where it wants to go stands in its first words."""
        first, asked = await hello(reader, b"", self._head_within)
        if asked is None:
            raise Refused("(tls)", "it says no server's name")
        self._check(target := Target(asked, 443, ""))
        server = await self._places.connect(target.host, target.port, self._look_ups)
        self._ledger.passed()
        await tunnel((reader, writer), server, first)

    async def _model_call(self, request: h11.Request, client: Talk) -> None:
        path = request.target.decode("latin-1")
        if self._models is None:
            raise Refused(path, "this sandbox has no models")
        plain = path.startswith("/v1/")
        if not plain and (self._models.one or not path.startswith("/models/")):
            raise Refused(
                path, "only models are here: /v1/… or, where a proxy has them, /models/NAME/v1/…", status=404
            )
        to = urlsplit(self._models.url)
        secure = _trusted() if to.scheme == "https" else None
        port = to.port or (443 if secure else 80)
        where = f"/models/default{path}" if plain and not self._models.one else path
        target = Target(to.hostname or "", port, to.path.rstrip("/") + where)
        try:
            server = await asyncio.open_connection(target.host, target.port, ssl=secure)
        except OSError as error:
            self._ledger.model_call(answered=False)
            raise Refused(path, "what has the models does not answer", status=502) from error
        headers = [(b"authorization", f"Bearer {self._models.key}".encode())]
        try:
            await self._forwarded(request, client, server, target, headers)
        except (Refused, OSError, h11.RemoteProtocolError):
            if not client.writer.is_closing():  # else it is the client that left
                self._ledger.model_call(answered=False)
            raise
        self._ledger.model_call(answered=True)

    async def _forwarded(
        self,
        request: h11.Request,
        client: Talk,
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        target: Target,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self._ledger.passed()
        try:
            await forward(request, client, Talk(h11.CLIENT, *server), target, headers)
        finally:
            await closed(server[1])

    async def _name(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Questions about names, each with its length before it, as DNS has it over TCP."""
        while True:
            async with asyncio.timeout(self._head_within):
                size = int.from_bytes(await reader.readexactly(2))
                if size > LONGEST:
                    raise Refused("(question)", "no question is so long")
                told = answer(await reader.readexactly(size), self._way)
            if told is None:
                raise Refused("(question)", "it is none")
            if told.known:
                self._ledger.answered()
            else:
                self._ledger.refuse("dns", Refused(told.name, "the name is not listed"))
            writer.write(len(told.data).to_bytes(2) + told.data)
            await writer.drain()

    def _check(self, target: Target) -> None:
        """
        Raises:
            Refused: the sandbox may not ask for this host and port.
        """
        if not self._way.opens(target.host, target.port):
            what = "an address is never listed" if is_address(target.host) else "the host is not listed"
            raise Refused(str(target), f"{what}, or not with this port")
