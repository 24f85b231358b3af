"""Clients: what they make of a controller or a sandbox that answers badly, or not at all."""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from gymbox.client import ControllerClient
from gymbox.environment import Environment, Manifest
from gymbox.errors import (
    ErrorKind,
    Gone,
    Invalid,
    NotFound,
    Problem,
    RolloutError,
    SandboxEnded,
    Stage,
    StartFailed,
    TimedOut,
    Unavailable,
)
from gymbox.http import HttpClient
from gymbox.sandbox_calls import Reach
from gymbox.sandbox_client import SandboxClient
from gymbox_sandbox.lifecycle import Ended, SandboxTokens, SandboxView
from gymbox_sandbox.wire import ExecRequest

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
MANIFEST = Manifest(name="counter", description="for tests")
ENVIRONMENT = Environment(Path("/nowhere"), MANIFEST)
ENDED = Ended(cause="oom_killed", detail="out of memory", logs="Killed\n")


@asynccontextmanager
async def serving(handler: Handler) -> AsyncIterator[str]:
    """The address of a server that answers everything with `handler`."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return await handler(request)

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


class Script:
    """Answers with one after the other of its answers, then with the last again and again; None hangs up."""

    def __init__(self, *answers: tuple[int, Any] | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    async def __call__(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(f"{request.method} {request.path}")
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if answer is None:
            assert request.transport is not None
            request.transport.close()
            return web.Response()
        status, body = answer
        return web.json_response(body, status=status)


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    async with HttpClient() as client:
        yield client


@asynccontextmanager
async def sandbox(http: HttpClient, script: Handler, ended: Ended | None = None) -> AsyncIterator[SandboxClient]:
    async def why() -> Ended | None:
        return ended

    async with serving(script) as url:
        yield SandboxClient("s1", MANIFEST, http, Reach(url), why, None)  # type: ignore[arg-type]


def view(**fields: Any) -> dict[str, Any]:
    known = {
        "id": "s1",
        "environment": "counter",
        "status": "ready",
        "provider": "x",
        "created_at": 0,
        "expires_at": 0,
    }
    return known | {"url": "http://proxy/sandboxes/s1"} | fields


def problem(kind: str, status: int, **fields: Any) -> tuple[int, Any]:
    return status, {"kind": kind, "status": status, "detail": kind, **fields}


# --- a sandbox


async def test_a_tool_call_that_broke_off_is_not_sent_again(http):
    script = Script(None, (200, {"output": "late"}))
    async with sandbox(http, script) as client:
        with pytest.raises(Unavailable) as failed:
            await client.call_tool("add", {})

    assert len(script.asked) == 1
    assert RolloutError.at(Stage.AGENT, failed.value).kind is ErrorKind.SANDBOX_UNREACHABLE


async def test_a_reset_that_broke_off_is_sent_again(http):
    script = Script(None, (200, {"tools": [{"name": "add"}]}))
    async with sandbox(http, script) as client:
        await client.reset({})

        assert client.tools.definitions == [{"name": "add"}]


async def test_a_refused_connection_is_tried_again_and_then_given_up(http):
    async def why() -> Ended | None:
        return None

    client = SandboxClient("s1", MANIFEST, http, Reach("http://127.0.0.1:9"), why, None)  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="s1 does not answer"):
        await client.call_tool("add", {})


async def test_a_lost_connection_to_a_sandbox_that_ended_tells_the_cause(http):
    async with sandbox(http, Script(None), ENDED) as client:
        with pytest.raises(SandboxEnded) as ended:
            await client.call_tool("add", {})

    error = RolloutError.at(Stage.AGENT, ended.value)
    assert (error.kind, error.logs) == (ErrorKind.OOM_KILLED, "Killed\n")


@pytest.mark.parametrize("kind", ["unavailable", "gone"])
async def test_what_the_author_raised_is_passed_on_as_it_is_and_not_repeated(http, kind):
    script = Script(problem(kind, 503, rollout_kind="reset_failed", log="Traceback"))
    async with sandbox(http, script) as client:
        with pytest.raises(Problem) as failed:
            await client.reset({})

    error = RolloutError.at(Stage.RESET, failed.value)
    assert (error.kind, error.retryable, error.logs) == (ErrorKind.RESET_FAILED, False, "Traceback")
    assert len(script.asked) == 1


async def test_what_an_unreachable_sandbox_said_last_is_kept(http):
    async with sandbox(http, Script(problem("unavailable", 503, log="last words", retry_after=2))) as client:
        with pytest.raises(Unavailable) as failed:
            await client.call_tool("add", {})

    error = RolloutError.at(Stage.AGENT, failed.value)
    assert (error.kind, error.logs, failed.value.retry_after) == (ErrorKind.SANDBOX_UNREACHABLE, "last words", 2)


async def test_a_sandbox_that_the_proxy_does_not_know_is_asked_for_at_the_controller(http):
    lost = Ended(cause="lost", detail="the controller knows no sandbox s1 any more")
    async with sandbox(http, Script(problem("not_found", 404, sandbox="s1")), lost) as client:
        with pytest.raises(SandboxEnded) as ended:
            await client.read_file("x")

    assert RolloutError.at(Stage.AGENT, ended.value).kind is ErrorKind.SANDBOX_LOST


async def test_a_route_that_comes_late_is_waited_for(http):
    script = Script(problem("not_found", 404, sandbox="s1"), (200, {"output": "3"}))
    async with sandbox(http, script) as client:
        assert (await client.call_tool("add", {})).output == "3"


async def test_a_file_that_is_not_there_is_the_sandboxs_own_answer(http):
    async with sandbox(http, Script(problem("not_found", 404)), ENDED) as client:
        with pytest.raises(NotFound):
            await client.read_file("x")
        with pytest.raises(NotFound):
            await client.save("x", io.BytesIO())


async def test_the_controller_knows_the_last_lines_that_a_proxy_does_not(http):
    script = Script(problem("gone", 410, ended=ENDED.model_copy(update={"logs": ""}).model_dump()))
    async with sandbox(http, script, ENDED) as client:
        with pytest.raises(SandboxEnded) as ended:
            await client.read_file("x")

    assert ended.value.ended.logs == "Killed\n"


async def test_a_proxy_that_says_gone_is_believed_where_the_controller_knows_nothing(http):
    script = Script(problem("gone", 410, ended=ENDED.model_dump()))
    async with sandbox(http, script) as client:
        with pytest.raises(SandboxEnded) as ended:
            await client.read_file("x")
        with pytest.raises(SandboxEnded):
            async with client.exec_stream(ExecRequest(command="true")):
                pass

    assert ended.value.ended == ENDED


async def test_a_stream_that_cannot_be_had_says_that_the_sandbox_does_not_answer(http):
    async with sandbox(http, Script(None)) as client:
        with pytest.raises(Unavailable, match="s1"):
            async with client.exec_stream(ExecRequest(command="true")):
                pass


@pytest.mark.parametrize(
    ("events", "error"),
    [
        (b'event: started\ndata: {"exec_id": "e1", "pid": 1}\n\n', Unavailable),
        (b'event: error\ndata: {"status": 504, "kind": "timed_out", "detail": "slow"}\n\n', TimedOut),
    ],
)
async def test_a_command_whose_output_breaks_off_is_no_success(http, events, error):
    async def stream(request: web.Request) -> web.Response:
        return web.Response(body=events, content_type="text/event-stream")

    async with sandbox(http, stream) as client, client.exec_stream(ExecRequest(command="true")) as execution:
        with pytest.raises(error):
            async for _ in execution.events():
                pass


async def test_events_may_come_in_any_pieces_and_carriage_returns(http):
    async def stream(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        text = (
            b'event: stdout\r\ndata: {"data": "aGk="}\r\n\r\n: comment\n\n'
            b'event: exit\ndata: {"exit_code": 0,\ndata: "duration": 1}\n\n'
        )
        for at in range(len(text)):
            await response.write(text[at : at + 1])
        return response

    async with sandbox(http, stream) as client, client.exec_stream(ExecRequest(command="true")) as execution:
        events = [event async for event in execution.events()]

        assert [event.name for event in events] == ["stdout", "exit"]
        assert events[0].output == b"hi"
        assert execution.result.exit_code == 0


# --- a controller


async def entered(client: ControllerClient) -> SandboxClient:
    async with client.sandbox(ENVIRONMENT, id="s1") as entered:
        return entered


async def test_a_create_that_broke_off_is_the_same_request_again(http):
    script = Script(None, (201, view()), (204, None))
    async with serving(script) as url:
        await entered(ControllerClient(url, "t", http))

    assert script.asked[:2] == ["POST /sandboxes"] * 2
    assert script.asked[-1] == "DELETE /sandboxes/s1"


async def test_one_that_ended_before_the_answer_came_is_not_replaced(http):
    script = Script(None, problem("gone", 410, ended=ENDED.model_dump()))
    async with serving(script) as url:
        with pytest.raises(Gone):
            await entered(ControllerClient(url, "t", http))


async def test_a_failed_start_is_raised_as_such_and_not_repeated(http):
    script = Script(problem("unavailable", 503, ended=ENDED.model_dump()))
    async with serving(script) as url:
        with pytest.raises(StartFailed) as failed:
            await entered(ControllerClient(url, "t", http))

    assert script.asked.count("POST /sandboxes") == 1
    assert RolloutError.at(Stage.PROVISION, failed.value).kind is ErrorKind.OOM_KILLED


async def test_a_sandbox_that_cannot_be_deleted_is_left_to_its_lease(http, caplog):
    script = Script((201, view()), problem("internal", 500))
    async with serving(script) as url:
        await entered(ControllerClient(url, "t", http))

    assert "left to its lease" in caplog.text


async def test_renewing_goes_on_through_failures_until_it_is_gone(http, caplog):
    asked: list[str] = []
    gone = asyncio.Event()

    async def controller(request: web.Request) -> web.Response:
        asked.append(request.path)
        if request.path == "/sandboxes":
            return web.json_response(view(), status=201)
        if not request.path.endswith("/renew"):
            return web.Response(status=204)
        if asked.count("/sandboxes/s1/renew") == 1:
            return web.json_response({"kind": "conflict", "detail": "not now"}, status=409)
        gone.set()
        return web.json_response({"kind": "gone", "detail": "gone"}, status=410)

    async with serving(controller) as url:
        async with ControllerClient(url, "t", http, lease=0.03).sandbox(ENVIRONMENT, id="s1"):
            async with asyncio.timeout(10):
                await gone.wait()

    assert "cannot renew" in caplog.text


@pytest.mark.parametrize(
    ("answer", "cause"),
    [
        ((200, view(status="ended", ended=ENDED.model_dump())), "oom_killed"),
        (problem("not_found", 404), "lost"),
        (problem("internal", 500), None),
        ((200, view()), None),
    ],
)
async def test_it_asks_the_controller_why_a_sandbox_does_not_answer(http, answer, cause):
    async with serving(Script(answer)) as url:
        client = ControllerClient(url, "t", http).open(
            SandboxView.model_validate(view(url="http://127.0.0.1:9")), MANIFEST
        )
        with pytest.raises(SandboxEnded if cause else Unavailable) as failed:
            await client.read_file("x")

    if cause:
        assert failed.value.ended.cause == cause


async def test_each_call_brings_the_token_that_it_needs(http):
    seen: dict[str, str] = {}

    async def answer(request: web.Request) -> web.Response:
        seen[request.path] = request.headers["Authorization"]
        return web.json_response({"tools": []} if request.path.endswith("/reset") else {"output": "x"})

    async with serving(answer) as url:
        controller = ControllerClient(url, "admin", http)
        with_tokens = SandboxView.model_validate(view(url=url, tokens=SandboxTokens(tools="t", control="c")))
        for each in (with_tokens, SandboxView.model_validate(view(url=f"{url}/bare"))):
            client = controller.open(each, MANIFEST)
            await client.reset({})
            await client.call_tool("add", {})

    assert seen == {
        "/reset": "Bearer c",
        "/tools/add": "Bearer t",
        "/bare/reset": "Bearer admin",
        "/bare/tools/add": "Bearer admin",
    }


async def test_a_sandbox_without_an_address_cannot_be_opened(http):
    with pytest.raises(Invalid):
        ControllerClient("http://x", "t", http).open(SandboxView.model_validate(view(url=None)), MANIFEST)
