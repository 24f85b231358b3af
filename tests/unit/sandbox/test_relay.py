"""The relay as a process, and the variables by which programs find it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
from pathlib import Path

import pytest
from gymbox_sandbox import relay

FREE = relay.Ports(0, 0, 0, 0, 0)


def test_programs_find_the_proxy_and_the_models_by_the_usual_variables() -> None:
    hosts, models = relay.variables("hosts"), relay.variables("models")
    assert hosts["HTTPS_PROXY"] == hosts["http_proxy"] == "http://127.0.0.1:3128" and "127.0.0.1" in hosts["no_proxy"]
    assert models["OPENAI_BASE_URL"] == "http://127.0.0.1:3129/v1" and "http_proxy" not in models
    assert relay.variables("hosts,models") == {**hosts, **models}


def test_services_are_reached_without_the_proxy() -> None:
    found = relay.variables("hosts", services="db,web")
    assert found["no_proxy"] == found["NO_PROXY"] == "localhost,127.0.0.1,::1,db,web"
    assert "no_proxy" not in relay.variables("models", services="db")


def test_only_the_ports_of_the_ways_out_are_open() -> None:
    opened = relay.listen("models", FREE)
    assert [kind for kind, _ in opened] == ["models", "names", "names"]
    for _, listener in opened:
        assert listener.getsockname()[0] == "127.0.0.1"
        listener.close()


def test_a_port_that_is_taken_is_an_error_and_leaves_none_open() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = FREE._replace(tls=taken.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            relay.listen("hosts", ports)


async def test_bytes_pass_both_ways_behind_the_byte_of_their_port(tmp_path: Path) -> None:
    seen: list[bytes] = []

    async def outside(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.read(-1))
        writer.write(b"answer")
        writer.close()

    server = await asyncio.start_unix_server(outside, tmp_path / relay.EGRESS_SOCKET)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    pid = relay.start("models", str(tmp_path), FREE._replace(models=port))
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"question")
        writer.write_eof()
        assert await reader.read(-1) == b"answer" and seen == [b"mquestion"]
        writer.close()
        server.close()
        (tmp_path / relay.EGRESS_SOCKET).unlink(missing_ok=True)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read(-1) == b""  # nobody decides, so nothing leaves
        writer.close()
    finally:
        os.kill(pid, signal.SIGTERM)
        await asyncio.to_thread(os.waitpid, pid, 0)


def question(name: str) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return b"\x12\x34\x01\x00\x00\x01" + bytes(6) + labels + b"\x00\x00\x01\x00\x01"


async def test_only_names_of_services_are_asked_of_the_engines_resolver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, list[bytes]] = {"engine": [], "outside": []}
    loop = asyncio.get_running_loop()

    class Resolver(asyncio.DatagramProtocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def datagram_received(self, data: bytes, address: object) -> None:
            asked["engine"].append(data)
            self.transport.sendto(b"by the engine", address)  # type: ignore[attr-defined]

    async def outside(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readexactly(1) == b"n"
        asked["outside"].append(await reader.readexactly(int.from_bytes(await reader.readexactly(2))))
        writer.write(len(b"outside").to_bytes(2) + b"outside")
        writer.close()

    engine, _ = await loop.create_datagram_endpoint(Resolver, ("127.0.0.1", 0))
    monkeypatch.setattr(relay, "SERVICE_NAMES", engine.get_extra_info("sockname"))
    server = await asyncio.start_unix_server(outside, tmp_path / "egress.sock")
    opened = relay.listen("models", FREE)
    where = opened[-1][1].getsockname()
    serving = asyncio.create_task(relay.serve(opened, str(tmp_path / "egress.sock"), "db,web"))
    others = ["other", "db.example.org", "dbx", "web.db"]
    odd = [b"", b"\x00" * 12, question("db")[:13], question("db")[:15], b"\x12\x34" + b"\xff" * 30]
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as asker:
            await loop.sock_connect(asker, where)
            for sent in [*map(question, others), *odd]:
                await loop.sock_sendall(asker, sent)
                async with asyncio.timeout(20):
                    assert await loop.sock_recv(asker, 4096) == b"outside"
            for name in ("db", "WEB"):
                await loop.sock_sendall(asker, question(name))
                async with asyncio.timeout(20):
                    assert await loop.sock_recv(asker, 4096) == b"by the engine"
        assert asked == {"engine": [question("db"), question("WEB")], "outside": [*map(question, others), *odd]}
    finally:
        serving.cancel()
        await asyncio.wait({serving})
        server.close()
        engine.close()
