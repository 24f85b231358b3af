"""What the SDK asks seldom of commands: tags, signals, signs of life, and listeners that do not listen."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from gymbox.e2b.server import E2bServer
from gymbox.errors import ConfigError

from tests.integration.e2b.conftest import Facade

STREAM = {"Content-Type": "application/connect+json"}


class Box:
    """One sandbox, without an SDK."""

    def __init__(self, facade: Facade, session: aiohttp.ClientSession, made: dict[str, Any]) -> None:
        self.url, self.session, self.id = facade.url, session, made["sandboxID"]
        self.headers = {"E2b-Sandbox-Id": self.id, "X-Access-Token": made["envdAccessToken"]}

    async def call(self, method: str, **message: Any) -> tuple[int, Any]:
        async with self.session.post(
            f"{self.url}/process.Process/{method}", json=message, headers=self.headers
        ) as answer:
            return answer.status, await answer.json()

    @asynccontextmanager
    async def stream(
        self, method: str, message: Any, headers: dict[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[Any]]:
        """The messages of a streamed answer, its end included."""
        body = json.dumps(message).encode()
        given = {**self.headers, **STREAM, **(headers or {})}
        framed = struct.pack(">BI", 0, len(body)) + body
        async with self.session.post(f"{self.url}/process.Process/{method}", data=framed, headers=given) as answer:

            async def messages() -> AsyncIterator[Any]:
                flags = 0
                while flags != 2:
                    flags, length = struct.unpack(">BI", await answer.content.readexactly(5))
                    yield json.loads(await answer.content.readexactly(length))

            yield messages()


@pytest.fixture
async def box(facade: Facade) -> AsyncIterator[Box]:
    async with aiohttp.ClientSession() as session:
        headers = {"X-API-KEY": facade.key}
        async with session.post(f"{facade.url}/v2/sandboxes", json={"templateID": "base"}, headers=headers) as answer:
            yield Box(facade, session, await answer.json())


def shell(script: str, **more: Any) -> dict[str, Any]:
    return {"process": {"cmd": "/bin/sh", "args": ["-c", script]}, "stdin": False, **more}


async def test_a_command_is_found_by_its_tag_and_asked_to_end(box: Box) -> None:
    script = "trap 'echo bye; exit 4' TERM; echo up; while :; do sleep 0.05; done"
    async with box.stream("Start", shell(script, tag="mine")) as events:
        pid = (await anext(events))["event"]["start"]["pid"]
        assert (await anext(events))["event"]["data"] == {"stdout": base64.b64encode(b"up\n").decode()}
        [shown] = (await box.call("List"))[1]["processes"]
        assert (shown["pid"], shown["tag"], shown["config"]["cmd"]) == (pid, "mine", "/bin/sh")
        selected = {"process": {"tag": "mine"}}
        assert (await box.call("SendSignal", **selected, signal="SIGNAL_SIGHUP"))[0] == 400
        assert (await box.call("SendSignal", **selected, signal="SIGNAL_SIGTERM")) == (200, {})
        rest = [event async for event in events]
    assert rest[-2]["event"]["end"] == {
        "exitCode": 4,
        "exited": True,
        "status": "exit status 4",
        "error": "exit status 4",
    }
    assert rest[-1] == {}


async def test_a_silent_command_gives_signs_of_life(box: Box) -> None:
    async with box.stream("Start", shell("sleep 2.5"), {"Keepalive-Ping-Interval": "1"}) as events:
        kinds = [next(iter(event["event"])) async for event in events if event]
    assert kinds == ["start", "keepalive", "keepalive", "end"]


async def test_input_that_is_for_another_kind_of_command_is_refused(box: Box) -> None:
    data = base64.b64encode(b"x").decode()
    size = {"size": {"rows": 10, "cols": 10}}
    async with (
        box.stream("Start", shell("sleep 60")) as events,
        box.stream("Start", {"process": {"cmd": "/bin/cat"}, "pty": size}) as terminal_events,
    ):
        plain = {"process": {"pid": (await anext(events))["event"]["start"]["pid"]}}
        terminal = {"process": {"pid": (await anext(terminal_events))["event"]["start"]["pid"]}}
        for process, method, more, said in (
            (plain, "SendInput", {"input": {"pty": data}}, "no terminal"),
            (plain, "SendInput", {"input": {"stdin": data}}, "without stdin"),
            (plain, "CloseStdin", {}, "without stdin"),
            (plain, "Update", {"pty": size}, "no terminal"),
            (terminal, "SendInput", {"input": {"stdin": data}}, "a terminal"),
            (terminal, "CloseStdin", {}, "Ctrl-D"),
        ):
            status, answer = await box.call(method, **process, **more)
            assert (status, answer["code"]) == (400, "failed_precondition") and said in answer["message"], method
        assert (await box.call("Update", **terminal))[0] == 501
        assert (await box.call("SendInput", **terminal, input={}))[0] == 400
        assert (await box.call("SendSignal", **terminal, signal=9)) == (200, {})
        assert (await box.call("SendSignal", **plain, signal="SIGNAL_SIGKILL")) == (200, {})
        assert (await box.call("List"))[1] == {"processes": []}


async def test_a_command_waits_for_who_does_not_read_and_is_killed_nevertheless(box: Box) -> None:
    count = "i=0; while :; do i=$((i+1)); echo $i >ticks; head -c 100000 /dev/zero; done"
    async with box.stream("Start", shell(count)) as events:
        pid = (await anext(events))["event"]["start"]["pid"]
        before, after = "", "-"
        for _ in range(100):
            await asyncio.sleep(0.3)
            async with box.session.get(f"{box.url}/files?path=ticks", headers=box.headers) as answer:
                before, after = after, await answer.text()
            if before == after != "":
                break
        assert before == after and int(after) < 1000  # some 100 MB were never held by anyone
        assert (await box.call("SendSignal", process={"pid": pid}, signal="SIGNAL_SIGKILL")) == (200, {})
        last = [event async for event in events][-2]
    assert last["event"]["end"]["exitCode"] == -1


async def test_a_server_that_stops_ends_what_runs_and_makes_no_more(box: Box, facade: Facade) -> None:
    async with box.stream("Start", shell("sleep 60")) as events:
        await anext(events)
        await facade.server.close()
        [last] = [event async for event in events]
    assert last["error"]["code"] == "unavailable" and "was not found" in last["error"]["message"]
    headers = {"X-API-KEY": facade.key}
    async with box.session.post(f"{facade.url}/v2/sandboxes", json={"templateID": "base"}, headers=headers) as answer:
        assert answer.status == 503 and "stopping" in (await answer.json())["message"]


async def test_a_sandbox_that_becomes_ready_while_the_server_stops_is_ended_too(facade: Facade) -> None:
    headers = {"X-API-KEY": facade.key}

    async def create(session: aiohttp.ClientSession) -> int:
        async with session.post(f"{facade.url}/v2/sandboxes", json={"templateID": "base"}, headers=headers) as answer:
            return answer.status

    async with aiohttp.ClientSession() as session:
        creating = asyncio.create_task(create(session))
        for _ in range(1000):
            if await facade.client.sandboxes():
                break
            await asyncio.sleep(0.01)
        await facade.server.close()
        assert await creating == 503
    assert await facade.client.sandboxes(status="ready") == []


async def test_a_sandbox_that_somebody_else_ended_is_gone(box: Box, facade: Facade) -> None:
    await facade.client.delete(box.id)
    assert (await box.call("List"))[0] == 200  # nothing runs, as far as is known here
    async with box.stream("Start", shell("true")) as events:
        [last] = [event async for event in events]
    assert last["error"]["code"] == "unavailable" and "was not found" in last["error"]["message"]
    async with box.session.get(f"{box.url}/files?path=x", headers=box.headers) as answer:
        assert answer.status == 502
    headers = {"X-API-KEY": facade.key}
    async with box.session.post(
        f"{facade.url}/sandboxes/{box.id}/timeout", json={"timeout": 5}, headers=headers
    ) as answer:
        assert answer.status == 404
    async with box.session.get(f"{facade.url}/v2/sandboxes", headers=headers) as answer:
        assert await answer.json() == []


async def test_a_file_that_breaks_off_is_never_taken_for_whole(box: Box, facade: Facade) -> None:
    async with box.stream("Start", shell("truncate -s 2G large; ls")) as events:
        assert [event async for event in events][-1] == {}
    async with box.session.get(f"{box.url}/files?path=large", headers=box.headers) as answer:
        assert answer.content_length == 2 << 30 and await answer.content.readexactly(100)
        await facade.client.delete(box.id)
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.content.readexactly(2 << 30)


async def test_an_empty_key_opens_nothing(facade: Facade) -> None:
    with pytest.raises(ConfigError, match="the key is empty"):
        E2bServer(facade.client, " ")
