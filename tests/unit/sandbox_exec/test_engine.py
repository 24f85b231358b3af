"""Engine: one for several servers, and what it does with what no honest server sends."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import select
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from gymbox_sandbox.commands import Commands
from gymbox_sandbox.engine import new_link
from gymbox_sandbox.problems import AtCapacity, TimedOut, Unavailable
from gymbox_sandbox.spawn import Spawn
from gymbox_sandbox.supervisor import attach, start_engine
from gymbox_sandbox.wire import ExecRequest

PIDS_CGROUP = Path("/sys/fs/cgroup/pids")
SPAWN = Spawn(argv=["/bin/sleep", "99"], env={}, cwd="/", timeout=60).to_bytes()


@pytest.fixture
def engine() -> Iterator[socket.socket]:
    """An engine's first link; when it closes, the engine ends."""
    engine = start_engine()
    yield engine
    engine.close()
    os.wait()


def commands_over(engine: socket.socket, workspace: Path) -> Commands:
    return Commands(attach(engine), str(workspace), {"PATH": os.environ["PATH"]})


async def test_each_server_has_commands_of_its_own(engine, tmp_path):
    one, other = commands_over(engine, tmp_path), commands_over(engine, tmp_path)
    os.mkfifo(tmp_path / "go")
    go = os.open(tmp_path / "go", os.O_RDWR)  # which waits for nobody to read
    mine = one.stream(ExecRequest(command="sleep 99"))
    await anext(mine)
    theirs = other.stream(ExecRequest(command="read line < go; echo $line"))
    await anext(theirs)
    await one.kill_all()
    assert [event.signal async for event in mine] == [signal.SIGKILL]
    os.write(go, b"unharmed\n")
    assert (await anext(theirs)).data == b"unharmed\n"
    await theirs.aclose()
    os.close(go)
    one.close()
    one.close()
    assert (await other.run(ExecRequest(command="echo $0"))).exit_code == 0
    other.close()


async def test_giving_up_a_link_kills_what_was_started_over_it(engine, tmp_path):
    commands = commands_over(engine, tmp_path)
    await commands.run(ExecRequest(command="sleep 99 & echo $! > pid"))
    pid = int((tmp_path / "pid").read_text())
    commands.close()
    async with asyncio.timeout(20):
        while Path(f"/proc/{pid}").exists():  # noqa: ASYNC110, ASYNC240
            await asyncio.sleep(0.01)


async def test_an_engine_survives_what_is_no_request(engine, tmp_path, capfd):
    link = attach(engine)
    ours, theirs = socket.socketpair()
    null = os.open(os.devnull, os.O_RDWR)
    for message, fds in (
        (b"s", []),
        (b"s", [null, null]),
        (b"k?", [null]),
        (b"a", []),
        (b"unknown", [null]),
        (b"x" * 200, []),
    ):
        socket.send_fds(link, [message], fds)
    for request in (b"", b"?", b"k", b"k\2", SPAWN[:-5], b"s\0\0\0\5hello", b"s\0\0\0\0"):
        socket.send_fds(link, [b"s"], [theirs.fileno()])
        socket.send_fds(ours, [request], [null, null, null])
        ours.close()
        theirs.close()
        ours, theirs = socket.socketpair()
    link.send(b"k1")
    link.settimeout(20)
    assert link.recv(64) == b"k1"
    link.close()
    os.close(null)
    commands = commands_over(engine, tmp_path)
    assert (await commands.run(ExecRequest(command="echo alive"))).stdout == "alive\n"
    commands.close()


async def test_sigterm_ends_an_engine_that_watches_over_nobody(engine):
    pid = _only_child()
    os.kill(pid, signal.SIGTERM)
    assert engine.recv(1) == b""


def _only_child() -> int:
    from gymbox_sandbox.process_tree import parent_of

    [child] = [int(name) for name in os.listdir("/proc") if name.isdecimal() and parent_of(int(name)) == os.getpid()]
    return child


async def test_kill_all_does_not_wait_for_ever():
    ours, theirs = new_link()
    commands = Commands(ours, "/", {}, kill_timeout=0.05)
    with pytest.raises(TimedOut):
        await commands.kill_all()
    theirs.recv(64)
    theirs.close()
    with pytest.raises((Unavailable, ConnectionError)):
        await commands.kill_all()
    commands.close()


async def test_a_late_answer_to_an_earlier_kill_is_no_answer_to_this_one():
    ours, theirs = new_link()
    commands = Commands(ours, "/", {})
    theirs.send(b"kearlier")
    killing = asyncio.create_task(commands.kill_all())
    await asyncio.sleep(0)
    token = await asyncio.to_thread(theirs.recv, 64)
    assert not killing.done()
    theirs.send(token)
    await killing
    commands.close()
    theirs.close()


async def test_commands_wait_for_an_engine_that_is_busy(engine, tmp_path):
    link = attach(engine)
    commands = Commands(link, str(tmp_path), {"PATH": os.environ["PATH"]})
    await commands.run(ExecRequest(command=["/bin/true"]))  # and so the engine has this link
    pid = _only_child()
    os.kill(pid, signal.SIGSTOP)
    try:
        fill(link)
        running = [asyncio.create_task(commands.run(ExecRequest(command=["/bin/true"]))) for _ in range(3)]
        await asyncio.sleep(0)  # each gets as far as the full link
        assert not select.select([], [link], [], 0)[1]
    finally:
        os.kill(pid, signal.SIGCONT)
    async with asyncio.timeout(20):
        assert {result.exit_code for result in await asyncio.gather(*running)} == {0}
    commands.close()


async def test_kill_all_and_a_command_can_wait_for_a_busy_engine_together():
    link, engine = new_link()
    commands = Commands(link, "/", {})
    fill(link)
    waiting = [asyncio.create_task(commands.run(ExecRequest(command="true"))) for _ in range(2)]
    killing = asyncio.create_task(commands.kill_all())
    await asyncio.sleep(0)  # each gets as far as the full link
    orders = await asyncio.to_thread(orders_until_kill, engine, 2)
    engine.send(orders[-1])
    await killing
    # their descriptors were not taken, which is how it is when a reaper dies
    assert {type(error) for error in await asyncio.gather(*waiting, return_exceptions=True)} == {Unavailable}
    commands.close()
    engine.close()


def fill(link: socket.socket) -> None:
    """Send what means nothing until the link takes no more."""
    with contextlib.suppress(BlockingIOError):
        while True:
            link.send(b"?")


def orders_until_kill(engine: socket.socket, commands: int) -> list[bytes]:
    """What comes over a link beside what fills it, the kill last."""
    engine.settimeout(20)
    found: list[bytes] = []
    while len(found) < commands + 1:
        order = engine.recv(64)
        found += [order] if order != b"?" else []
    return sorted(found, key=lambda order: order[:1] == b"k")


async def test_without_descriptors_the_caller_is_told_to_come_back(engine, tmp_path):
    commands = commands_over(engine, tmp_path)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))
    try:
        with pytest.raises(AtCapacity):
            await commands.run(ExecRequest(command="true"))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert (await commands.run(ExecRequest(command="true"))).exit_code == 0
    commands.close()


@pytest.mark.parametrize("room", [0, 1])
async def test_without_processes_the_caller_hears_so(engine, tmp_path, room):
    if not os.access(PIDS_CGROUP, os.W_OK):
        pytest.skip("needs a cgroup of its own")
    group = PIDS_CGROUP / f"gymbox-test-{os.getpid()}"
    group.mkdir()
    pid = _only_child()
    commands = commands_over(engine, tmp_path)
    try:
        (group / "cgroup.procs").write_text(str(pid))
        (group / "pids.max").write_text(str(1 + room))
        with pytest.raises(Unavailable, match="no process could be started"):
            await commands.run(ExecRequest(command="true"))
        (group / "pids.max").write_text("max")
        assert (await commands.run(ExecRequest(command="true"))).exit_code == 0
    finally:
        (PIDS_CGROUP / "cgroup.procs").write_text(str(pid))
        await commands.kill_all()
        commands.close()
        group.rmdir()
