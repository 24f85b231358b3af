"""Checks with E2B's SDK on an event loop; run by test_sdk.py, in an interpreter that has it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from e2b import (
    AsyncSandbox,
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    InvalidArgumentException,
    SandboxException,
    SandboxNotFoundException,
    TimeoutException,
)
from e2b.exceptions import SandboxNotRunningException
from e2b.sandbox.commands.command_handle import PtySize


@pytest.fixture
async def box() -> AsyncIterator[AsyncSandbox]:
    async with await AsyncSandbox.create(timeout=120) as sandbox:
        yield sandbox


async def test_a_sandbox_lives_from_create_to_kill() -> None:
    sandbox = await AsyncSandbox.create("other", metadata={"a": "b"})
    assert await sandbox.is_running() and (await sandbox.get_info()).metadata == {"a": "b"}
    again = await AsyncSandbox.connect(sandbox.sandbox_id)
    listed = await AsyncSandbox.list().next_items()
    assert [each.sandbox_id for each in listed] == [sandbox.sandbox_id]
    handle = await sandbox.commands.run("sleep 60", background=True)
    assert await again.kill() is True
    with pytest.raises(TimeoutException):
        await handle.wait()
    assert not await sandbox.is_running()
    with pytest.raises(SandboxNotFoundException):
        await sandbox.get_info()
    with pytest.raises(SandboxNotRunningException):
        await sandbox.commands.run("true")
    with pytest.raises(AuthenticationException):
        await AsyncSandbox.create(api_key="another")


async def test_commands_run_beside_one_another_and_are_followed(box: AsyncSandbox) -> None:
    told: list[str] = []
    many = await asyncio.gather(*(box.commands.run(f"sleep 0.3; echo {n}", on_stdout=told.append) for n in range(20)))
    assert [result.stdout for result in many] == [f"{n}\n" for n in range(20)] and len(told) == 20
    with pytest.raises(CommandExitException) as raised:
        await box.commands.run("exit 9")
    assert raised.value.exit_code == 9
    with pytest.raises(TimeoutException):
        await box.commands.run("sleep 60", timeout=0.5)
    for _ in range(50):
        if not (left := await box.commands.list()):
            break
        await asyncio.sleep(0.1)
    assert left == []


async def test_input_and_terminals_are_written_to(box: AsyncSandbox) -> None:
    handle = await box.commands.run("cat", background=True, stdin=True)
    await box.commands.send_stdin(handle.pid, "one ")
    async with box.commands.stream_input(handle.pid) as writing:
        await writing.send("two ")
        await asyncio.sleep(0.3)
        await writing.send("three")
    await box.commands.close_stdin(handle.pid)
    assert (await handle.wait()).stdout == "one two three"
    seen = bytearray()
    terminal = await box.pty.create(PtySize(rows=24, cols=80), on_data=seen.extend)
    await box.pty.resize(terminal.pid, PtySize(rows=11, cols=22))
    await box.pty.send_stdin(terminal.pid, b"stty size; exit\n")
    await terminal.wait()
    assert b"11 22" in seen


async def test_files_go_in_and_out_and_are_watched(box: AsyncSandbox) -> None:
    events: list[tuple[str, str]] = []
    watch = await box.files.watch_dir(
        ".", on_event=lambda event: events.append((event.name, event.type.value)), recursive=True, include_entry=True
    )

    async def blob() -> AsyncIterator[bytes]:
        for _ in range(64):
            yield b"x" * 65_536

    await box.files.write("d/large", blob())
    assert await box.files.read("d/large", format="bytes") == b"x" * (64 * 65_536)
    stream: Any = await box.files.read("d/large", format="stream")
    assert sum([len(piece) async for piece in stream]) == 64 * 65_536
    await box.files.write_files([{"path": "a", "data": "1"}, {"path": "b", "data": b"2"}])
    assert [entry.name for entry in await box.files.list(".")] == ["a", "b", "d"]
    assert (await box.files.rename("a", "c")).name == "c"
    await box.files.remove("b")
    for _ in range(50):
        if {("a", "rename"), ("c", "create"), ("b", "remove")} <= set(events):
            break
        await asyncio.sleep(0.1)
    assert {("d", "create"), ("a", "rename"), ("c", "create"), ("b", "remove")} <= set(events)
    await watch.stop()
    with pytest.raises(FileNotFoundException):
        await box.files.read("a")
    with pytest.raises(InvalidArgumentException):
        await box.files.list("c")
    with pytest.raises(SandboxException):
        await box.files.watch_dir("nowhere", on_event=print)
    with pytest.raises(SandboxException, match="no user 'root'"):
        await box.files.list(".", user="root")


async def test_who_hangs_up_in_the_midst_of_a_transfer_leaves_no_half_file(box: AsyncSandbox) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * 1_000_000
        raise RuntimeError("the source broke")

    with pytest.raises(Exception):  # noqa: B017 - of whichever kind its HTTP client makes of it
        await box.files.write("half", broken())
    for _ in range(50):
        if await box.files.list(".") == []:
            break
        await asyncio.sleep(0.1)
    assert await box.files.list(".") == []
    await box.commands.run("head -c 50000000 /dev/zero >large")
    stream: Any = await box.files.read("large", format="stream")
    async for _ in stream:
        break
    await stream.aclose()
    assert await box.files.exists("large")
