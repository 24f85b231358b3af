"""Jobs, shells, request ids and watches through the proxy and straight to the socket, by the client's methods."""

from __future__ import annotations

import asyncio
import io
import secrets

import pytest
from gymbox.errors import Conflict, Gone, Invalid, NotFound
from gymbox_sandbox.lifecycle import CreateSandbox


@pytest.fixture
async def sandbox(client):
    await client.create(CreateSandbox(id="s1", environment="counter", lease=600))
    return await client.attach("s1")


async def test_a_job_is_started_once_followed_from_an_offset_and_forgotten(sandbox):
    view = await sandbox.jobs.start("j1", "echo one; read line; echo $line; exit 3", stdin_open=True)
    assert (view.status, view.terminal) == ("running", False)
    assert (await sandbox.jobs.start("j1", "echo one; read line; echo $line; exit 3", stdin_open=True)).pid == view.pid
    with pytest.raises(Conflict):
        await sandbox.jobs.start("j1", "another")
    async with sandbox.jobs.follow("j1") as execution:
        async for event in execution.events():
            if event.name == "stdout":
                break
    async with sandbox.jobs.follow("j1", 4) as execution:
        seen = []
        async for event in execution.events():
            seen.append((event.name, event.output))
            if event.name == "started":
                await execution.write(b"two\n")
    assert [piece for piece in seen if piece[0] == "stdout"] == [("stdout", b"two\n")]
    assert execution.result.exit_code == 3
    ended = await sandbox.jobs.get("j1", wait=20)
    assert (ended.status, ended.result.exit_code) == ("ended", 3)
    output = await sandbox.jobs.output("j1")
    assert (output.stdout, output.ended) == ("one\ntwo\n", True)
    assert [view.id for view in await sandbox.jobs.list()] == ["j1"]
    await sandbox.jobs.forget("j1")
    await sandbox.jobs.forget("j1")
    with pytest.raises(Gone, match="forgotten"):
        await sandbox.jobs.get("j1")
    with pytest.raises(NotFound):
        await sandbox.jobs.get("never")
    with pytest.raises(Invalid):
        await sandbox.jobs.get("no/id")


async def test_a_job_is_killed(sandbox):
    await sandbox.jobs.start("long", ["sleep", "99"])
    assert (await sandbox.jobs.kill("long")).result.signal == 9


async def test_a_shell_keeps_its_state_and_says_when_it_is_lost(sandbox):
    shell = await sandbox.shells.open("main", env={"A": "1"})
    await shell.run("cd /tmp; b=2")
    assert (await shell.run("echo $PWD $A $b")).stdout == "/tmp 1 2\n"
    assert [view.id for view in await sandbox.shells.list()] == ["main"]
    first, again = [await shell.run("b=$((b+1)); echo $b", request_id="r") for _ in range(2)]
    assert first == again
    assert first.stdout == "3\n"
    assert (await shell.run("exit 5")).state_lost
    with pytest.raises(Gone, match="state is lost"):
        await shell.run("true")
    await shell.close()


async def test_an_exec_with_a_request_id_runs_once(sandbox):
    id = secrets.token_hex(4)
    results = await asyncio.gather(*(sandbox.exec("echo x >> ran; cat ran", request_id=id) for _ in range(4)))
    assert {result.stdout for result in results} == {"x\n"}


async def test_a_folder_is_watched(sandbox):
    async with sandbox.watch(".") as changes:
        await sandbox.exec("mkdir d; mv d e")
        found = [await anext(changes), await anext(changes)]
    assert [(change.kind, change.path, change.to) for change in found] == [
        ("created", "d", None),
        ("moved", "d", "e"),
    ]
    with pytest.raises(NotFound):
        async with sandbox.watch("missing"):
            pass


async def test_a_sparse_file_is_sparse_here_too(sandbox, tmp_path):
    await sandbox.exec("truncate -s 30M holed; echo end >> holed")
    with (tmp_path / "back").open("w+b") as file:
        assert await sandbox.save("holed", file) == "file"
    assert (tmp_path / "back").stat().st_size == (30 << 20) + 4
    assert (tmp_path / "back").stat().st_blocks < 1000
    buffer = io.BytesIO()
    await sandbox.save("holed", buffer)
    assert buffer.getvalue() == (tmp_path / "back").read_bytes()
