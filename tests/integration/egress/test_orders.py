"""The egress process's own side, in this process: what it is ordered, and what it reports."""

from __future__ import annotations

import asyncio
import json
import os
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gymbox.egress import __main__ as process
from gymbox.egress.places import Places
from gymbox.egress.ways import Ways
from gymbox_sandbox import prctl

GOOD = b"pGET http://elsewhere.test/ HTTP/1.1\r\nHost: elsewhere.test\r\n\r\n"


class Provider:
    """The other end of its socket."""

    def __init__(self, control: socket.socket, theirs: socket.socket, folder: Path) -> None:
        self.control = control
        self.theirs = theirs
        """The process's end, which is of this process in these tests."""
        self.folder = folder

    def order(self, order: dict[str, Any], *, listen: bool = False) -> None:
        fds = []
        if listen:
            self.listener = socket.socket(socket.AF_UNIX)
            self.path().unlink(missing_ok=True)
            self.listener.bind(str(self.path()))
            self.listener.listen()
            fds = [self.listener.fileno()]
        socket.send_fds(self.control, [json.dumps(order).encode()], fds)

    def open(self, **way: Any) -> None:
        order = {"open": "box", "way": {"hosts": ["good.test"], **way}, "models": None}
        self.order(order, listen=True)

    def path(self) -> Path:
        return self.folder / "egress.sock"

    async def said(self, data: bytes = GOOD) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self.path())
        writer.write(data)
        async with asyncio.timeout(5):
            answer = await reader.read(-1)
        writer.close()
        return answer

    async def report(self) -> dict[str, Any]:
        async with asyncio.timeout(5):
            return dict(json.loads(await asyncio.get_running_loop().sock_recv(self.control, 65536)))


@pytest.fixture
async def provider(tmp_path: Path) -> AsyncIterator[Provider]:
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    ours.setblocking(False)
    running = asyncio.create_task(process.Egress(theirs, Places(), process.Faults()).run())
    with ours, theirs:
        yield Provider(ours, theirs, tmp_path)
        ours.close()
        async with asyncio.timeout(5):
            await running  # it ends with the provider


async def test_it_serves_what_it_is_told_to_and_reports_each_refusal_once(provider: Provider) -> None:
    provider.open()
    assert b" 403 " in await provider.said()
    report = await provider.report()
    assert (report["sandbox"], report["refused"], len(report["news"])) == ("box", 1, 1)
    assert b" 403 " in await provider.said()
    report = await provider.report()
    assert (report["refused"], report["news"]) == (2, [])


async def test_what_is_closed_is_no_longer_served_and_its_last_refusals_are_told(provider: Provider) -> None:
    provider.open()
    assert b" 403 " in await provider.said()
    provider.order({"close": "box"})
    provider.order({"close": "box"})
    assert (await provider.report())["refused"] == 1
    provider.listener.close()
    await asyncio.sleep(0.1)
    with pytest.raises(OSError):
        await provider.said()


async def test_a_sandbox_that_ends_with_connections_open_is_no_fault(
    provider: Provider, capsys: pytest.CaptureFixture[str]
) -> None:
    provider.open()
    reader, writer = await asyncio.open_unix_connection(provider.path())
    writer.write(GOOD[:9])
    assert b" 403 " in await provider.said()  # so that the first is being served, too
    provider.order({"close": "box"})
    async with asyncio.timeout(5):
        assert await reader.read() == b""
    provider.open()
    assert b" 403 " in await provider.said()
    writer.close()
    assert capsys.readouterr().err == ""


async def test_an_order_to_open_again_replaces_the_first(provider: Provider) -> None:
    provider.open()
    provider.open(models=True)
    assert b"this sandbox has no models" in await provider.said(b"mGET /v1/x HTTP/1.1\r\nHost: x\r\n\r\n")


async def test_model_calls_are_led_elsewhere_when_it_is_told(provider: Provider) -> None:
    provider.open(models=True)
    provider.order({"lead": "gone", "models": {"url": "http://127.0.0.1:9", "key": "k", "one": True}})
    provider.order({"lead": "box", "models": {"url": "http://127.0.0.1:9", "key": "k", "one": True}})
    ask = b"mGET /v1/x HTTP/1.1\r\nHost: x\r\n\r\n"
    assert b"what has the models does not answer" in await provider.said(ask)


async def test_a_report_that_the_provider_has_no_room_for_comes_later(provider: Provider) -> None:
    provider.open()
    filler = 0
    while True:
        try:
            provider.theirs.send(b"x" * 2000)
            filler += 1
        except BlockingIOError:
            break
    assert b" 403 " in await provider.said()
    await asyncio.sleep(0.3)
    for _ in range(filler):
        await asyncio.get_running_loop().sock_recv(provider.control, 65536)
    report = await provider.report()
    assert report["refused"] == 1 and len(report["news"]) == 1


async def test_orders_are_followed_while_the_connections_of_a_closed_sandbox_still_end(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end, close = asyncio.Event(), Ways.close

    async def slow(ways: Ways) -> None:
        await may_end.wait()
        await close(ways)

    monkeypatch.setattr(Ways, "close", slow)
    provider.open()
    assert b" 403 " in await provider.said()
    provider.order({"close": "box"})
    provider.open(models=True)
    assert b"this sandbox has no models" in await provider.said(b"mGET /v1/x HTTP/1.1\r\nHost: x\r\n\r\n")
    may_end.set()


def test_faults_are_counted_and_told_ever_more_rarely(capsys: pytest.CaptureFixture[str]) -> None:
    faults = process.Faults()
    for number in range(1, 1001):
        faults.note(ValueError(f"{number}" + "x" * 10_000))
    told = capsys.readouterr().err.splitlines()
    assert faults.count == 1000 and len(told) == 10 and max(map(len, told)) < 600
    assert told[2].startswith("fault 4 of the egress process: ValueError('4xxx")


def test_root_becomes_nobody_before_it_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a sequence of calls: a process that is nobody could not tell what it has run. The real one is looked at in
    test_process."""
    done: list[Any] = []
    monkeypatch.setattr(prctl, "forbid_new_privileges", lambda: done.append("no new privileges"))
    monkeypatch.setattr(os, "getuid", lambda: 0)
    for name in ("setgroups", "setgid", "setuid"):
        monkeypatch.setattr(os, name, lambda value, name=name: done.append((name, value)))
    process.drop_rights()
    assert done == ["no new privileges", ("setgroups", []), ("setgid", 65_534), ("setuid", 65_534)]


def test_where_root_may_not_become_nobody_that_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: Any) -> None:
        raise PermissionError("not permitted")

    monkeypatch.setattr(prctl, "forbid_new_privileges", lambda: None)
    monkeypatch.setattr(os, "getuid", lambda: 0)
    monkeypatch.setattr(os, "setgroups", refuse)
    process.drop_rights()
    assert "the egress process stays root's: not permitted" in capsys.readouterr().err
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    process.drop_rights()
    assert not capsys.readouterr().err
