"""A sandbox's relay and the egress behind it, with an internet of this machine's loopback.

127.0.0.2 is a public host, every other address is private. What listens there says what it was asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import ipaddress
import json
import socket
import ssl
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from gymbox.egress.ledger import Ledger
from gymbox.egress.places import Address, Places
from gymbox.egress.ways import ModelsAt, Ways
from gymbox.network import EGRESS_SOCKET, Way
from gymbox_sandbox import relay

PUBLIC, PRIVATE = "127.0.0.2", "127.0.0.3"
HOSTS = {
    "good.test": [PUBLIC],
    "sub.wild.test": [PUBLIC],
    "wild.test": [PUBLIC],
    "other.test": [PUBLIC],
    "inside.test": [PRIVATE],
    "metadata.test": ["169.254.169.254"],
    "mapped.test": ["::ffff:127.0.0.3"],
    "both.test": [PRIVATE, PUBLIC],
    "odd.test": ["2002:7f00:1::1"],
}


class StubPlaces(Places):
    """Names and ports of the stub internet; the decision on an address is like the real one, with other addresses."""

    def __init__(self, ports: dict[int, int]) -> None:
        super().__init__(self._look_up, lambda address: str(address) == PUBLIC)
        self.ports = ports
        self.dialled: list[str] = []
        self.asked: list[str] = []
        self.changes: dict[str, list[str]] = {}
        """Names that have another address each time."""

    async def _look_up(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        if host in self.changes:
            return [self.changes[host].pop(0)]
        if host in HOSTS:
            return HOSTS[host]
        with contextlib.suppress(ValueError):
            return [str(ipaddress.ip_address(host))]
        return [socket.inet_ntoa(socket.inet_aton(host))]  # as a resolver reads 2130706433; OSError for names

    async def dial(self, address: Address, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        self.dialled.append(str(address))
        return await super().dial(address, self.ports.get(port, port))


class World:
    """What a test needs of all that."""

    def __init__(self, ports: relay.Ports, ledger: Ledger, places: StubPlaces, authority: Path, ways: Ways) -> None:
        self.ports = ports
        self.ledger = ledger
        self.places = places
        self.authority = authority
        self.ways = ways

    async def said(self, data: bytes, port: str = "proxy", *, more: bytes = b"", end: bool = False) -> bytes:
        """What comes back for these bytes until the connection is closed; `more` is sent after the first answer."""
        reader, writer = await asyncio.open_connection("127.0.0.1", getattr(self.ports, port))
        try:
            writer.write(data)
            answer = b""
            async with asyncio.timeout(10):
                if more:
                    answer = await reader.readuntil(b"\r\n\r\n")
                    writer.write(more)
                if end:
                    writer.write_eof()
                with contextlib.suppress(ConnectionError):
                    answer += await reader.read(-1)
            return answer
        finally:
            writer.close()

    async def secure(self, host: str, *, sni: str | None = None, connect: str | None = None) -> dict[str, Any]:
        """What a TLS server says to a GET, by CONNECT to `connect`, or without a proxy where that is None.

        Raises:
            ConnectionError, ssl.SSLError: it was not reached.
        """
        context = ssl.create_default_context(cafile=self.authority)
        context.check_hostname = False
        port = self.ports.proxy if connect else self.ports.tls
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            async with asyncio.timeout(10):
                if connect:
                    writer.write(f"CONNECT {connect} HTTP/1.1\r\nHost: {connect}\r\n\r\n".encode())
                    head = await reader.readuntil(b"\r\n\r\n")
                    if b" 200 " not in head:
                        raise ConnectionRefusedError(head.decode())
                await writer.start_tls(context, server_hostname=sni)
                writer.write(f"GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
                answer = await reader.read(-1)
                return dict(json.loads(answer.partition(b"\r\n\r\n")[2]))
        finally:
            writer.close()

    @property
    def refusals(self) -> list[tuple[str, str, str]]:
        return [(each["kind"], each["target"], each["why"]) for each in self.ledger.news]


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A key and a certificate that signs itself, for the stub's TLS server."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "stub")])
    now = datetime.datetime.now(datetime.UTC)
    names = x509.SubjectAlternativeName([x509.DNSName(host) for host in HOSTS])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(names, critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    path = tmp_path_factory.mktemp("tls") / "stub.pem"
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(private + made.public_bytes(Encoding.PEM))
    return path


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Tell the client in JSON what it asked; `/large` is a megabyte, `/away` leads to a private host."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        line, *headers = head.decode().splitlines()
        fields = {name.lower(): value.strip() for name, _, value in (each.partition(":") for each in headers) if name}
        body = await reader.readexactly(int(fields.get("content-length", 0)))
        path = line.split(" ")[1]
        if path == "/large":
            content = b"x" * 1_000_000
        else:
            content = json.dumps({"line": line, "headers": fields, "body": body.decode()}).encode()
        status = "302 Found\r\nLocation: http://inside.test/" if path == "/away" else "200 OK"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content)
        await writer.drain()
    except (EOFError, OSError):
        pass
    finally:
        writer.close()


@contextlib.asynccontextmanager
async def internet(certificate: Path) -> AsyncIterator[dict[int, int]]:
    """The stub's servers, at both addresses: which of the web's ports are where."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    async with contextlib.AsyncExitStack() as stack:
        ports = {}
        for port, secure in ((80, None), (443, context)):
            server = await asyncio.start_server(answer, PUBLIC, 0, ssl=secure)
            stack.callback(server.close)
            ports[port] = server.sockets[0].getsockname()[1]
            private = await asyncio.start_server(answer, PRIVATE, ports[port], ssl=secure)
            stack.callback(private.close)
        yield ports


@pytest.fixture
async def world(tmp_path: Path, certificate: Path) -> AsyncIterator[Callable[..., Any]]:
    """Opens a sandbox's loopback with the given way out."""
    async with contextlib.AsyncExitStack() as stack:
        ports = await stack.enter_async_context(internet(certificate))

        async def make(*hosts: str, everything: bool = False, models: ModelsAt | None = None, **options: Any) -> World:
            way = Way(hosts=None if everything else list(hosts), models=models is not None)
            places, ledger = StubPlaces(ports), Ledger(changed=lambda: None)
            ways = Ways(way, models, ledger, places, **options)
            path = tmp_path / EGRESS_SOCKET
            path.unlink(missing_ok=True)
            server = await asyncio.start_unix_server(ways.serve, path)
            stack.push_async_callback(ways.close)
            stack.callback(server.close)
            listeners = relay.listen("hosts,models", relay.Ports(0, 0, 0, 0, 0))
            opened = {kind: listener.getsockname()[1] for kind, listener in listeners}
            serving = asyncio.create_task(relay.serve(listeners, str(path)))
            stack.push_async_callback(relay._ended, serving)
            return World(relay.Ports(**opened), ledger, places, certificate, ways)

        yield make
