"""Files: transfers as the agent, streamed, whole or not at all, and never out of the tree."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest
from gymbox_sandbox import files
from gymbox_sandbox.command import Ended

from tests.unit.sandbox_exec.transfers import get, put, tar_of


async def test_a_file_goes_in_and_comes_out_byte_by_byte(host):
    data = os.urandom(3_000_000)
    assert await put(host, "deep/er/file name", data, mode="600") == (200, {"size": 3_000_000})
    file = host.workspace / "deep/er/file name"
    assert file.read_bytes() == data and file.stat().st_mode & 0o777 == 0o600
    assert file.stat().st_uid == (10001 if host.two_users else os.getuid())
    assert await get(host, file) == (200, data)
    assert list(file.parent.iterdir()) == [file]


async def test_a_file_is_replaced_as_a_whole(host):
    await put(host, "file", b"before")
    before = (host.workspace / "file").stat().st_ino
    await put(host, "file", b"")
    assert (host.workspace / "file").stat().st_ino != before
    assert await get(host, "file") == (200, b"")


async def test_a_link_is_replaced_and_not_followed(host):
    await host.exec("echo untouched > target; ln -s target link")
    await put(host, "link", b"new")
    assert await get(host, "target") == (200, b"untouched\n")
    assert await get(host, "link") == (200, b"new")


async def test_what_the_kernel_makes_up_can_be_read(host):
    status, data = await get(host, "/proc/self/status")
    assert status == 200 and b"NoNewPrivs:\t1" in data


async def test_a_large_file_needs_no_memory(host):
    await host.exec("truncate -s 300M large")
    before = (await host.facts())["rss"]

    async def chunks():
        for _ in range(600):
            yield bytes(100_000)

    async with host.client.get("/files", params={"path": "large"}) as answer:
        assert answer.headers["Content-Length"] == str(300 << 20)
        assert sum([len(chunk) async for chunk in answer.content.iter_any()]) == 300 << 20
    assert await put(host, "other", chunks()) == (200, {"size": 60_000_000})
    assert (await host.facts())["rss"] - before < 12_000_000


@pytest.mark.parametrize(
    ("path", "status", "cause"),
    [
        ("missing", 404, None),
        ("missing/file", 404, None),
        (".", 422, "directory"),
        ("fifo", 422, "special_file"),
        ("socket", 422, "special_file"),
        ("/dev/null", 422, "special_file"),
        ("loop", 422, None),
        ("x" * 300, 422, None),
        ("a\0b", 422, None),
        ("", 422, None),
    ],
)
async def test_what_cannot_be_read_is_told(host, path, status, cause):
    await host.exec(
        "mkfifo fifo; ln -s loop loop; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'"
    )
    async with asyncio.timeout(10):
        found, problem = await get(host, path)
    assert (found, problem.get("cause")) == (status, cause), problem


@pytest.mark.parametrize(
    ("path", "status", "cause"),
    [
        ("folder", 422, "directory"),
        ("folder/", 422, "directory"),
        ("folder/..", 422, "directory"),
        ("fifo", 422, "special_file"),
        ("file/below", 409, None),
        ("x" * 300, 422, None),
    ],
)
async def test_what_cannot_be_written_is_told(host, path, status, cause):
    await host.exec("mkdir folder; mkfifo fifo; touch file")
    found, problem = await put(host, path, b"x" * 1_000_000)
    assert (found, problem.get("cause")) == (status, cause), problem
    assert sorted(os.listdir(host.workspace)) == ["fifo", "file", "folder"]


async def test_a_mode_must_be_one(host):
    for mode in ("888", "1777", "rwx", ""):
        assert (await put(host, "file", b"", mode=mode))[0] == 422


async def test_permissions_are_those_of_the_agent(two_users):
    secret = two_users.folder / "secret"
    secret.write_text("ground truth")
    secret.chmod(0o600)
    await two_users.exec(f"ln -s {secret} link")
    for path in (secret, "link"):
        status, problem = await get(two_users, path)
        assert (status, problem["kind"]) == (403, "forbidden")
    status, problem = await put(two_users, two_users.folder / "new", b"")
    assert (status, problem["kind"]) == (403, "forbidden")
    assert (await get(two_users, two_users.folder / "run", "/archive"))[0] == 403


async def test_a_full_disk_is_named(two_users):
    await two_users.exec("mkdir small")
    small = two_users.workspace / "small"
    mount = await asyncio.create_subprocess_exec("mount", "-t", "tmpfs", "-o", "size=1m,mode=1777", "none", small)
    if await mount.wait() != 0:
        pytest.skip("cannot mount")
    try:
        status, problem = await put(two_users, "small/file", b"x" * 3_000_000)
        assert (status, problem["kind"], problem["cause"]) == (409, "conflict", "disk_full")
        assert "disk_full" in problem["detail"]
        assert os.listdir(small) == []
    finally:
        await (await asyncio.create_subprocess_exec("umount", small)).wait()


async def test_an_upload_that_is_too_large_is_refused(one_user):
    async def chunks():
        for _ in range(65):
            yield bytes(1 << 20)

    status, problem = await put(one_user, "file", chunks())
    assert (status, problem["cause"]) == (422, "too_large")
    assert os.listdir(one_user.workspace) == []


@pytest.mark.parametrize("route", ["/files", "/archive"])
async def test_an_upload_that_is_cut_off_leaves_nothing_half_written(host, route):
    arrived = asyncio.Event()
    data = tar_of(("file", bytes(10_000_000))) if route == "/archive" else bytes(10_000_000)

    async def half():
        for start in range(0, 5_000_000, 500_000):
            yield data[start : start + 500_000]
        arrived.set()
        await asyncio.Event().wait()

    path = "." if route == "/archive" else "file"
    upload = asyncio.create_task(put(host, path, half(), route))
    await arrived.wait()
    await host.until(lambda: os.listdir(host.workspace))
    upload.cancel()
    await host.until(lambda: not os.listdir(host.workspace))


class HardOfHearing:
    """A transfer that hears only the second signal, as one that was about to wait for its input."""

    def __init__(self):
        self.signals = 0
        self.heard = asyncio.Event()

    def signal(self, number):
        assert number == signal.SIGTERM
        self.signals += 1
        if self.signals == 2:
            self.heard.set()

    async def next(self):
        await self.heard.wait()
        return Ended(1, False, 0.0)


async def test_an_upload_that_is_cut_off_is_told_until_it_hears(monkeypatch):
    monkeypatch.setattr(files, "AGAIN", 0.01)
    command = HardOfHearing()
    async with asyncio.timeout(20):
        await files._cut_off(command)
    assert command.signals == 2


async def test_hanging_up_on_a_download_ends_it(host):
    await host.exec("truncate -s 300M large")
    before = (await host.facts())["fds"]
    async with host.client.get("/files", params={"path": "large"}) as answer:
        await answer.content.readany()
        answer.close()
    async with asyncio.timeout(20):
        while (await host.facts())["fds"] > before:  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_a_file_that_shrinks_while_it_is_read_is_never_taken_for_whole(host):
    await host.exec("truncate -s 300M large")
    with pytest.raises(Exception):  # noqa: B017  the connection is cut
        async with host.client.get("/files", params={"path": "large"}) as answer:
            await answer.content.readany()
            await host.exec("truncate -s 1M large")
            while await answer.content.readany():
                pass


async def test_a_missing_workspace_is_told(one_user):
    one_user.workspace.rmdir()
    status, problem = await get(one_user, "file")
    assert (status, problem["kind"]) == (422, "invalid")
    one_user.workspace.mkdir()


async def test_a_transfer_is_killed_with_everything_else(one_user):
    started = asyncio.Event()

    async def endless():
        yield b"x" * 100_000
        started.set()
        await asyncio.Event().wait()

    upload = asyncio.create_task(put(one_user, "file", endless()))
    await started.wait()
    await one_user.until(lambda: os.listdir(one_user.workspace))
    await one_user.kill_all()
    upload.cancel()
    for left in one_user.workspace.iterdir():  # the one case in which a part stays, under a name that says so
        assert left.name.endswith(".partial")
