"""The provider's egress process: what it is, what it tells, and what becomes of sandboxes when it ends."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gymbox.environment import Environment, Manifest
from gymbox.errors import Unavailable
from gymbox.network import EGRESS_SOCKET, RESOLVER
from gymbox.providers import ModelsAt, StartSpec
from gymbox.providers.container import container_config
from gymbox.providers.egress import Egress, write_resolver

STUB = Path(__file__).parents[2] / "stub_egress.py"
PUBLIC = b"pGET http://public.test/ HTTP/1.1\r\nHost: public.test\r\n\r\n"
ELSEWHERE = PUBLIC.replace(b"public", b"elsewhere")
_ASKED = b"\0\7\1\0\0\1\0\0\0\0\0\0\6public\4test\0\0\1\0\1"
QUESTION = b"n" + len(_ASKED).to_bytes(2) + _ASKED
"""Which address `public.test` has."""


def spec(folder: Path, network: Any, id: str = "box") -> StartSpec:
    manifest = Manifest.model_validate({"name": "plain", "description": "For a test.", "network": network})
    directory = folder / id
    directory.mkdir(exist_ok=True)
    return StartSpec(id, Environment(folder, manifest), directory, models=ModelsAt("http://127.0.0.1:9", "the-key"))


@pytest.fixture
async def port() -> AsyncIterator[int]:
    """Of a server at the public address that answers everything alike."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.2", 0)
    yield server.sockets[0].getsockname()[1]
    server.close()


@pytest.fixture
async def egress(port: int) -> AsyncIterator[Egress]:
    egress = Egress([sys.executable, str(STUB), json.dumps({80: port})])
    yield egress
    await egress.close()


async def said(directory: Path, data: bytes, *, end: bool = False) -> bytes:
    """What comes back until the connection is closed; `end` says that no more is asked."""
    reader, writer = await asyncio.open_unix_connection(directory / EGRESS_SOCKET)
    writer.write(data)
    if end:
        writer.write_eof()
    try:
        async with asyncio.timeout(20):
            return await reader.read(-1)
    finally:
        writer.close()


async def until(condition: Any) -> None:
    for _ in range(400):
        if condition():
            return
        await asyncio.sleep(0.05)
    raise TimeoutError


def pid_of(egress: Egress) -> int:
    assert egress._process is not None
    return egress._process.pid


async def test_what_was_refused_is_logged_counted_and_told_by_sandbox(
    egress: Egress, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = spec(tmp_path, {"allow": ["public.test"]}), spec(tmp_path, {"allow": ["public.test"]}, "other")
    await egress.open(one)
    await egress.open(other)
    assert (await said(one.directory, PUBLIC)).endswith(b"hello")
    for _ in range(3):
        assert b" 403 " in await said(one.directory, ELSEWHERE)
    await until(lambda: egress.traffic("box").refused == 3)
    told = egress.traffic("box")
    assert told.let_through == 1
    assert [(each.kind, each.target) for each in told.refusals] == [("proxy", "elsewhere.test:80")]
    assert egress.traffic("other").refused == 0 and egress.traffic("unknown").refused == 0
    logged = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert logged == [
        "sandbox box was refused elsewhere.test:80 (proxy): the host is not listed, or not with this port"
    ]


async def test_it_runs_as_nobody_and_has_no_secret_in_its_words_or_variables(egress: Egress, tmp_path: Path) -> None:
    one = spec(tmp_path, {"allow": ["public.test"], "models": True})
    await egress.open(one)
    assert (await said(one.directory, PUBLIC)).endswith(b"hello")
    process = Path(f"/proc/{pid_of(egress)}")
    told = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
    assert b"the-key" not in told and b"HOME=" not in told
    status = dict(line.split(":\t") for line in (process / "status").read_text().splitlines() if ":\t" in line)
    assert status["NoNewPrivs"] == "1"
    if os.getuid() == 0:
        assert status["Uid"].split() == ["65534"] * 4 and status["CapEff"] == "0" * 16 and not status["Groups"].strip()


async def test_when_it_is_killed_another_takes_its_place_and_counts_go_on(egress: Egress, tmp_path: Path) -> None:
    one = spec(tmp_path, {"allow": ["public.test"]})
    await egress.open(one)
    assert await said(one.directory, QUESTION, end=True)
    assert b" 403 " in await said(one.directory, ELSEWHERE)
    await until(lambda: egress.traffic("box").refused == 1)
    before = pid_of(egress)
    os.kill(before, signal.SIGKILL)
    assert await said(one.directory, QUESTION, end=True)
    assert (await said(one.directory, PUBLIC)).endswith(b"hello")  # it waited for the next one
    assert pid_of(egress) != before
    assert b" 403 " in await said(one.directory, ELSEWHERE)
    await until(lambda: egress.traffic("box").refused == 2)
    assert (egress.traffic("box").let_through, egress.traffic("box").names_answered) == (1, 2)


async def test_a_sandbox_that_is_gone_has_no_way_out_and_is_still_told_of(egress: Egress, tmp_path: Path) -> None:
    one = spec(tmp_path, {"allow": ["public.test"]})
    await egress.open(one)
    await egress.open(one)  # a second time is fine
    assert b" 403 " in await said(one.directory, ELSEWHERE)
    await until(lambda: egress.traffic("box").refused == 1)
    egress.close_way("box")
    egress.close_way("box")
    async with asyncio.timeout(20):
        with pytest.raises((FileNotFoundError, ConnectionError)):
            while True:  # until the process has done as it was told
                _, writer = await asyncio.open_unix_connection(one.directory / EGRESS_SOCKET)
                writer.close()
                await asyncio.sleep(0.02)
    assert egress.traffic("box").refused == 1


async def test_what_stands_where_its_socket_belongs_is_never_followed(egress: Egress, tmp_path: Path) -> None:
    one, victim = spec(tmp_path, {"allow": ["public.test"]}), tmp_path / "victim"
    victim.write_text("untouched")
    victim.chmod(0o600)
    (one.directory / EGRESS_SOCKET).symlink_to(victim)
    await egress.open(one)
    assert (await said(one.directory, PUBLIC)).endswith(b"hello")
    assert victim.read_text() == "untouched" and victim.stat().st_mode & 0o777 == 0o600
    assert (one.directory / EGRESS_SOCKET).stat().st_mode & 0o777 == 0o660


async def test_the_resolvers_file_is_where_no_sandbox_can_replace_it(egress: Egress, tmp_path: Path) -> None:
    folder, victim = tmp_path / "sockets", tmp_path / "victim"
    folder.mkdir()
    victim.write_text("untouched")
    one = spec(folder, "open")
    (one.directory / RESOLVER).symlink_to(victim)
    for broken in (None, "", "nameserver 8.8.8.8\n"):
        if broken is not None:  # a crash had left half of it
            (folder / RESOLVER).write_text(broken)
        write_resolver(folder)
        assert (folder / RESOLVER).read_text().startswith("nameserver 127.0.0.1\n")
    await egress.open(one)
    assert (folder / RESOLVER).stat().st_mode & 0o777 == 0o644 and (folder / RESOLVER).stat().st_uid == os.getuid()
    mounted = container_config(one, "image", "controller", [])["HostConfig"]["Binds"][1]
    assert mounted == f"{folder / RESOLVER}:/etc/resolv.conf:ro"
    assert {path.name for path in folder.iterdir()} == {RESOLVER, "box"} and victim.read_text() == "untouched"


async def test_a_sandbox_without_a_way_out_starts_no_process(egress: Egress, tmp_path: Path) -> None:
    for network in ("none", "internal"):
        one = spec(tmp_path, network)
        await egress.open(one)
        assert not list(one.directory.iterdir()) and egress._process is None


async def test_an_open_network_is_said_loudly_and_once(
    egress: Egress, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for id in ("one", "two"):
        await egress.open(spec(tmp_path, "open", id))
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING] == [
        "NETWORK OPEN: what the agent runs in sandboxes of plain reaches every public host of the internet"
    ]


async def test_a_process_that_cannot_start_and_a_folder_that_is_not_there_are_told(tmp_path: Path) -> None:
    egress = Egress(["/nonexistent/python"])
    one = spec(tmp_path, "open")
    with pytest.raises(Unavailable, match="the egress process cannot be started"):
        await egress.open(one)
    await egress.close()
    gone = spec(tmp_path, "open", "gone")
    gone.directory.rmdir()
    with pytest.raises(Unavailable, match="cannot listen on .*egress.sock: No such file or directory"):
        await egress.open(gone)


async def test_model_calls_are_led_where_the_provider_says_also_after_a_restart(
    egress: Egress, tmp_path: Path, port: int
) -> None:
    one, other = spec(tmp_path, "models"), spec(tmp_path, {"allow": ["public.test"]}, "other")
    for each in (one, other):
        await egress.open(each)
        egress.lead_models(each.id, ModelsAt(f"http://127.0.0.2:{port}", "another-key", one=True))
    egress.lead_models("gone", ModelsAt("http://127.0.0.2:9", "key"))
    ask = b"mGET /v1/models HTTP/1.1\r\nHost: models\r\n\r\n"
    assert (await said(one.directory, ask)).endswith(b"hello")
    assert b"this sandbox has no models" in await said(other.directory, ask)
    os.kill(pid_of(egress), signal.SIGKILL)
    assert (await said(one.directory, ask)).endswith(b"hello")


async def test_model_calls_without_an_answer_are_told_before_their_caller_knows(
    egress: Egress, tmp_path: Path, port: int
) -> None:
    one, other = spec(tmp_path, "models"), spec(tmp_path, {"allow": ["public.test"]}, "other")
    await egress.open(one)
    await egress.open(other)
    ask = b"mGET /v1/models HTTP/1.1\r\nHost: models\r\n\r\n"
    assert b" 502 " in await said(one.directory, ask)
    await asyncio.sleep(0)
    assert egress.traffic("box").models_unanswered == 1
    egress.lead_models("box", ModelsAt(f"http://127.0.0.2:{port}", "key", one=True))
    assert b" 200 " in await said(one.directory, ask)
    await until(lambda: egress.traffic("box").models_unanswered == 0)
    before = pid_of(egress)
    os.kill(before, signal.SIGKILL)
    await until(lambda: egress.traffic("box").models_unanswered == 1)  # one may have been under way
    assert b" 403 " in await said(one.directory, ELSEWHERE)
    await until(lambda: egress.traffic("box").refused == 1)
    assert egress.traffic("box").models_unanswered == 1  # nothing is known of it yet
    assert b" 200 " in await said(one.directory, ask)
    await until(lambda: egress.traffic("box").models_unanswered == 0)
    assert egress.traffic("other").models_unanswered == 0


async def test_the_traffic_of_the_oldest_sandboxes_is_forgotten(
    egress: Egress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gymbox.providers.egress.REMEMBERED", 1)
    for id in ("one", "two", "three"):
        one = spec(tmp_path, {"allow": ["public.test"]}, id)
        await egress.open(one)
        assert b" 403 " in await said(one.directory, ELSEWHERE)
        await until(lambda id=id: egress.traffic(id).refused)
        egress.close_way(id)
    assert [egress.traffic(id).refused for id in ("one", "two", "three")] == [0, 0, 1]


async def test_a_process_that_cannot_be_started_again_is_tried_until_it_can(
    egress: Egress, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one = spec(tmp_path, {"allow": ["public.test"]})
    await egress.open(one)
    assert (await said(one.directory, PUBLIC)).endswith(b"hello")
    command, egress._command = egress._command, ["/nonexistent/python"]
    os.kill(pid_of(egress), signal.SIGKILL)
    await until(lambda: "the egress process cannot be started" in caplog.text)
    await egress.open(spec(tmp_path, {"allow": ["public.test"]}, "meanwhile"))  # fails closed, and works later
    egress._command = command
    assert (await said(tmp_path / "meanwhile", PUBLIC)).endswith(b"hello")


async def test_more_ways_than_its_socket_holds_are_all_opened_at_first_and_after_a_restart(
    egress: Egress, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    names = [f"box-{number}" for number in range(300)]
    boxes = [spec(tmp_path, {"allow": ["public.test", "a-long-name." * 20 + "test"]}, name) for name in names]
    await asyncio.gather(*(egress.open(box) for box in boxes))
    before = pid_of(egress)
    for box in boxes:
        assert (await said(box.directory, PUBLIC)).endswith(b"hello")
    assert pid_of(egress) == before
    os.kill(before, signal.SIGKILL)
    await until(lambda: egress._control is not None and pid_of(egress) != before)
    assert egress._unsent  # it has not begun to read, and there is no room for them all
    egress.close_way(names[-1])
    for box in boxes[:-1]:
        assert (await said(box.directory, PUBLIC)).endswith(b"hello")
    assert "takes no orders" not in caplog.text and caplog.text.count("the egress process ended") == 1
    assert not egress._unsent


async def test_a_way_that_is_opened_while_the_process_starts_is_told_to_it_once(
    egress: Egress, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []
    send = egress._send
    monkeypatch.setattr(egress, "_send", lambda order, *fds: (told.append(order), send(order, *fds)))
    boxes = [spec(tmp_path, {"allow": ["public.test"]}, name) for name in ("one", "two", "three")]
    opening = asyncio.gather(*(egress.open(box) for box in boxes))
    await asyncio.sleep(0)
    egress.close_way("three")
    await opening
    assert [order["open"] for order in told if "open" in order] == ["one", "two"]
    assert (await said(boxes[1].directory, PUBLIC)).endswith(b"hello")
