"""The client of a run's events, against a server that breaks off."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web
from gymbox.errors import Unavailable
from gymbox.http import HttpClient
from gymbox.runs import client as client_module
from gymbox.runs.client import RunsClient
from gymbox.runs.endpoint import endpoint
from gymbox.runs.live import LiveRuns


class Breaking:
    """Sends one event a connection, then breaks off; `left` are still to be sent."""

    def __init__(self, *events: str) -> None:
        self.left = list(events)
        self.asked: list[str] = []

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(request.headers.get("Last-Event-ID", ""))
        if not self.left:
            return web.Response(status=204)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        if event := self.left.pop(0):
            await response.write(event.encode())
        return response


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    async with HttpClient() as found:
        yield found


async def told(server: Breaking, http: HttpClient) -> list[str]:
    app = web.Application()
    app.router.add_get("/v1/runs/r/events", server.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        client = RunsClient(http, url=f"http://127.0.0.1:{runner.addresses[0][1]}")
        return [name async for name, _ in client.events("r")]
    finally:
        await runner.cleanup()


async def test_where_the_connection_breaks_it_goes_on_after_the_last_event(http: HttpClient) -> None:
    server = Breaking("id: 1\nevent: rollout\ndata: {}\n\n", "", "id: 2!\nevent: end\ndata: {}\n\n")

    assert await told(server, http) == ["rollout", "end"]
    assert server.asked == ["", "1", "1"]


async def test_an_event_that_is_cut_off_is_asked_for_again(http: HttpClient) -> None:
    server = Breaking(
        "id: 1\nevent: rollout\ndata: {}\n\nid: 2\nevent: rollout\ndata: {", "id: 2!\nevent: end\ndata: {}\n\n"
    )

    assert await told(server, http) == ["rollout", "end"]
    assert server.asked == ["", "1"]


async def test_a_server_that_has_no_more_to_tell_ends_it(http: HttpClient) -> None:
    assert await told(Breaking("id: 1\nevent: rollout\ndata: {}\n\n"), http) == ["rollout"]


async def test_one_that_breaks_again_and_again_is_given_up(http: HttpClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_module, "TRIES", 2)

    with pytest.raises(Unavailable, match="the stream of run r ended before the run"):
        await told(Breaking("", "", ""), http)


async def test_a_run_goes_on_where_it_can_have_no_socket(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    with caplog.at_level(logging.WARNING):
        async with endpoint(LiveRuns(), tmp_path / "file") as announce:
            with announce("r", tmp_path):
                pass
    assert "this run cannot be asked for its status" in caplog.text


async def test_a_socket_may_be_deeper_than_its_address_may_be_long(tmp_path: Path, http: HttpClient) -> None:
    state = tmp_path / ("deep-" + "x" * 120)
    async with endpoint(LiveRuns(), state):
        [socket] = (state / "runs").glob("*.sock")
        assert socket.stat().st_mode & 0o777 == 0o600
        assert await RunsClient.at(http, socket).all() == []
    assert not socket.exists()
