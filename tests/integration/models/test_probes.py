"""Whether a model answers, asked beside its calls: by replicas that were ejected, and before a run begins."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from gymbox.errors import ErrorKind, ModelFailure
from gymbox.http import HttpClient
from gymbox.models import Call, probes
from gymbox.models.anthropic import AnthropicModel
from gymbox.models.azure import AzureChatModel
from gymbox.models.chat import ChatModel
from gymbox.models.replicas import FAULTS
from gymbox.models.scripted import ScriptedModel

from tests.integration.models.test_replicas import PARAMS, Server, answers, model, serving


@pytest.fixture
async def pair() -> AsyncIterator[tuple[Server, Server]]:
    async with serving("a", "b") as (bad, well):
        yield bad, well


def look_afters() -> list[asyncio.Task[Any]]:
    return [task for task in asyncio.all_tasks() if "_look_after" in repr(task.get_coro())]


async def ejected(asked: ChatModel, bad: Server, http: HttpClient, status: int = 503) -> None:
    """Have the replica ejected: each call that fails there is answered by the other."""
    bad.status = status
    before = bad.calls
    while bad.calls - before < (1 if status == 401 else FAULTS):
        assert await answers(asked, http, "") == ["b"]


async def unwatched() -> None:
    if tasks := look_afters():
        _, going_on = await asyncio.wait(tasks, timeout=30)
        assert not going_on


async def test_a_replica_that_answers_again_is_back_before_any_call_tries_it(
    pair: tuple[Server, Server], http: HttpClient
) -> None:
    bad, well = pair
    bad.listed = 503
    asked = model([bad, well], probe_interval=0.01, api_key="key-m")
    await ejected(asked, bad, http)
    calls = bad.calls
    assert calls == FAULTS
    await bad.was_looked_at(3)
    assert await answers(asked, http, *("" for _ in range(20))) == ["b"] * 20
    assert bad.calls == calls, "no call had to find out that it is still away"
    assert set(bad.looks) == {"Bearer key-m"}
    bad.status = bad.listed = 200
    await unwatched()
    assert bad.calls == calls
    assert "a" in await answers(asked, http, "", "")
    await asked.close()


@pytest.mark.parametrize("listed", [200, 429])
async def test_a_replica_that_answers_probes_but_no_calls_is_ejected_by_its_next_failure_and_for_longer(
    listed: int, pair: tuple[Server, Server], http: HttpClient
) -> None:
    bad, well = pair
    bad.listed = listed
    asked = model([bad, well], probe_interval=0.01)
    await ejected(asked, bad, http)
    await unwatched()
    assert asked._pool is not None
    [place] = [place for place in asked._pool.places if place.replica.url == bad.url]
    assert not place.ejected
    bad.listed = 503
    while bad.calls == FAULTS:
        assert await answers(asked, http, "") == ["b"]
    assert bad.calls == FAULTS + 1 and len(look_afters()) == 1
    assert place.pause == 4 * 8 * asked.pause
    await asked.close()


@pytest.mark.parametrize(("status", "listed"), [(503, 404), (503, 401), (503, 302), (503, 501), (401, 404)])
async def test_where_a_probe_tells_nothing_a_call_tries_it(
    status: int, listed: int, pair: tuple[Server, Server], http: HttpClient
) -> None:
    bad, well = pair
    bad.listed = listed
    asked = model([bad, well], probe_interval=600)
    await ejected(asked, bad, http, status)
    bad.status = 200
    await unwatched()
    assert bad.looks
    async with asyncio.timeout(30):
        while await answers(asked, http, "") != ["a"]:
            pass
    await asked.close()


async def test_a_replica_whose_key_is_refused_stays_away_while_it_is(
    pair: tuple[Server, Server], http: HttpClient
) -> None:
    bad, well = pair
    bad.listed = 401
    asked = model([bad, well], probe_interval=0.01)
    await ejected(asked, bad, http, 401)
    await bad.was_looked_at(3)
    assert bad.calls == 1
    bad.listed = bad.status = 200
    await unwatched()
    assert "a" in await answers(asked, http, "", "")
    await asked.close()


async def test_a_probe_has_a_deadline(
    pair: tuple[Server, Server], http: HttpClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymbox.models.endpoint.LONGEST_PROBE", 0.05)
    bad, well = pair
    bad.listed = 0
    asked = model([bad, well], probe_interval=0.01)
    await ejected(asked, bad, http)
    await bad.was_looked_at(2)
    bad.listed = bad.status = 200
    await unwatched()
    await asked.close()


async def test_a_model_that_is_closed_leaves_no_probe_behind_and_may_be_opened_again(
    pair: tuple[Server, Server], http: HttpClient
) -> None:
    bad, well = pair
    bad.listed = 0
    asked = model([bad, well], probe_interval=0.01)
    for _ in range(3):
        await asked.open()
        await ejected(asked, bad, http)
        await asked.close()
        assert not look_afters()
        await asked.close()


async def test_a_client_that_is_closed_is_not_opened_again_by_a_probe(pair: tuple[Server, Server]) -> None:
    bad, well = pair
    asked = model([bad, well], probe_interval=0.01, pause=0.2)
    async with HttpClient() as http:
        await ejected(asked, bad, http)
    await unwatched()
    assert not http.in_use and not bad.looks
    await asked.close()


async def test_without_probes_nobody_looks(pair: tuple[Server, Server], http: HttpClient) -> None:
    bad, well = pair
    bad.status, bad.listed = 503, 200
    asked = model([bad, well], probe_interval=0)
    for _ in range(10):
        assert await answers(asked, http, "") == ["b"]
    assert not look_afters() and bad.calls >= FAULTS and not bad.looks


@pytest.mark.parametrize(
    ("asked", "path"),
    [
        (AnthropicModel(name="m", base_url="http://x/v1"), "http://x/v1/models"),
        (ChatModel(name="m", base_url="http://x/v1"), "http://x/v1/models"),
        (AzureChatModel(name="m", base_url="http://x"), "http://x/openai/v1/models"),
        (
            AzureChatModel(name="m", base_url="http://x", api_version="2024-10-21"),
            "http://x/openai/models?api-version=2024-10-21",
        ),
    ],
)
def test_each_api_lists_its_models_in_its_place(asked: Any, path: str) -> None:
    [replica] = asked._replicas()
    assert asked._url(replica.url, asked._models_path) == path


@pytest.mark.parametrize("status", [200, 401, 404, 500])
async def test_a_model_that_answers_anything_is_ready(
    status: int, pair: tuple[Server, Server], http: HttpClient
) -> None:
    pair[0].listed = status
    async with asyncio.timeout(20):
        await model([pair[0]]).ready(http, 600)
    assert len(pair[0].looks) == 1 and not pair[0].calls
    await ScriptedModel().ready(http, 600)


async def test_one_replica_that_answers_is_enough(pair: tuple[Server, Server], http: HttpClient) -> None:
    pair[0].listed = 0
    async with asyncio.timeout(20):
        await model(list(pair)).ready(http, 600)


async def test_a_model_that_starts_late_is_waited_for_and_that_is_told_once(
    http: HttpClient, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "FIRST_PAUSE", 0.01)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        asked = ChatModel(name="m", base_url=f"http://127.0.0.1:{closed.getsockname()[1]}/v1")
        waiting = asyncio.create_task(asked.ready(http, 600))
        async with asyncio.timeout(30):
            while not caplog.records:
                await asyncio.wait([waiting], timeout=0.01)
        closed.listen()
        closed.setblocking(False)
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(30):
            line, _ = await loop.sock_accept(closed)
            with line:
                await loop.sock_sendall(line, b"HTTP/1.1 503 Loading\r\nContent-Length: 0\r\n\r\n")
                await waiting
    [told] = [record for record in caplog.records if record.levelno == logging.WARNING]
    assert "could not be reached" in told.getMessage() and "up to 600 s (runner.ready_timeout)" in told.getMessage()


async def test_a_model_that_never_answers_is_told_by_its_address(
    pair: tuple[Server, Server], http: HttpClient
) -> None:
    pair[0].listed = 0
    with pytest.raises(ModelFailure, match="did not answer within 0.2 s.*check that the server runs") as failed:
        await model([pair[0]]).ready(http, 0.2)
    assert failed.value.rollout_kind is ErrorKind.MODEL_UNAVAILABLE and pair[0].url in failed.value.detail
    assert await model([pair[1]]).responses(PARAMS, Call(http))
