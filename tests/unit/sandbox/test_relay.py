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
