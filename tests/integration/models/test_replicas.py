"""Several servers behind one model: who is asked, who is left alone, how often, and for how long."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from gymbox.errors import ErrorKind, ModelFailure
from gymbox.http import HttpClient
from gymbox.models import Call
from gymbox.models.chat import ChatModel
from gymbox.models.endpoint import TRIES
from gymbox_sandbox.responses import ResponsesParams
from pydantic import ValidationError

from tests.misbehaving import good

PARAMS = ResponsesParams(input="hello")


class Server:
    """A Chat endpoint that answers with its name; `first`, `status`, `headers` spoil that, `hold` waits."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.url = ""
        self.status = 200
        self.first: list[int] = []
        self.arrivals: list[float] = []
        self.headers: dict[str, str] = {}
        self.keys: list[str | None] = []
        self.hold: asyncio.Event | None = None
        self.inside = 0
        self.most = 0
        self.came = asyncio.Condition()
        self.listed = 404
        """Status of its list of models; 0: it does not answer."""
        self.looks: list[str | None] = []
        """Keys of those who asked for that."""

    @property
    def calls(self) -> int:
        return len(self.keys)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        async with self.came:
            self.keys.append(request.headers.get("Authorization"))
            self.arrivals.append(asyncio.get_running_loop().time())
            status = self.first.pop(0) if self.first else self.status
            self.inside += 1
            self.most = max(self.most, self.inside)
            self.came.notify_all()
        try:
            if self.hold is not None:
                await self.hold.wait()
            body = good("chat", self.name) if status == 200 else {"error": {"message": f"not {self.keys[-1]}"}}
            return web.json_response(body, status=status, headers=self.headers)
        finally:
            self.inside -= 1

    async def list_models(self, request: web.Request) -> web.Response:
        async with self.came:
            self.looks.append(request.headers.get("Authorization"))
            self.came.notify_all()
        if not self.listed:
            await asyncio.Event().wait()
        return web.json_response({"data": []}, status=self.listed)

    async def has(self, calls: int) -> None:
        async with asyncio.timeout(30), self.came:
            await self.came.wait_for(lambda: self.calls >= calls)

    async def was_looked_at(self, times: int) -> None:
        async with asyncio.timeout(30), self.came:
            await self.came.wait_for(lambda: len(self.looks) >= times)


@asynccontextmanager
async def serving(*names: str) -> AsyncIterator[list[Server]]:
    async with AsyncExitStack() as stack:
        servers = [Server(name) for name in names]
        for server in servers:
            app = web.Application()
            app.router.add_post("/v1/chat/completions", server.handle)
            app.router.add_get("/v1/models", server.list_models)
            runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
            stack.push_async_callback(runner.cleanup)
            await runner.setup()
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        yield servers


@pytest.fixture
async def servers() -> AsyncIterator[list[Server]]:
    async with serving("a", "b", "c") as servers:
        yield servers


def model(servers: list[Server], **options: Any) -> ChatModel:
    settings = {"name": "m", "base_url": [server.url for server in servers], "pause": 0.001, "timeout": 30}
    return ChatModel.model_validate({**settings, **options})


async def answers(asked: ChatModel, http: HttpClient, *rollouts: str) -> list[str]:
    calls = [asked.responses(PARAMS, Call(http, rollout=rollout)) for rollout in rollouts]
    return [response.output_text for response in await asyncio.gather(*calls)]


async def test_calls_are_spread_over_the_least_busy_replicas(servers: list[Server], http: HttpClient) -> None:
    for server in servers:
        server.hold = asyncio.Event()
    asked = model(servers)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(answers(asked, http, *("" for _ in range(12))))
        for server in servers:
            await server.has(4)
        for server in servers:
            assert server.hold is not None
            server.hold.set()
    assert Counter(task.result()) == {"a": 4, "b": 4, "c": 4}


async def test_one_after_another_they_are_asked_in_turn(servers: list[Server], http: HttpClient) -> None:
    asked = model(servers)
    assert [(await answers(asked, http, ""))[0] for _ in range(6)] == ["a", "b", "c"] * 2


async def test_the_calls_of_a_rollout_stay_with_one_replica(servers: list[Server], http: HttpClient) -> None:
    asked = model(servers)
    rollouts = [f"r{number}" for number in range(9)]
    turns = [await answers(asked, http, *rollouts) for _ in range(4)]
    assert turns == [turns[0]] * 4
    assert Counter(turns[0]) == {"a": 3, "b": 3, "c": 3}


async def test_a_rollout_goes_elsewhere_while_its_replica_is_overloaded(
    servers: list[Server], http: HttpClient
) -> None:
    busy, idle = servers[:2]
    asked = model([busy, idle])
    assert await answers(asked, http, "r") == ["a"]
    busy.hold = asyncio.Event()
    held = [asyncio.create_task(answers(asked, http, "r")) for _ in range(6)]
    await busy.has(6)
    while idle.calls == 0:
        await asyncio.sleep(0)
        held.append(asyncio.create_task(answers(asked, http, "r")))
    busy.hold.set()
    found = [answer for task in held for answer in await task]
    assert set(found) == {"a", "b"}
    assert await answers(asked, http, "r") == ["a"], "its cache still knows the rollout"


async def test_weights_say_how_much_a_replica_takes(servers: list[Server], http: HttpClient) -> None:
    replicas = [{"url": servers[0].url, "weight": 3}, {"url": servers[1].url}]
    asked = model([], base_url=None, replicas=replicas)
    found = Counter([(await answers(asked, http, ""))[0] for _ in range(8)])
    assert found == {"a": 6, "b": 2}


async def test_a_replica_has_its_own_limit_and_key(servers: list[Server], http: HttpClient) -> None:
    replicas = [{"url": servers[0].url, "max_concurrency": 1, "api_key": "key-a"}, {"url": servers[1].url}]
    asked = model([], base_url=None, replicas=replicas, api_key="key-m")
    await answers(asked, http, *("" for _ in range(20)))
    assert servers[0].most == 1
    assert set(servers[0].keys) == {"Bearer key-a"} and set(servers[1].keys) == {"Bearer key-m"}


@pytest.mark.parametrize("status", [500, 429, 401])
async def test_what_one_replica_refuses_another_answers_at_once(
    status: int, servers: list[Server], http: HttpClient
) -> None:
    servers[0].status = servers[1].status = status
    call = Call(http, tries=[])
    asked = model(servers, pause=30)
    async with asyncio.timeout(20):
        response = await asked.responses(PARAMS, call)
    assert response.output_text == "c"
    tries = call.tries or []
    assert [tried.replica for tried in tries] == [server.url for server in servers]
    assert [tried.status for tried in tries] == [status, status, 200]
    assert [tried.kind is None for tried in tries] == [False, False, True]
    assert all(tried.seconds > 0 for tried in tries)


async def test_a_wrong_request_is_asked_of_one_replica_only(servers: list[Server], http: HttpClient) -> None:
    for server in servers:
        server.status = 400
    with pytest.raises(ModelFailure):
        await answers(model(servers), http, "")
    assert sum(server.calls for server in servers) == 1


async def test_a_failing_replica_is_left_alone_and_comes_back(servers: list[Server], http: HttpClient) -> None:
    bad, well = servers[:2]
    bad.status = 503
    asked = model([bad, well], pause=0.02)
    while bad.calls < 3:
        assert await answers(asked, http, "r") == ["b"] or bad.calls
        assert await answers(asked, http, "") == ["b"]
    seen = bad.calls
    assert await answers(asked, http, *("" for _ in range(20))) == ["b"] * 20
    assert bad.calls <= seen + 1, "one call may have tried it"
    bad.status = 200
    async with asyncio.timeout(30):
        while (await answers(asked, http, ""))[0] != "a":
            pass
    assert Counter(await answers(asked, http, *("" for _ in range(10))))["a"] >= 4


async def test_where_all_fail_each_is_tried_and_the_failure_told(servers: list[Server], http: HttpClient) -> None:
    for server in servers:
        server.status = 500
    asked = model(servers)
    for _ in range(3):
        with pytest.raises(ModelFailure) as raised:
            await answers(asked, http, "")
        assert raised.value.rollout_kind is ErrorKind.MODEL_UNAVAILABLE
    assert sum(server.calls for server in servers) == 3 * (TRIES[ErrorKind.MODEL_UNAVAILABLE] + 2)


async def test_who_asks_for_rest_is_asked_no_more_until_then(servers: list[Server], http: HttpClient) -> None:
    only = servers[0]
    only.first, only.headers = [429], {"Retry-After": "1"}
    asked = model([only], max_concurrency=1)
    assert await answers(asked, http, *("" for _ in range(20))) == ["a"] * 20
    assert only.arrivals[1] - only.arrivals[0] > 0.9, "nor do those ask that did not fail themselves"


async def test_the_deadline_ends_tries_pauses_and_waits(servers: list[Server], http: HttpClient) -> None:
    servers[0].status, servers[0].headers = 429, {"Retry-After": "20"}
    async with asyncio.timeout(15):
        with pytest.raises(ModelFailure) as raised:
            await answers(model(servers[:1], deadline=5), http, "")
    assert raised.value.rollout_kind is ErrorKind.MODEL_RATE_LIMITED and raised.value.retry_after == 20
    assert servers[0].calls == 1


async def test_who_waits_for_a_turn_past_the_deadline_is_told_why(servers: list[Server], http: HttpClient) -> None:
    only = servers[0]
    only.hold = asyncio.Event()
    asked = model([only], max_concurrency=1, deadline=0.3)
    found = await asyncio.gather(*(answers(asked, http, "") for _ in range(3)), return_exceptions=True)
    kinds = [failure.rollout_kind for failure in found if isinstance(failure, ModelFailure)]
    assert kinds == [ErrorKind.MODEL_TIMED_OUT] * 3
    assert any("turn did not come" in str(failure) and "max_concurrency" in str(failure) for failure in found)
    only.hold.set()
    assert await answers(asked, http, "") == ["a"], "nobody holds a slot any more"


async def test_cancelled_calls_give_their_places_back(servers: list[Server], http: HttpClient) -> None:
    only = servers[0]
    only.hold = asyncio.Event()
    asked = model([only], max_concurrency=2)
    tasks = [asyncio.create_task(answers(asked, http, "")) for _ in range(50)]
    await only.has(2)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    only.hold = None
    assert await answers(asked, http, *("" for _ in range(5))) == ["a"] * 5
    assert only.most == 2


async def test_a_cancelled_try_is_noted_as_such(servers: list[Server], http: HttpClient) -> None:
    servers[0].hold = asyncio.Event()
    call = Call(http, tries=[])
    task = asyncio.create_task(model(servers[:1]).responses(PARAMS, call))
    await servers[0].has(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [(tried.kind, tried.status) for tried in call.tries or []] == [("cancelled", None)]


async def test_thousands_wait_for_few_places_in_the_order_of_their_coming(http: HttpClient) -> None:
    async with serving("a", "b") as servers:
        asked = model(servers, max_concurrency=8)
        done: list[int] = []

        async def one(number: int) -> None:
            await asked.responses(PARAMS, Call(http, rollout=f"r{number}"))
            done.append(number)

        async with asyncio.timeout(200):
            await asyncio.gather(*(one(number) for number in range(2000)))
        assert max(abs(number - place) for place, number in enumerate(done)) < 64
        assert max(server.most for server in servers) <= 8
        assert sum(server.calls for server in servers) == 2000


async def test_requests_a_minute_are_kept(servers: list[Server], http: HttpClient) -> None:
    # 0.1 s each, after a burst of 60
    asked = model(servers[:1], requests_per_minute=600)
    loop = asyncio.get_running_loop()
    began = loop.time()
    await answers(asked, http, *("" for _ in range(75)))
    assert loop.time() - began > 1


async def test_tokens_a_minute_are_kept_by_what_answers_tell(servers: list[Server], http: HttpClient) -> None:
    # the burst has 6 tokens; each answer tells of 3
    asked = model(servers[:1], tokens_per_minute=60, deadline=0.5)
    with pytest.raises(ModelFailure, match="rates"):
        for _ in range(20):
            await answers(asked, http, "")
    assert 1 <= servers[0].calls < 10


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "base_url is missing"),
        ({"base_url": []}, "at least one"),
        ({"base_url": ["http://a", "b"]}, "must start with"),
        ({"replicas": [{"url": "http://a", "weight": 0}]}, "greater than 0"),
        ({"replicas": [{"url": "http://me:pw@a"}]}, "must not hold a user"),
    ],
)
def test_addresses_that_cannot_be_are_refused_at_start(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ChatModel.model_validate({"name": "m", **settings})


async def test_a_key_of_a_replica_is_never_shown(servers: list[Server], http: HttpClient) -> None:
    servers[0].status = 401
    asked = model([], base_url=None, replicas=[{"url": servers[0].url, "api_key": "sk-very-secret"}])
    with pytest.raises(ModelFailure) as raised:
        await answers(asked, http, "")
    assert "not Bearer ***" in raised.value.detail
    assert "sk-very-secret" not in raised.value.detail + repr(asked)
