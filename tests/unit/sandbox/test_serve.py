"""Loading an author's file, telling the starter, and serving until SIGTERM."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from typing import Any

import pytest
from gymbox_sandbox.problems import Invalid
from gymbox_sandbox.serve import listen, load, tell
from websockets.sync.client import unix_connect

PLAIN = "from gymbox_sandbox import ResourcesServer\nclass Plain(ResourcesServer): ...\n"
WITH_ROUTES = """
from fastapi import WebSocket
from gymbox_sandbox import ResourcesServer
class WithRoutes(ResourcesServer):
    def setup_webserver(self):
        app = super().setup_webserver()
        @app.websocket("/echo")
        async def echo(websocket: WebSocket) -> None:
            await websocket.accept()
            await websocket.send_text(await websocket.receive_text())
        return app
"""
WITH_FAULTS = """
import sys
from fastapi.responses import StreamingResponse
from gymbox_sandbox import ResourcesServer
from starlette.background import BackgroundTask
from starlette.responses import PlainTextResponse
class WithFaults(ResourcesServer):
    def setup_webserver(self):
        app = super().setup_webserver()
        @app.get("/before")
        async def before():
            raise RuntimeError("before the answer")
        @app.get("/exit")
        def exit():
            sys.exit(3)
        @app.get("/after")
        async def after():
            return PlainTextResponse("whole", background=BackgroundTask(lambda: 1 / 0))
        @app.get("/within")
        async def within():
            async def pieces():
                yield b"a part"
                raise RuntimeError("within the answer")
            return StreamingResponse(pieces())
        return app
"""


@pytest.fixture
def written(tmp_path: Path) -> Iterator[Any]:
    path = list(sys.path)

    def write(text: str) -> str:
        (tmp_path / "server.py").write_text(text)
        return str(tmp_path / "server.py")

    yield write
    sys.path[:] = path
    sys.modules.pop("gymbox_environment", None)


def test_the_only_server_in_a_file_needs_no_name(written: Any) -> None:
    assert load(written(PLAIN)).__name__ == "Plain"


def test_a_server_is_found_by_name_among_several(written: Any) -> None:
    file = written(PLAIN + "class Other(Plain): ...\n")
    assert load(f"{file}:Other").__name__ == "Other"
    with pytest.raises(Invalid, match="2 ResourcesServers.*it has: Other, Plain"):
        load(file)
    with pytest.raises(Invalid, match="no ResourcesServer 'Third'"):
        load(f"{file}:Third")


def test_a_file_can_import_what_lies_beside_it(written: Any, tmp_path: Path) -> None:
    (tmp_path / "beside_the_server.py").write_text("VALUE = 3\n")
    assert load(written(f"import beside_the_server\n{PLAIN}")).__name__ == "Plain"


def test_no_file_is_said_to_be_none(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="there is no server file"):
        load(str(tmp_path / "nothing.py"))


def test_a_file_that_raises_is_shown_where(written: Any) -> None:
    with pytest.raises(Invalid, match="ZeroDivisionError") as caught:
        load(written("1 / 0\n"))
    assert "server.py" in caught.value.extra["log"]


def test_the_socket_is_open_to_owner_and_group(tmp_path: Path) -> None:
    with listen(tmp_path):
        assert (tmp_path / "server.sock").stat().st_mode & 0o777 == 0o660
        with pytest.raises(Invalid, match="Address already in use"):
            listen(tmp_path)


def test_nobody_to_tell_is_fine(tmp_path: Path) -> None:
    assert tell(tmp_path, "ready\n") is None


@contextmanager
def served(directory: Path, server: str) -> Iterator[tuple[subprocess.Popen[bytes], bytes]]:
    """A server's process, and what it told its starter."""
    directory.mkdir()
    command = [sys.executable, "-m", "gymbox_sandbox", "serve", "--name", "plain", "--server", server]
    with socket.socket(socket.AF_UNIX) as starter:
        starter.bind(str(directory / "ready.sock"))
        starter.listen()
        starter.settimeout(30)
        process = subprocess.Popen([*command, "--directory", str(directory), "--workspace", str(directory)])
        lifeline, _ = starter.accept()
        with lifeline, lifeline.makefile("rb") as lines:
            yield process, lines.readline()
            if process.poll() is None:
                process.terminate()
            assert lines.read() == b""  # the lifeline ends with the server
        process.wait(30)


@pytest.fixture
def directory() -> Iterator[Path]:
    folder = Path(f"/tmp/gymbox-serve-{os.getpid()}")  # short: a socket's path may have 107 bytes
    yield folder
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def get(directory: Path, path: str) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(directory / "server.sock"))
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: sandbox\r\nConnection: close\r\n\r\n".encode())
        return b"".join(iter(lambda: connection.recv(4096), b""))


def post(directory: Path, path: str, body: bytes) -> bytes:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(directory / "server.sock"))
        head = f"POST {path} HTTP/1.1\r\nHost: s\r\nContent-Length: {len(body)}\r\n\r\n".encode()
        connection.sendall(head + body)
        return connection.recv(4096)


@contextmanager
def kept_connection(directory: Path) -> Iterator[Callable[[str], tuple[int, bytes]]]:
    """One connection for all that is asked within the block."""
    with socket.socket(socket.AF_UNIX) as stream, closing(HTTPConnection("sandbox")) as connection:
        stream.connect(str(directory / "server.sock"))
        connection.sock, connection.auto_open = stream, 0  # once it is closed, no other is opened

        def ask(path: str) -> tuple[int, bytes]:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()

        yield ask


def test_a_server_says_when_it_is_ready_and_ends_with_sigterm(written: Any, directory: Path) -> None:
    with served(directory, written(PLAIN)) as (process, told):
        assert told == b"ready\n"
        assert b'"status":"ok"' in get(directory, "/healthz")
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0


def test_a_second_signal_ends_a_server_that_waits_for_a_thread(written: Any, directory: Path) -> None:
    waits = PLAIN.replace(
        "...",
        "\n    async def reset(self, task):\n        import asyncio, time\n"
        "        asyncio.get_running_loop().run_in_executor(None, time.sleep, 600)\n",
    )
    with served(directory, written(waits)) as (process, _):
        assert b"200" in post(directory, "/reset", b'{"task": {}}')
        process.send_signal(signal.SIGTERM)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 128 + signal.SIGTERM  # as the process that waits for the server tells it


def test_a_server_that_cannot_be_loaded_says_why_and_ends_with_code_1(written: Any, directory: Path) -> None:
    with served(directory, written("1 / 0\n")) as (process, told):
        assert told.startswith(b"failed ")
        assert "ZeroDivisionError" in json.loads(told.removeprefix(b"failed "))["detail"]
        assert process.wait(30) == 1


def test_an_author_may_add_a_websocket(written: Any, directory: Path) -> None:
    with served(directory, written(WITH_ROUTES)) as (_, told):
        assert told == b"ready\n"
        with unix_connect(str(directory / "server.sock"), "ws://sandbox/echo") as connection:
            connection.send("hello")
            assert connection.recv() == "hello"


def test_a_connection_outlives_what_a_route_of_the_author_raises(written: Any, directory: Path) -> None:
    with served(directory, written(WITH_FAULTS)), kept_connection(directory) as ask:
        for _ in range(3):
            status, body = ask("/before")
            assert (status, json.loads(body)["detail"]) == (500, "RuntimeError: before the answer")
            status, body = ask("/exit")
            assert (status, json.loads(body)["kind"]) == (500, "internal")
            assert ask("/after") == (200, b"whole")
        assert ask("/healthz")[0] == 200


def test_an_answer_in_the_middle_of_which_a_route_raises_is_never_taken_for_whole(
    written: Any, directory: Path
) -> None:
    with served(directory, written(WITH_FAULTS)), kept_connection(directory) as ask:
        with pytest.raises(IncompleteRead):
            ask("/within")


def test_requests_in_flight_are_answered_before_it_ends(written: Any, directory: Path) -> None:
    slow = PLAIN.replace(
        "...",
        "\n    async def reset(self, task):\n        import asyncio, os, signal\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n        await asyncio.sleep(0.05)\n",
    )
    with served(directory, written(slow)) as (process, _):
        assert post(directory, "/reset", b'{"task": {}}').startswith(b"HTTP/1.1 200")
        assert process.wait(30) == 0
