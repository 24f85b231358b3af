"""Sockets: what untrusted code puts in a socket's place is never connected to."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from gymbox.errors import Unavailable
from gymbox.http import HttpClient
from gymbox.sockets import PinnedSocket, SocketSessions


@pytest.fixture
def folder() -> Iterator[Path]:
    path = Path(tempfile.mkdtemp(prefix="gbx"))
    yield path
    shutil.rmtree(path)


def listening(path: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(path))
    bound.listen()
    return bound


def test_a_symlink_to_another_socket_is_refused(folder):
    with listening(folder / "victim.sock"):
        (folder / "planted.sock").symlink_to(folder / "victim.sock")
        with pytest.raises(Unavailable, match="not a socket"):
            PinnedSocket(folder / "planted.sock")


@pytest.mark.parametrize("kind", ["missing", "file", "folder"])
def test_what_is_no_socket_is_refused(folder, kind):
    path = folder / "x.sock"
    if kind == "file":
        path.write_text("")
    elif kind == "folder":
        path.mkdir()
    with pytest.raises(Unavailable):
        PinnedSocket(path)


def test_what_is_put_in_its_place_afterwards_is_not_reached(folder):
    with listening(folder / "good.sock") as good, listening(folder / "victim.sock") as victim:
        with PinnedSocket(folder / "good.sock") as pinned:
            (folder / "good.sock").unlink()
            (folder / "good.sock").symlink_to(folder / "victim.sock")
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(pinned.address)
                good.settimeout(5)
                good.accept()[0].close()
            victim.setblocking(False)
            with pytest.raises(BlockingIOError):
                victim.accept()


def test_a_path_longer_than_an_address_may_be_is_reached(folder):
    deep = folder / ("d" * 100)
    deep.mkdir()
    descriptor = os.open(deep, os.O_PATH)
    try:
        with listening(Path(f"/proc/self/fd/{descriptor}/x.sock")), PinnedSocket(deep / "x.sock") as pinned:
            assert len(str(deep / "x.sock")) > 107
            with socket.socket(socket.AF_UNIX) as client:
                client.connect(pinned.address)
    finally:
        os.close(descriptor)


def test_a_socket_that_is_swapped_between_the_looks_is_refused(folder, monkeypatch):
    (folder / "file").write_text("")
    real = os.lstat
    with listening(folder / "good.sock"):
        # what the first look sees is not what is opened
        monkeypatch.setattr(os, "lstat", lambda path: real(folder / "good.sock"))
        with pytest.raises(Unavailable, match="replaced"):
            PinnedSocket(folder / "file")


def test_elsewhere_than_on_linux_the_path_is_the_address(folder, monkeypatch):
    monkeypatch.delattr(os, "O_PATH")
    with listening(folder / "x.sock"):
        assert PinnedSocket(folder / "x.sock").address == str(folder / "x.sock")


async def test_the_shared_client_connects_through_it_until_it_is_told_to_forget(folder):
    async def answer(_: web.Request) -> web.Response:
        return web.json_response("here")

    app = web.Application()
    app.router.add_get("/", answer)
    path = str(folder / "x.sock")
    async with HttpClient() as http:
        for _ in range(2):
            runner = web.AppRunner(app)
            await runner.setup()
            await web.UnixSite(runner, path).start()
            assert await http.json("GET", "http://sandbox/", socket=path) == "here"
            await runner.cleanup()
            await http.forget(path)
            await http.forget(path)
        with pytest.raises(Unavailable):
            await http.json("GET", "http://sandbox/", socket=path, retry=False)


async def test_a_socket_that_another_has_replaced_is_connected_to_anew(folder):
    path = folder / "x.sock"

    async def answer(request: web.Request) -> web.Response:
        return web.json_response(id(request.app))

    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(HttpClient())
        for _ in range(2):
            app = web.Application()
            app.router.add_get("/", answer)
            runner = web.AppRunner(app)
            await runner.setup()
            stack.push_async_callback(runner.cleanup)
            await web.UnixSite(runner, str(path)).start()
            assert await http.json("GET", "http://sandbox/", socket=str(path), retry=False) == id(app)
            path.unlink()
            # nothing in its place: what is connected stays so
            assert await http.json("GET", "http://sandbox/", socket=str(path), retry=False) == id(app)


async def test_only_the_sockets_to_be_kept_stay_open(folder):
    opened = []

    def open(address: str) -> aiohttp.ClientSession:
        opened.append(aiohttp.ClientSession(connector=aiohttp.UnixConnector(address)))
        return opened[-1]

    with listening(folder / "a.sock"), listening(folder / "b.sock"):
        sessions = SocketSessions(open)
        a, b = [await sessions.of(str(folder / name)) for name in ("a.sock", "b.sock")]
        assert await sessions.of(str(folder / "a.sock")) is a
        await sessions.keep({str(folder / "b.sock")})
        assert (a.closed, b.closed) == (True, False)
        await sessions.close()
        await sessions.close()

    assert b.closed
    assert len(opened) == 2
