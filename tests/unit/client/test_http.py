"""Http: the shared client's retries and deadlines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import pytest
from aiohttp import web
from gymbox.errors import AtCapacity, Conflict, Internal, TimedOut, Unavailable
from gymbox.http import HttpClient, retry_after

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    runner = web.ServerRunner(web.Server(handler), shutdown_timeout=0.1)  # type: ignore[arg-type]
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    async with HttpClient() as client:
        yield client


def counting(*statuses: int, headers: dict[str, str] | None = None) -> tuple[Handler, list[float]]:
    asked: list[float] = []

    async def answer(request: web.Request) -> web.Response:
        status = statuses[min(len(asked), len(statuses) - 1)]
        asked.append(time.monotonic())
        return web.json_response({"detail": "d"}, status=status, headers=headers if status >= 400 else None)

    return answer, asked


async def test_a_passing_503_is_tried_again(http):
    answer, asked = counting(503, 200)
    async with serving(answer) as url:
        assert await http.json("GET", url) == {"detail": "d"}
    assert len(asked) == 2


async def test_what_must_not_run_twice_is_sent_once(http):
    answer, asked = counting(503)
    async with serving(answer) as url:
        with pytest.raises(Unavailable):
            await http.json("POST", url, retry=False)
    assert len(asked) == 1


async def test_after_some_tries_the_answer_is_what_it_is(http):
    answer, asked = counting(503)
    async with serving(answer) as url:
        assert (await http.request("GET", url)).status == 503
    assert len(asked) == 3


async def test_a_server_says_when_to_come_back(http):
    answer, asked = counting(429, 200, headers={"Retry-After": "0"})
    async with serving(answer) as url:
        await http.json("GET", url)
    assert asked[1] - asked[0] < 0.2


async def test_a_pause_beyond_the_deadline_is_not_waited_for(http):
    answer, asked = counting(429, headers={"Retry-After": "100"})
    async with serving(answer) as url:
        with pytest.raises(AtCapacity) as full:
            await http.json("GET", url, timeout=5)
    assert (len(asked), full.value.retry_after) == (1, 100)


async def test_an_answer_that_does_not_come_is_timed_out(http):
    async def never(request: web.Request) -> web.Response:
        await asyncio.Event().wait()
        raise AssertionError

    async with serving(never) as url:
        with pytest.raises(TimedOut, match=r"0\.05 s"):
            await http.request("GET", url, timeout=0.05)


async def test_nobody_there_is_unavailable(http):
    with pytest.raises(Unavailable, match="127.0.0.1:9"):
        await http.request("GET", "http://127.0.0.1:9/", retry=False)
    with pytest.raises(Unavailable):
        async with http.stream("GET", "http://127.0.0.1:9/", idle=10):
            pass


async def test_what_breaks_in_the_block_of_a_stream_is_no_fault_of_the_server(http):
    answer, _ = counting(200)
    async with serving(answer) as url:
        with pytest.raises(BrokenPipeError):
            async with http.stream("GET", url, idle=10):
                raise BrokenPipeError("a pipe of the caller's")


@pytest.mark.parametrize(("status", "kind"), [(200, Unavailable), (409, Conflict), (500, Internal)])
async def test_html_is_no_json_whatever_its_status(http, status, kind):
    async def html(request: web.Request) -> web.Response:
        return web.Response(text="<html>", content_type="text/html", status=status)

    async with serving(html) as url:
        with pytest.raises(kind):
            await http.json("GET", url)


async def test_a_stream_is_read_as_it_comes_and_its_refusal_or_silence_is_a_problem(http):
    async def stream(request: web.Request) -> web.StreamResponse:
        if request.path == "/no":
            return web.json_response({"kind": "conflict", "detail": "no"}, status=409)
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"first")
        await asyncio.Event().wait()
        return response

    async with serving(stream) as url:
        async with http.stream("GET", url, idle=10) as answer:
            assert await answer.content.readany() == b"first"
        with pytest.raises(Conflict):
            async with http.stream("GET", f"{url}/no", idle=10):
                pass
        with pytest.raises(TimedOut, match="nothing came for 0.1 s"):
            async with http.stream("GET", url, idle=0.1) as answer:
                await answer.content.read()


async def test_no_body_is_none(http):
    async def nothing(request: web.Request) -> web.Response:
        return web.Response(status=204)

    async with serving(nothing) as url:
        assert await http.json("GET", url) is None


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"Retry-After": "3"}, 3.0),
        ({"Retry-After": "-1"}, 0.0),
        ({"Retry-After": "Sun, 29 Nov 2020 01:00:00 GMT"}, 0.0),
        ({"Retry-After": "Sun, 29 Nov 2020 01:00:00"}, 0.0),
        ({"Retry-After": "2", "retry-after-ms": "1500"}, 1.5),
        ({"Retry-After": "2", "retry-after-ms": "nan"}, 2.0),
        ({"Retry-After": "inf"}, None),
        ({"Retry-After": "soon"}, None),
        ({}, None),
    ],
)
def test_retry_after_is_understood_as_seconds_or_date(headers: dict[str, str], seconds: Any):
    assert retry_after(headers) == seconds


def test_retry_after_of_a_date_to_come_is_the_time_until_then():
    then = datetime.now(UTC) + timedelta(seconds=3600)
    seconds = retry_after({"Retry-After": format_datetime(then, usegmt=True)})
    assert seconds is not None and 3500 < seconds <= 3600


async def test_no_more_is_read_of_an_answer_than_it_may_have(http):
    sent = 0

    async def endless(request: web.Request) -> web.StreamResponse:
        nonlocal sent
        response = web.StreamResponse()
        await response.prepare(request)
        while True:
            await response.write(b" " * 65536)
            sent += 65536

    async with serving(endless) as url:
        with pytest.raises(Unavailable, match="more than 1000 bytes"):
            await http.request("GET", url, most=1000)
    assert sent < 1 << 26  # what the sockets hold of it, and not what would come

    async def exact(request: web.Request) -> web.Response:
        return web.Response(body=b"1" * 1000)

    async with serving(exact) as url:
        assert len((await http.request("GET", url, most=1000)).body) == 1000
        with pytest.raises(Unavailable, match="more than 999 bytes"):
            await http.json("GET", url, most=999)
