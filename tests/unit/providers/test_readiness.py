"""A server's first words, over a real socket."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path

import pytest
from gymbox.errors import Invalid, Unavailable
from gymbox.providers.readiness import Readiness
from gymbox_sandbox.wire import READY_SOCKET


async def say(directory: Path, *words: bytes) -> None:
    for word in words:
        _, writer = await asyncio.open_unix_connection(str(directory / READY_SOCKET))
        writer.write(word)
        await writer.drain()
        writer.close()
        await writer.wait_closed()


async def test_it_returns_once_the_server_says_that_it_is_ready(tmp_path: Path) -> None:
    with Readiness(tmp_path) as readiness:
        waiting = asyncio.create_task(readiness.wait())
        await say(tmp_path, b"ready\n")
        await asyncio.wait_for(waiting, 5)


async def test_a_connection_that_says_nothing_is_not_an_answer(tmp_path: Path) -> None:
    with Readiness(tmp_path) as readiness:
        waiting = asyncio.create_task(readiness.wait())
        await say(tmp_path, b"", b"rea", b"ready\n")
        await asyncio.wait_for(waiting, 5)


async def test_the_servers_own_reason_is_raised(tmp_path: Path) -> None:
    problem = Invalid("server.py cannot be loaded", log="Traceback …")
    with Readiness(tmp_path) as readiness:
        waiting = asyncio.create_task(readiness.wait())
        await say(tmp_path, f"failed {json.dumps(problem.to_wire())}\n".encode())
        with pytest.raises(Invalid, match="cannot be loaded") as raised:
            await asyncio.wait_for(waiting, 5)
    assert raised.value.extra["log"] == "Traceback …"


@pytest.mark.parametrize("line", [b"hello\n", b"failed {]\n", b'failed {"status": "x"}\n', b"failed []\n", b"\xff\n"])
async def test_words_that_make_no_sense_are_told_as_they_are(line: bytes, tmp_path: Path) -> None:
    with Readiness(tmp_path) as readiness:
        waiting = asyncio.create_task(readiness.wait())
        await say(tmp_path, line)
        with pytest.raises(Unavailable, match="where it should have said that it is ready"):
            await asyncio.wait_for(waiting, 5)


async def test_a_path_longer_than_a_sockets_address_is_no_obstacle(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100) / ("e" * 100)
    deep.mkdir(parents=True)
    with Readiness(deep):
        assert (deep / READY_SOCKET).is_socket()


def test_nothing_is_left_and_a_socket_of_a_crash_is_no_obstacle(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / READY_SOCKET))
    with Readiness(tmp_path) as readiness:
        readiness.close()
    assert not list(tmp_path.iterdir())


async def test_a_wait_that_ends_just_when_someone_connects_leaves_nothing_in_the_loop(tmp_path: Path) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    with Readiness(tmp_path) as readiness, socket.socket(socket.AF_UNIX) as caller:
        waiting = asyncio.create_task(readiness.wait())
        await asyncio.sleep(0)
        caller.connect(str(tmp_path / READY_SOCKET))
        await asyncio.sleep(0)  # now the loop knows of the call and has not come to it
        waiting.cancel()
        await asyncio.wait({waiting})
    await asyncio.sleep(0)
    assert waiting.cancelled() and complaints == []
