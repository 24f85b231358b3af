"""One request through the proxy and its answer back."""

from __future__ import annotations

import asyncio
import gzip
from typing import Any

import pytest
from aiohttp import web
from gymbox.errors import ConfigError
from gymbox.proxy import Proxy, ProxySettings
from gymbox_sandbox.lifecycle import Ended


async def echo(request: web.BaseRequest) -> web.Response:
    return web.json_response(
        {
            "method": request.method,
            "path": request.raw_path,
            "headers": {name.lower(): value for name, value in request.headers.items()},
            "body": (await request.read()).decode("latin-1"),
        }
    )


async def test_a_sandbox_gets_the_request_as_it_was_without_the_prefix(world: Any) -> None:
    async with world() as w:
        await w.sandbox("a", echo)
        async with w.call("POST", "/sandboxes/a/tools/caf%C3%A9?x=%2F&y", "tools-a", data=b"\x00\xff") as answer:
            seen = await answer.json()
        assert (seen["method"], seen["path"], seen["body"]) == ("POST", "/tools/caf%C3%A9?x=%2F&y", "\x00\xff")


@pytest.mark.parametrize("method", ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "PROPFIND"])
async def test_every_method_passes(world: Any, method: str) -> None:
    async def serve(request: web.BaseRequest) -> web.Response:
        return web.Response(status=207, headers={"X-Method": request.method}, body=b"12345")

    async with world() as w:
        await w.sandbox("a", serve)
        async with w.call(method, "/sandboxes/a/x") as answer:
            assert (answer.status, answer.headers["X-Method"]) == (207, method)
            assert answer.headers["Content-Length"] == "5"
            assert await answer.read() == (b"" if method == "HEAD" else b"12345")


@pytest.mark.parametrize("status", [200, 204, 304, 404, 500])
async def test_every_status_passes_and_the_connection_stays_usable(world: Any, status: int) -> None:
    async def serve(request: web.BaseRequest) -> web.Response:
        return web.Response(status=status)

    async with world() as w:
        await w.sandbox("a", serve)
        for _ in range(2):
            async with w.call("GET", "/sandboxes/a/x") as answer:
                assert (answer.status, await answer.read()) == (status, b"")


async def test_no_credential_reaches_a_sandbox_and_the_route_names_the_session(world: Any) -> None:
    async with world() as w:
        await w.sandbox("a", echo, session="task-7")
        sent = {
            "Cookie": "s=1",
            "X-Forwarded-For": "10.0.0.1",
            "X-Gymbox-Session": "task-8",
            "X-Gymbox-Rollout": "r1",
            "X-Request-ID": "mine-1",
        }
        async with w.call("GET", "/sandboxes/a/x", headers=sent) as answer:
            headers = (await answer.json())["headers"]
            assert answer.headers["X-Request-ID"] == "mine-1"
        assert headers["x-gymbox-session"] == "task-7"
        assert headers["x-gymbox-rollout"] == "r1"
        assert headers["x-request-id"] == "mine-1"
        assert headers["host"] == "sandbox"
        assert not {"authorization", "cookie", "x-forwarded-for"} & headers.keys()


async def test_a_request_id_that_could_forge_a_log_line_is_replaced(world: Any) -> None:
    async with world() as w:
        await w.sandbox("a", echo)
        async with w.call("GET", "/sandboxes/a/x", headers={"X-Request-ID": "a b"}) as answer:
            assert answer.headers["X-Request-ID"] != "a b"
            assert (await answer.json())["headers"]["x-request-id"] == answer.headers["X-Request-ID"]


async def test_encoded_content_is_passed_untouched_both_ways(world: Any) -> None:
    packed = gzip.compress(b"hello " * 1000)

    async def serve(request: web.BaseRequest) -> web.Response:
        assert await request.read() == packed
        return web.Response(body=packed, headers={"Content-Encoding": "gzip", "Content-Type": "text/plain"})

    async with world() as w:
        await w.sandbox("a", serve)
        async with w.call("POST", "/sandboxes/a/x", data=packed, headers={"Content-Encoding": "gzip"}) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            assert await answer.read() == packed


async def test_repeated_headers_stay_repeated(world: Any) -> None:
    async def serve(request: web.BaseRequest) -> web.Response:
        answer = web.Response()
        for value in request.headers.getall("X-Many"):
            answer.headers.add("X-Many", value)
        return answer

    async with world() as w:
        await w.sandbox("a", serve)
        answer = await w.say(
            b"GET /sandboxes/a/x HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
            b"Authorization: Bearer tools-a\r\nX-Many: 1\r\nX-Many: 2\r\n\r\n"
        )
        assert b"X-Many: 1\r\nX-Many: 2\r\n" in answer


async def test_a_redirect_of_a_sandbox_leads_back_through_the_proxy(world: Any) -> None:
    async def serve(request: web.BaseRequest) -> web.Response:
        return web.Response(status=307, headers={"Location": "http://sandbox/tools/"})

    async with world() as w:
        await w.sandbox("a", serve)
        async with w.call("GET", "/sandboxes/a/tools") as answer:
            assert answer.headers["Location"] == "/sandboxes/a/tools/"


async def test_a_sandbox_may_be_reached_by_address(world: Any) -> None:
    async with world() as w:
        await w.sandbox("a", echo, tcp=True)
        async with w.call("GET", "/sandboxes/a/x") as answer:
            assert (await answer.json())["path"] == "/x"


async def test_models_and_agents_get_the_token_of_the_settings_and_never_the_callers(world: Any) -> None:
    async with world() as w:
        runner = await w.serve(echo, None)
        base = "http://{}:{}/api".format(*runner.addresses[0])
        async with world(
            models={"local": base, "paid": {"url": base, "token": "sk-upstream"}}, agents={"loop": base}
        ) as front:
            await front.push()
            async with front.call("POST", "/models/local/v1/responses?a=b", data=b"{}") as answer:
                seen = await answer.json()
                assert seen["path"] == "/api/v1/responses?a=b"
                assert "authorization" not in seen["headers"]
            async with front.call("POST", "/models/paid/v1/responses", data=b"{}") as answer:
                assert (await answer.json())["headers"]["authorization"] == "Bearer sk-upstream"
            async with front.call("POST", "/agents/loop/run", headers={"X-Gymbox-Rollout": "r"}, data=b"{}") as answer:
                seen = await answer.json()
                assert (seen["path"], seen["headers"]["x-gymbox-rollout"]) == ("/api/run", "r")
            async with front.call("GET", "/models/locla/v1/models") as answer:
                assert answer.status == 404
                assert "did you mean 'local'?" in (await answer.json())["detail"]


async def test_an_ended_sandbox_is_gone_and_says_why(world: Any) -> None:
    ended = Ended(cause="oom_killed", detail="sandbox 'a' ran out of memory", exit_code=137, logs="last words")
    async with world() as w:
        await w.sandbox("a", echo, ended=ended)
        async with w.call("POST", "/sandboxes/a/tools/x", "tools-a") as answer:
            problem = await answer.json()
            assert (answer.status, answer.content_type) == (410, "application/problem+json")
            assert (problem["kind"], problem["ended"]["cause"], problem["ended"]["logs"]) == (
                "gone",
                "oom_killed",
                "last words",
            )


async def test_a_sandbox_that_does_not_listen_is_a_bad_gateway_that_names_it(world: Any) -> None:
    async with world() as w:
        runner = await w.sandbox("a", echo)
        await runner.cleanup()
        for _ in range(2):
            async with w.call("POST", "/sandboxes/a/tools/x") as answer:
                problem = await answer.json()
                assert (answer.status, problem["kind"]) == (502, "unavailable")
                assert "'a'" in problem["detail"] and str(w.directory) not in problem["detail"]


async def test_a_server_that_came_back_under_the_same_path_is_found_again(world: Any) -> None:
    async with world() as w:
        runner = await w.sandbox("a", echo)
        async with w.call("GET", "/sandboxes/a/x") as answer:
            assert answer.status == 200
        await runner.cleanup()
        async with w.call("GET", "/sandboxes/a/x") as answer:
            assert answer.status == 502
        await w.sandbox("a", echo)
        async with w.call("GET", "/sandboxes/a/x") as answer:
            assert answer.status == 200


async def test_a_server_whose_socket_lost_its_name_is_still_reached(world: Any) -> None:
    async with world() as w:
        await w.sandbox("a", echo)
        async with w.call("GET", "/sandboxes/a/x") as answer:
            assert answer.status == 200
        (w.directory / "a.sock").unlink()
        async with w.call("GET", "/sandboxes/a/x") as answer:
            assert answer.status == 200


async def test_a_symlink_in_place_of_a_socket_is_not_followed(world: Any) -> None:
    async with world() as w:
        await w.sandbox("victim", echo)
        await w.sandbox("a", echo)
        (w.directory / "a.sock").unlink()
        (w.directory / "a.sock").symlink_to(w.directory / "victim.sock")
        async with w.call("GET", "/sandboxes/a/x") as answer:
            assert answer.status == 502


async def test_a_stale_idle_connection_is_replaced_for_what_may_be_repeated(world: Any) -> None:
    calls = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        await reader.readuntil(b"\r\n\r\n")
        calls += 1
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        # the next request on this connection is read and then dropped, as by a server that was closing it
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    async with world() as w:
        await w.raw("a", talk)
        for expected in (1, 2, 3):
            async with w.call("GET", "/sandboxes/a/x") as answer:
                assert (answer.status, await answer.read()) == (200, b"ok")
            assert calls == expected


async def test_what_must_not_run_twice_is_not_repeated(world: Any) -> None:
    calls = 0

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal calls
        await reader.readuntil(b"\r\n\r\n")
        calls += 1
        writer.close()

    async with world() as w:
        await w.raw("a", talk)
        async with w.call("POST", "/sandboxes/a/tools/x") as answer:
            assert (answer.status, calls) == (502, 1)


async def test_a_silent_upstream_is_timed_out(world: Any) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with world(idle_timeout=0.2) as w:
        await w.raw("a", talk)
        async with w.call("POST", "/sandboxes/a/tools/x") as answer:
            assert (answer.status, (await answer.json())["kind"]) == (504, "timed_out")


async def test_an_unasked_switch_of_protocols_is_a_bad_gateway(world: Any) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n")
        await reader.read()
        writer.close()

    async with world() as w:
        await w.raw("a", talk)
        async with w.call("GET", "/sandboxes/a/x") as answer:
            assert answer.status == 502


async def test_health_needs_no_token_and_ready_needs_routes(world: Any) -> None:
    async with world() as w:
        async with w.client.get(w.url + "/healthz") as answer:
            assert (answer.status, await answer.json()) == (200, {"status": "ok"})
        async with w.client.get(w.url + "/readyz") as answer:
            assert (answer.status, answer.headers["Retry-After"]) == (503, "1")
        async with w.call("GET", "/sandboxes/a/x") as answer:
            assert answer.status == 503
        await w.push()
        async with w.client.get(w.url + "/readyz") as answer:
            assert answer.status == 200


async def test_requests_are_counted_by_kind_and_status(world: Any) -> None:
    async with world() as w:
        await w.sandbox("a", echo)
        for path in ("/sandboxes/a/x", "/sandboxes/a/y", "/sandboxes/none/x", "/elsewhere"):
            async with w.call("GET", path) as answer:
                await answer.read()
        assert await w.metric('gymbox_proxy_requests_total{kind="sandboxes",status="200"}') == 2
        assert await w.metric('gymbox_proxy_requests_total{kind="sandboxes",status="404"}') == 1
        assert await w.metric('gymbox_proxy_requests_total{kind="other",status="404"}') == 1
        assert await w.metric('gymbox_proxy_in_flight{kind="sandboxes"}') == 0
        assert await w.metric('gymbox_proxy_seconds_count{kind="sandboxes"}') == 3
        assert await w.metric("gymbox_proxy_routes") == 1


async def test_an_address_that_is_taken_is_said(world: Any) -> None:
    async with world() as w:
        with pytest.raises(ConfigError, match="cannot listen on 127.0.0.1"):
            async with Proxy(ProxySettings(port=w.proxy.port)):
                pass


async def test_an_exposed_address_needs_a_list_of_hosts() -> None:
    with pytest.raises(ConfigError, match="allowed_hosts"):
        async with Proxy(ProxySettings(host="0.0.0.0")):
            pass
    async with Proxy(ProxySettings(host="0.0.0.0", allowed_hosts=("localhost", "proxy"))) as proxy:
        assert proxy.url == f"http://127.0.0.1:{proxy.port}"
