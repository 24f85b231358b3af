"""Whom the proxy does not serve, and what cannot be talked out of it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest
from aiohttp import web
from gymbox.proxy.upstreams import Upstreams
from gymbox_sandbox.lifecycle import Route

HEAD = b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nAuthorization: Bearer tools-a\r\n"


class Recorder:
    """A sandbox that notes what reaches it."""

    def __init__(self) -> None:
        self.paths: list[str] = []

    async def __call__(self, request: web.BaseRequest) -> web.Response:
        self.paths.append(request.raw_path)
        return web.Response(text="reached")


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


TRAVERSALS = [
    b"/sandboxes/a/../b/verify",
    b"/sandboxes/a/%2e%2e/b/verify",
    b"/sandboxes/a/%2E%2E%2fb/verify",
    b"/sandboxes/a/..%2fb/verify",
    b"/sandboxes/a/tools/../verify",
    b"/sandboxes/a/tools/%2e%2e/verify",
    b"/sandboxes/a/tools/..;/verify/../verify",
    b"/sandboxes/a//verify",
    b"/sandboxes//a/verify",
    b"//sandboxes/b/verify",
    b"/sandboxes/a/./verify",
    b"/sandboxes/a\\..\\b/verify",
    b"/sandboxes/a/%5c..%5cverify",
    b"/sandboxes/a%2fverify",
    b"/sandboxes/a/tools%2f%2e%2e%2fverify",
    b"/sandboxes/a/verify%00",
    b"/sandboxes/a/%0d%0averify",
    b"/sandboxes/a/verify#x",
    b"/sandboxes/a@b/verify",
    b"http://localhost/sandboxes/a/verify",
    b"http://evil.example/sandboxes/a/x",
    b"//evil.example/sandboxes/a/x",
    b"@evil.example/",
    b"/models/../sandboxes/a/verify",
    b"/sandboxes/%61/../../models/x",
    b"*",
]


@pytest.mark.parametrize("path", TRAVERSALS)
async def test_no_path_leads_out_of_a_sandbox_or_around_its_scopes(world: Any, path: bytes) -> None:
    a, b = Recorder(), Recorder()
    async with world() as w:
        await w.sandbox("a", a)
        await w.sandbox("b", b)
        for method in (b"GET ", b"POST "):
            assert status(await w.say(method + path + HEAD + b"Content-Length: 0\r\n\r\n")) in (400, 403, 404)
        assert (a.paths, b.paths) == ([], [])


@pytest.mark.parametrize(
    "path", [b"/verify", b"/%76erify", b"/verif%79", b"/VERIFY", b"/verify/", b"/exec?stream=1", b"/files/../exec"]
)
async def test_the_tools_token_reaches_no_control_route_in_any_spelling(world: Any, path: bytes) -> None:
    sandbox = Recorder()
    async with world() as w:
        await w.sandbox("a", sandbox)
        assert status(await w.say(b"POST /sandboxes/a" + path + HEAD + b"Content-Length: 0\r\n\r\n")) in (400, 403)
        assert sandbox.paths == []


@pytest.mark.parametrize(
    "header", ["X-Sandbox-Pod-IP: 127.0.0.1", "X-Original-URL: /verify", "X-Forwarded-Host: evil"]
)
async def test_no_header_changes_where_a_request_goes(world: Any, header: str) -> None:
    sandbox = Recorder()
    async with world() as w:
        await w.sandbox("a", sandbox)
        assert status(await w.say(b"GET /sandboxes/a/x" + HEAD + header.encode() + b"\r\n\r\n")) == 200
        assert sandbox.paths == ["/x"]


SMUGGLED = {
    "both lengths": b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "both lengths, spelled oddly": b"Content-Length: 4\r\nTransfer-encoding:  ChUnKeD\r\n\r\n0\r\n\r\n",
    "two lengths": b"Content-Length: 0\r\nContent-Length: 44\r\n\r\n",
    "two equal lengths": b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n",
    "a list of lengths": b"Content-Length: 0, 0\r\n\r\n",
    "a signed length": b"Content-Length: +0\r\n\r\n",
    "a negative length": b"Content-Length: -1\r\n\r\n",
    "a hex length": b"Content-Length: 0x4\r\n\r\nabcd",
    "an unknown encoding": b"Transfer-Encoding: identity\r\n\r\n",
    "two encodings": b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunked not last": b"Transfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a space before the colon": b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a folded header": b"X-A: 1\r\n Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bare line feed": b"X-A: 1\nContent-Length: 4\r\n\r\nabcd",
    "a NUL in a value": b"X-A: 1\x00\r\n\r\n",
    "a nameless header": b": x\r\n\r\n",
}


@pytest.mark.parametrize("kind", SMUGGLED)
async def test_a_request_that_could_end_in_two_places_is_refused(world: Any, kind: str) -> None:
    sandbox = Recorder()
    async with world() as w:
        await w.sandbox("a", sandbox)
        assert status(await w.say(b"POST /sandboxes/a/tools/x" + HEAD + SMUGGLED[kind])) == 400
        assert sandbox.paths == []


async def test_two_requests_on_one_connection_are_each_judged_by_themselves(world: Any) -> None:
    sandbox = Recorder()
    async with world() as w:
        await w.sandbox("a", sandbox)
        first = b"POST /sandboxes/a/x" + HEAD.replace(b"Connection: close\r\n", b"") + b"Content-Length: 2\r\n\r\nab"
        answer = await w.say(first + b"POST /sandboxes/a/verify" + HEAD + b"Content-Length: 0\r\n\r\n")
        assert answer.count(b"HTTP/1.1 200") == 1 and answer.count(b"HTTP/1.1 403") == 1
        assert sandbox.paths == ["/x"]


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"])
async def test_a_foreign_web_page_is_refused_whatever_its_method(world: Any, method: str) -> None:
    sandbox = Recorder()
    async with world() as w:
        await w.sandbox("a", sandbox)
        async with w.call(method, "/sandboxes/a/x", headers={"Origin": "https://evil.example"}) as answer:
            assert answer.status == 403
        assert sandbox.paths == []


async def test_a_rebound_name_is_refused_and_a_listed_one_is_served(world: Any) -> None:
    async with world(allowed_hosts=("localhost", "proxy:8080"), allowed_origins=("https://ui.example",)) as w:
        await w.sandbox("a", Recorder())
        for host, expected in (("evil.example", 403), ("proxy:1", 403), ("proxy:8080", 200), ("LOCALHOST:9", 200)):
            async with w.call("GET", "/sandboxes/a/x", headers={"Host": host}) as answer:
                assert answer.status == expected, host
        headers = {"Host": "localhost", "Origin": "https://ui.example"}
        async with w.call("GET", "/sandboxes/a/x", headers=headers) as answer:
            assert answer.status == 200


async def test_a_stranger_cannot_tell_a_sandbox_from_none(world: Any) -> None:
    sandbox = Recorder()
    async with world() as w:
        await w.sandbox("a", sandbox)
        for path in ("tools/x", "verify", ""):
            bodies = []
            for name in ("a", "b"):
                async with w.call("POST", f"/sandboxes/{name}/{path}", "tools-c") as answer:
                    assert answer.status == 404
                    bodies.append((await answer.text()).replace(f"'{name}'", "NAME").replace(f'"{name}"', "NAME"))
            assert bodies[0] == bodies[1]
            for name in ("a", "b"):
                async with w.client.post(f"{w.url}/sandboxes/{name}/{path}") as answer:
                    assert (answer.status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert sandbox.paths == []


@pytest.mark.parametrize(
    ("token", "tools", "control"),
    [
        ("tools-a", 200, 403),
        ("control-a", 200, 200),
        ("gbx_admin_for-tests-only", 200, 200),
        ("tools-b", 404, 404),
        ("control-b", 404, 404),
        ("garbage", 404, 404),
    ],
)
async def test_each_token_opens_what_it_is_for(world: Any, token: str, tools: int, control: int) -> None:
    async with world() as w:
        await w.sandbox("a", Recorder())
        await w.sandbox("b", Recorder())
        for method, path, expected in [
            ("GET", "healthz", tools),
            ("GET", "tools", tools),
            ("POST", "tools/x", tools),
            ("PUT", "own/route", tools),
            ("POST", "reset", control),
            ("POST", "seed_session", control),
            ("POST", "verify", control),
            ("POST", "exec", control),
            ("POST", "exec/1/stdin", control),
            ("GET", "files?path=x", control),
            ("PUT", "archive?path=x", control),
            ("GET", "sessions", control),
            ("DELETE", "session", control),
            ("DELETE", "sessions", control),
            ("POST", "verify/prepare", control),
        ]:
            async with w.call(method, f"/sandboxes/a/{path}", token) as answer:
                assert answer.status == expected, path
                if expected != 200:
                    problem = json.loads(await answer.read())
                    assert problem["status"] == expected and "token" in problem["detail"]


async def test_a_sandboxs_token_opens_no_model_and_a_clients_no_sandbox(world: Any) -> None:
    from hashlib import sha256

    async with world() as back:
        runner = await back.serve(Recorder(), None)
        base = "http://{}:{}".format(*runner.addresses[0])
        async with world(models={"m": base}, client_tokens=(sha256(b"client").hexdigest(),)) as w:
            await w.sandbox("a", Recorder())
            for token, model, sandbox in (("tools-a", 401, 200), ("client", 200, 404), ("", 401, 401)):
                async with w.call("POST", "/models/m/v1/responses", token) as answer:
                    assert answer.status == model
                async with w.call("POST", "/sandboxes/a/tools/x", token) as answer:
                    assert answer.status == sandbox


@pytest.mark.parametrize("value", ["Basic dG9vbHMtYTo=", "Bearer", "Bearer ", "tools-a", "Token tools-a"])
async def test_only_a_bearer_token_counts(world: Any, value: str) -> None:
    async with world() as w:
        await w.sandbox("a", Recorder())
        async with w.client.get(w.url + "/sandboxes/a/x", headers={"Authorization": value}) as answer:
            assert answer.status == 401
        async with w.client.get(w.url + "/sandboxes/a/x?token=tools-a", headers={"Cookie": "token=tools-a"}) as answer:
            assert answer.status == 401


async def test_a_body_over_its_routes_limit_is_refused_told_or_not(world: Any) -> None:
    async def swallow(request: web.BaseRequest) -> web.Response:
        async for _ in request.content.iter_any():
            pass
        return web.Response()

    async def chunks(count: int) -> Any:
        for _ in range(count):
            yield b"x" * 1000

    async with world(sandbox_body_limit=10_000, tools_body_limit=5_000) as w:
        await w.sandbox("a", swallow)
        for body, expected in ((b"x" * 10_000, 200), (b"x" * 10_001, 413), (chunks(10), 200), (chunks(200), 413)):
            async with w.call("PUT", "/sandboxes/a/files", data=body) as answer:
                assert answer.status == expected
        async with w.call("POST", "/sandboxes/a/tools/x", data=b"x" * 5_001) as answer:
            assert answer.status == 413
        whole = b"PUT /sandboxes/a/x" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n4e20\r\n" + b"x" * 20_000
        assert status(await w.say(whole + b"\r\n0\r\n\r\n")) == 413


@pytest.mark.parametrize("end", [b"zz\r\n", b"4\r\nab"])
async def test_a_request_body_that_breaks_off_is_no_whole_body_for_the_sandbox(world: Any, end: bytes) -> None:
    ended: asyncio.Queue[str] = asyncio.Queue()
    started = asyncio.Event()

    async def serve(request: web.BaseRequest) -> web.Response:
        try:
            async for _ in request.content.iter_any():
                started.set()
            ended.put_nowait("whole")
        except BaseException:
            ended.put_nowait("broken")
            raise
        return web.Response()

    async with world() as w:
        await w.sandbox("a", serve)
        reader, writer = await asyncio.open_connection("127.0.0.1", w.proxy.port)
        writer.write(b"POST /sandboxes/a/x" + HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n")
        await started.wait()
        writer.write(end)
        writer.close()
        async with asyncio.timeout(5):
            assert await ended.get() == "broken"


@pytest.mark.parametrize(
    "head",
    [
        b"GET /" + b"a" * 20_000 + HEAD + b"\r\n",
        b"GET /sandboxes/a/x" + HEAD + b"X-Long: " + b"a" * 20_000 + b"\r\n\r\n",
        b"GET /sandboxes/a/x" + HEAD + b"".join(b"X-%d: 1\r\n" % number for number in range(1000)) + b"\r\n",
        b"GARBAGE\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 50 + b"\r\n\r\n",
        b"GET /sandboxes/a/x HTTP/9.9\r\n\r\n",
        b"CONNECT evil.example:443" + HEAD + b"\r\n",
    ],
)
async def test_what_is_too_long_or_no_http_is_refused(world: Any, head: bytes) -> None:
    sandbox = Recorder()
    async with world() as w:
        await w.sandbox("a", sandbox)
        assert status(await w.say(head)) in (400, 431)
        assert sandbox.paths == []


async def test_connections_beyond_the_limit_are_told_to_come_back(world: Any) -> None:
    async with world(max_connections=2) as w:
        await w.sandbox("a", Recorder())
        held = [await asyncio.open_connection("127.0.0.1", w.proxy.port) for _ in range(2)]
        for reader, writer in held:  # each is there for sure once it was answered
            writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            await reader.readuntil(b'{"status": "ok"}')
        assert (await w.say(b"GET /healthz" + HEAD + b"\r\n")).startswith(b"HTTP/1.1 503")
        for _, writer in held:
            writer.close()
            await writer.wait_closed()
        async with asyncio.timeout(5):
            while not (await w.say(b"GET /healthz" + HEAD + b"\r\n")).startswith(b"HTTP/1.1 200"):
                pass  # each try is a connection to the proxy, which gives it its turn


async def test_slow_connections_do_not_slow_the_others(world: Any) -> None:
    async with world() as w:
        await w.sandbox("a", Recorder())
        slow = [await asyncio.open_connection("127.0.0.1", w.proxy.port) for _ in range(200)]
        for _, writer in slow:
            writer.write(b"POST /sandboxes/a/x HTTP/1.1\r\nHost: localh")
        async with asyncio.timeout(10):
            for _ in range(50):
                async with w.call("GET", "/sandboxes/a/x") as answer:
                    assert answer.status == 200
        for _, writer in slow:
            writer.close()


async def test_a_bug_in_the_proxy_is_an_internal_error_with_an_id(world: Any) -> None:
    class Broken(Upstreams):
        async def of(self, route: Route) -> Any:
            raise RuntimeError("a bug")

    async with world(upstreams=Broken) as w:
        await w.sandbox("a", Recorder())
        async with w.call("GET", "/sandboxes/a/x") as answer:
            problem = await answer.json()
            assert (answer.status, problem["kind"]) == (500, "internal")
            assert problem["request"] == answer.headers["X-Request-ID"]
