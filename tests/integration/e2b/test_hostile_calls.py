"""What no SDK sends: broken frames, huge lengths, wrong tokens, unknown ids; the server refuses it and goes on."""

from __future__ import annotations

import asyncio
import gzip
import json
import struct
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from tests.integration.e2b.conftest import Facade

STREAM = {"Content-Type": "application/connect+json"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture
async def http_session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


class Caller:
    """Sends what it is told to, for one sandbox unless said otherwise."""

    def __init__(self, facade: Facade, session: aiohttp.ClientSession, made: dict[str, Any]) -> None:
        self.url, self.key, self.session, self.id = facade.url, facade.key, session, made["sandboxID"]
        self.headers = {"E2b-Sandbox-Id": self.id, "X-Access-Token": made["envdAccessToken"]}

    async def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, bytes]:
        given = {name: value for name, value in {**self.headers, **headers}.items() if value}
        async with self.session.request(method, self.url + path, data=body, headers=given) as answer:
            return answer.status, await answer.read()

    async def stream(self, method: str, body: Any, **headers: str) -> dict[str, Any]:
        """The end of a streamed RPC's answer."""
        status, answer = await self("POST", f"/process.Process/{method}", body, **{**STREAM, **headers})
        assert status == 200
        while answer:
            flags, length = struct.unpack_from(">BI", answer)
            message, answer = json.loads(answer[5 : 5 + length]), answer[5 + length :]
        assert flags == 2
        return dict(message)


def framed(message: Any, flags: int = 0) -> bytes:
    body = message if isinstance(message, bytes) else json.dumps(message).encode()
    return struct.pack(">BI", flags, len(body)) + body


@pytest.fixture
async def call(facade: Facade, http_session: aiohttp.ClientSession) -> Caller:
    key = {"X-API-KEY": facade.key}
    async with http_session.post(f"{facade.url}/v2/sandboxes", json={"templateID": "base"}, headers=key) as answer:
        assert answer.status == 201
        return Caller(facade, http_session, await answer.json())


START = {"process": {"cmd": "/bin/sh", "args": ["-c", "echo hello"]}}


async def test_frames_that_are_none_are_refused(call: Caller) -> None:
    assert await call.stream("Start", framed(START)) == {}
    assert await call.stream("Start", framed({"process": {"cmd": "/nonesuch"}})) == {}  # which is how it ended
    for body, code in (
        (b"", "invalid_argument"),
        (b"\0\0", "invalid_argument"),
        (framed(START)[:-1], "invalid_argument"),
        (framed(START) * 2, "invalid_argument"),
        (framed(START, flags=1), "invalid_argument"),
        (framed(START, flags=2), "invalid_argument"),
        (framed(b"no json"), "invalid_argument"),
        (framed([]), "invalid_argument"),
        (framed({}), "invalid_argument"),
        (framed({"process": {"cmd": ""}}), "invalid_argument"),
        (framed({"process": {"cmd": "x", "args": "y"}}), "invalid_argument"),
        (struct.pack(">BI", 0, 0xFFFFFFFF) + b"x" * 100, "resource_exhausted"),
        (struct.pack(">BI", 0, 5 << 20), "resource_exhausted"),
    ):
        assert (await call.stream("Start", body))["error"]["code"] == code, body[:80]
    for message in (
        {"data": {"input": {"stdin": "eA=="}}},
        {"start": {"process": {"pid": "x"}}},
        {"data": {"input": {"stdin": "not base64!"}}},
    ):
        assert (await call.stream("StreamInput", framed(message)))["error"]["code"] == "invalid_argument"
    assert await call.stream("StreamInput", b"") == {}
    assert (await call.stream("Start", framed(START), **{"Connect-Timeout-Ms": "-1"}))["error"]
    gone = {"process": {"pid": 4_000_000}}
    assert (await call.stream("Connect", framed(gone)))["error"]["code"] == "not_found"


async def test_calls_of_other_kinds_are_refused_by_name(call: Caller) -> None:
    async def code(path: str, body: Any = b"{}", **headers: str) -> tuple[int, str]:
        status, answer = await call("POST", path, body, **headers)
        return status, json.loads(answer)["code"]

    assert (await call("POST", "/process.Process/List", b"", **JSON))[0] == 200
    assert await code("/process.Process/Nonesuch", **JSON) == (501, "unimplemented")
    assert await code("/process.Process/List", **{"Content-Type": "application/proto"}) == (501, "unimplemented")
    assert await code("/process.Process/List", **JSON, **{"Content-Encoding": "gzip"}) == (501, "unimplemented")
    assert await code("/filesystem.Filesystem/Stat", b"x" * (5 << 20), **JSON) == (429, "resource_exhausted")
    assert await code("/filesystem.Filesystem/Stat", b'{"path": 3}', **JSON) == (400, "invalid_argument")
    assert await code("/filesystem.Filesystem/Stat", b'{"path": "\\u0000"}', **JSON) == (400, "invalid_argument")
    assert await code("/filesystem.Filesystem/GetWatcherEvents", b'{"watcherId": "x"}', **JSON) == (404, "not_found")
    signal = b'{"process": {"pid": 1}, "signal": "SIGNAL_SIGKILL"}'
    assert await code("/process.Process/SendSignal", signal, **JSON) == (404, "not_found")
    assert await code("/process.Process/Update", b'{"process": {"tag": "x"}}', **JSON) == (404, "not_found")
    user = {"Authorization": "Basic cm9vdDo="}
    assert await code("/process.Process/List", **JSON, **user) == (501, "unimplemented")
    assert await code("/process.Process/List", **JSON, Authorization="Basic ***") == (401, "unauthenticated")
    assert await code("/nonesuch.Service/Call", **JSON, **{"X-API-KEY": call.key}) == (501, 501)
    assert await code("/nonesuch.Service/Call", **JSON) == (401, 401)


async def test_without_the_token_of_the_very_sandbox_nothing_of_it_is_reached(call: Caller) -> None:
    paths = [
        *(
            ("POST", f"/process.Process/{name}")
            for name in ("List", "SendInput", "SendSignal", "CloseStdin", "Update")
        ),
        *(("POST", f"/filesystem.Filesystem/{name}") for name in ("Stat", "MakeDir", "Move", "ListDir", "Remove")),
        *(
            ("POST", f"/filesystem.Filesystem/{name}")
            for name in ("CreateWatcher", "GetWatcherEvents", "RemoveWatcher")
        ),
        *(("GET", "/files?path=x"), ("POST", "/files?path=x"), ("GET", "/health")),
    ]
    right = call.headers["X-Access-Token"]
    for method, path in paths:
        for token in ("", "wrong", right[:-1], f"{right}x", call.key, "é"):
            status, _ = await call(method, path, b"{}", **JSON, **{"X-Access-Token": token})
            assert status == 401, (path, token)
        for id in ("nonesuch", "..", "../../x", "x" * 5000, "%2e%2e"):
            status, body = await call(method, path, b"{}", **JSON, **{"E2b-Sandbox-Id": id})
            assert status in (502, 503) and b"was not found" in body, (path, id, status)
        assert (await call(method, path, b"{}", **JSON, **{"E2b-Sandbox-Id": ""}))[0] in (400, 422)
        assert (await call(method, path, b"{}", **JSON, **{"E2b-Sandbox-Port": "3000"}))[0] == 501
    for name in ("Start", "Connect", "StreamInput"):
        error = (await call.stream(name, framed(START), **{"X-Access-Token": "wrong"}))["error"]
        assert error["code"] == "unauthenticated"
    assert (await call.stream("Start", framed(START), **{"E2b-Sandbox-Id": "x"}))["error"]["code"] == "unavailable"


async def test_without_the_key_nothing_is_made_listed_or_ended(call: Caller, facade: Facade) -> None:
    for method, path in (
        ("POST", "/v2/sandboxes"),
        ("GET", "/v2/sandboxes"),
        ("GET", f"/sandboxes/{call.id}"),
        ("DELETE", f"/sandboxes/{call.id}"),
        ("POST", f"/v2/sandboxes/{call.id}/connect"),
        ("POST", f"/sandboxes/{call.id}/timeout"),
        ("POST", f"/sandboxes/{call.id}/refreshes"),
        ("POST", f"/sandboxes/{call.id}/pause"),
        ("POST", f"/sandboxes/{call.id}/snapshots"),
        ("POST", f"/sandboxes/{call.id}/fork"),
        ("GET", "/snapshots"),
        ("DELETE", "/templates/x"),
        ("GET", "/templates"),
    ):
        for key in ("", "wrong", f"{facade.key}x", call.headers["X-Access-Token"]):
            assert (await call(method, path, b"{}", **{"X-API-KEY": key}))[0] == 401, path
    assert (await facade.client.get(call.id)).status == "ready"


async def test_rest_calls_that_are_wrong_are_refused(call: Caller, facade: Facade) -> None:
    key = {"X-API-KEY": facade.key}
    for body, status in (
        (b"", 400),
        (b"no json", 400),
        (b"[]", 400),
        (b'{"templateID": "base", "timeout": 100000}', 400),
        (b'{"templateID": "base", "timeout": "x"}', 400),
        (b'{"templateID": "base", "metadata": {"a": 1}}', 400),
        (b'{"templateID": "../x"}', 404),
        (b'{"templateID": ""}', 404),
        (b'{"templateID": "base", "autoResume": {"enabled": true}}', 501),
        (b'{"templateID": "base", "mcp": {"x": {}}}', 501),
        (b'{"templateID": "base", "iam": {"tokens": {}}}', 501),
        (b"x" * (2 << 20), 413),
    ):
        assert (await call("POST", "/v2/sandboxes", body, **key))[0] == status, body[:80]
    for query in ("limit=0", "limit=x", "order=up", "startedAfter=noon", "nextToken=x"):
        assert (await call("GET", f"/v2/sandboxes?{query}", **key))[0] == 400, query
    for id in ("nonesuch", "..%2f..", "%00", "x" * 300):
        assert (await call("GET", f"/sandboxes/{id}", **key))[0] in (404, 501)
        assert (await call("DELETE", f"/sandboxes/{id}", **key))[0] in (404, 501)
    assert (await call("DELETE", "/templates/..%2fx", **key))[0] == 501
    assert (await call("POST", f"/sandboxes/{call.id}/refreshes", b'{"duration": 60}', **key))[0] == 204
    assert (await call("POST", f"/sandboxes/{call.id}/timeout", b'{"timeout": -1}', **key))[0] == 400


async def test_the_same_request_that_comes_while_the_first_is_answered_finds_its_sandbox(
    facade: Facade, http_session: aiohttp.ClientSession
) -> None:
    async def create(template: str) -> tuple[int, dict[str, Any]]:
        headers = {"X-API-KEY": facade.key, "Idempotency-Key": "the-same"}
        url, body = f"{facade.url}/v2/sandboxes", {"templateID": template}
        async with http_session.post(url, json=body, headers=headers) as answer:
            return answer.status, await answer.json()

    (first, one), (second, other), (third, refused) = await asyncio.gather(*map(create, ("base", "base", "other")))
    assert (first, second, third) == (201, 201, 409)
    assert one == other
    assert "idempotency" in refused["message"]
    assert [view.id for view in await facade.client.sandboxes(status="ready")] == [one["sandboxID"]]
    status, _ = await Caller(facade, http_session, one)("GET", "/files?path=none")
    assert status == 404


async def test_a_sandbox_that_was_not_made_here_is_not_reached(call: Caller, facade: Facade) -> None:
    manifest = await facade.client.environment("other")
    async with facade.client.sandbox_of(manifest, "of-another") as other:
        key = {"X-API-KEY": facade.key}
        assert (await call("GET", f"/sandboxes/{other.id}", **key))[0] == 404
        assert (await call("DELETE", f"/sandboxes/{other.id}", **key))[0] == 404
        assert (await call("POST", f"/v2/sandboxes/{other.id}/connect", b"{}", **key))[0] == 404
        listed = json.loads((await call("GET", "/v2/sandboxes", **key))[1])
        assert [each["sandboxID"] for each in listed] == [call.id]
        assert (await call("GET", "/health", **{"E2b-Sandbox-Id": other.id}))[0] == 502
        saved = await facade.client.snapshot(other.id, name="of-another", files_only=True)
        assert json.loads((await call("GET", "/snapshots", **key))[1]) == []
        assert (await call("DELETE", f"/templates/{saved.id}", **key))[0] == 404
        assert (await call("POST", "/v2/sandboxes", json.dumps({"templateID": saved.id}), **key))[0] == 404
        await facade.client.delete_snapshot(saved.id)
        assert (await facade.client.get(other.id)).status == "ready"


def form(*parts: tuple[str, bytes], boundary: str = "b") -> bytes:
    pieces = [
        f'--{boundary}\r\nContent-Disposition: form-data; name="file"; {name}\r\n\r\n'.encode() + content + b"\r\n"
        for name, content in parts
    ]
    return b"".join(pieces) + f"--{boundary}--\r\n".encode()


async def test_bodies_of_files_that_are_wrong_are_refused_and_nothing_is_written(call: Caller) -> None:
    multipart = {"Content-Type": "multipart/form-data; boundary=b"}
    octets = {"Content-Type": "application/octet-stream"}
    packed = gzip.compress(b"x" * 100_000)
    for path, body, headers, status in (
        ("?path=x", b"", {"Content-Type": "text/plain"}, 400),
        ("?path=x", b"", {"Content-Type": "multipart/form-data"}, 400),
        ("?path=x", b"", {"Content-Type": f"multipart/form-data; boundary={'b' * 300}"}, 400),
        ("?path=x", b"", multipart, 400),
        ("?path=x", form(('filename="x"', b"x"))[:-8], multipart, 400),
        ("?path=x", b"--b--\r\n", multipart, 400),
        ("", form(("", b"x")), multipart, 400),
        ("?path=x", b"--b\r\n" + b"x" * 100_000, multipart, 400),
        ("", form(*(('filename=""', b""),) * 1001), multipart, 400),
        ("", b"x", octets, 400),
        ("?path=x%00y", b"x", octets, 400),
        ("?path=.", b"x", octets, 400),
        ("?path=x", b"no gzip", {**octets, "Content-Encoding": "gzip"}, 400),
        ("?path=x", packed[:-5], {**octets, "Content-Encoding": "gzip"}, 400),
        ("?path=x", packed * 2, {**octets, "Content-Encoding": "gzip"}, 400),
        ("?path=x", b"x", {**octets, "Content-Encoding": "br"}, 400),
        ("?path=x&username=root", b"x", octets, 501),
    ):
        found, answer = await call("POST", f"/files{path}", body, **headers)
        assert found == status and json.loads(answer)["code"] == status, (path, body[:40], headers)
    for _ in range(50):  # what was begun is removed by itself
        status, listed = await call("POST", "/filesystem.Filesystem/ListDir", b'{"path": "."}', **JSON)
        if (status, json.loads(listed)) == (200, {"entries": []}):
            break
        await asyncio.sleep(0.1)
    assert (status, json.loads(listed)) == (200, {"entries": []})
    status, answer = await call("POST", "/files", form(('filename="a"', b"1"), ('filename="b"', b"2")), **multipart)
    assert status == 200 and [each["name"] for each in json.loads(answer)] == ["a", "b"]
    status, _ = await call("POST", "/files?path=c", form(('filename="a"', b"1"), ('filename="b"', b"2")), **multipart)
    assert status == 400
    assert (await call("GET", "/files?path=b"))[1] == b"2"
    assert (await call("GET", "/files"))[0] == 400
    assert (await call("GET", "/files?path=nonesuch"))[0] == 404
