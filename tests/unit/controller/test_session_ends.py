"""Session ends: those of one container go together where they come while one is under way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from gymbox.controller import session_ends
from gymbox.controller.container import Container
from gymbox.controller.session_ends import SessionEnds
from gymbox.http import HttpClient
from gymbox.providers import Started, StartSpec

from .conftest import InProcessContainer, until


@pytest.fixture
async def server(folder: Path, environments) -> AsyncIterator[InProcessContainer]:
    server = InProcessContainer(StartSpec("box", environments["shared"], folder / "box"))
    await server.start()
    yield server
    server.may_end_sessions.set()
    await server.stop()


@pytest.fixture
async def ends() -> AsyncIterator[SessionEnds]:
    tasks: set[asyncio.Task[None]] = set()
    async with HttpClient() as http:
        yield SessionEnds(http, lambda work: tasks.add(asyncio.create_task(work)))
        for task in tasks:
            task.cancel()


def container_at(server: InProcessContainer) -> Container:
    started = Started("box", server.socket, None, "image:1")
    return Container("box", server.spec.environment, 64, {}, started=started)


async def test_those_that_end_while_one_is_under_way_go_together(server, ends):
    container = container_at(server)
    server.may_end_sessions.clear()
    first = asyncio.create_task(ends.end(container, "s0"))
    await until(lambda: server.requests_to_end == 1)
    others = [asyncio.create_task(ends.end(container, f"s{number}")) for number in range(1, 30)]
    await asyncio.sleep(0)
    server.may_end_sessions.set()

    assert await asyncio.gather(first, *others) == [True] * 30
    assert server.ended_sessions == [f"s{number}" for number in range(30)]
    assert server.requests_to_end == 2
    assert await ends.end(container, "later")
    assert server.requests_to_end == 3


async def test_where_one_request_fails_those_after_it_are_still_tried(server, ends):
    container = container_at(server)
    server.refuse_to_end_sessions = True
    server.may_end_sessions.clear()
    first = asyncio.create_task(ends.end(container, "s0"))
    await until(lambda: server.requests_to_end == 1)
    second = asyncio.create_task(ends.end(container, "s1"))
    await asyncio.sleep(0)
    server.may_end_sessions.set()
    assert not await first
    assert not await second
    server.refuse_to_end_sessions = False
    assert await ends.end(container, "s2")


async def test_who_waits_hears_it_where_it_is_given_up(server):
    tasks: list[asyncio.Task[None]] = []
    async with HttpClient() as http:
        ends = SessionEnds(http, lambda work: tasks.append(asyncio.create_task(work)))
        server.may_end_sessions.clear()
        waiting = asyncio.create_task(ends.end(container_at(server), "s0"))
        await until(lambda: server.requests_to_end == 1)
        tasks[0].cancel()
        assert not await waiting


async def test_a_container_that_does_not_answer_is_asked_once_for_all_that_wait(server, ends, monkeypatch):
    monkeypatch.setattr(session_ends, "TIMEOUT", 0.3)
    container = container_at(server)
    server.may_end_sessions.clear()
    first = asyncio.create_task(ends.end(container, "s0"))
    await until(lambda: server.requests_to_end == 1)
    second = asyncio.create_task(ends.end(container, "s1"))
    assert await asyncio.gather(first, second) == [False, False]
    assert server.requests_to_end == 1
    server.may_end_sessions.set()
    assert await ends.end(container, "s2")


async def test_nobody_waits_for_a_container_once_all_are_stopped(server, ends):
    container = container_at(server)
    server.may_end_sessions.clear()
    first = asyncio.create_task(ends.end(container, "s0"))
    await until(lambda: server.requests_to_end == 1)
    second = asyncio.create_task(ends.end(container, "s1"))
    await asyncio.sleep(0)
    ends.close()
    assert await asyncio.gather(first, second) == [False, False]
    assert not await ends.end(container, "s2")
