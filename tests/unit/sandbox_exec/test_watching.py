"""Watching: changes in a folder as they happen, as server-sent events."""

from __future__ import annotations

import asyncio
import os

import pytest
from gymbox_sandbox import files, watching


async def until(events, kind, path):
    """The first change of that kind at that path."""
    async with asyncio.timeout(20):
        async for name, data in events:
            if name == "change" and (data["change"], data["path"]) == (kind, path):
                return data
    raise AssertionError("it ended")


async def test_changes_are_told_as_they_happen(host):
    async with host.followed("/files/watch", path=".") as events:
        assert (await anext(events))[0] == "ready"
        await host.exec("echo a > file")
        assert (await until(events, "created", "file"))["folder"] is False
        await until(events, "modified", "file")
        await host.exec("chmod 600 file; mv file other; mkdir folder; rm other")
        await until(events, "attributes", "file")
        assert (await until(events, "moved", "file"))["to"] == "other"
        assert (await until(events, "created", "folder"))["folder"] is True
        await until(events, "deleted", "other")


async def test_what_is_made_in_new_folders_is_told_too(one_user, tmp_path):
    await one_user.exec("mkdir -p a/b")
    async with one_user.followed("/files/watch", path=".") as events:
        await anext(events)
        await one_user.exec("echo x > a/b/old; mkdir -p c/d/e; echo x > c/d/e/new")
        await until(events, "created", "a/b/old")
        await until(events, "created", "c/d/e/new")
        await one_user.exec("mv c moved; echo y > moved/d/e/more")
        await until(events, "moved", "c")
        await until(events, "created", "moved/d/e/more")
        await one_user.exec(f"mv moved '{tmp_path}/out'; mkdir again")
        await until(events, "deleted", "moved")
        await until(events, "created", "again")


def told_of(watcher):
    """Let it tell of all that has happened."""
    watcher._tell(list(watching._events(os.read(watcher._fd, 1 << 16))))


@pytest.mark.parametrize(("seen", "with_another"), [(False, False), (True, False), (True, True)])
def test_what_was_moved_before_it_was_all_watched_is_told_and_watched(tmp_path, seen, with_another):
    told, new = [], tmp_path / "new"
    watcher = watching.Watcher(str(tmp_path), True, told.append)
    new.mkdir()
    if with_another:
        (new / "d").mkdir()
    if seen:
        told_of(watcher)
    (new / "d").mkdir(exist_ok=True)
    (new / "d" / "file").write_text("x")
    new.rename(tmp_path / "moved")
    told_of(watcher)
    (tmp_path / "moved" / "d" / "more").write_text("y")
    told_of(watcher)

    assert {"change": "moved", "path": "new", "to": "moved", "folder": True} in told
    made = [each["path"] for each in told if each["change"] == "created"]
    assert "moved/d/more" in made
    assert "moved/d/file" in made or "new/d/file" in made
    os.close(watcher._fd)


def test_a_folder_that_is_moved_while_it_is_looked_at_is_found_where_it_is(tmp_path, monkeypatch):
    told, new, scan = [], tmp_path / "new", os.scandir
    watcher = watching.Watcher(str(tmp_path), True, told.append)
    new.mkdir()
    (new / "file").write_text("x")

    def moved_first(path):
        if str(path) == str(new):
            new.rename(tmp_path / "moved")
        return scan(path)

    monkeypatch.setattr(os, "scandir", moved_first)
    for _ in range(2):  # of its making, then of its moving
        told_of(watcher)
    assert [each["path"] for each in told if each["change"] == "created"] == ["new", "moved/file"]
    os.close(watcher._fd)


def test_what_is_known_is_not_told_again_when_its_folder_is_moved(tmp_path):
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "b" / "old").write_text("x")
    told = []
    watcher = watching.Watcher(str(tmp_path), True, told.append)
    (tmp_path / "a").rename(tmp_path / "z")
    told_of(watcher)
    assert told == [{"change": "moved", "path": "a", "to": "z", "folder": True}]
    os.close(watcher._fd)


async def test_without_recursion_only_the_folder_itself_is_watched(one_user):
    await one_user.exec("mkdir below")
    async with one_user.followed("/files/watch", path=".", recursive="0") as events:
        await anext(events)
        await one_user.exec("echo x > below/file; mkdir new; echo x > new/file; echo x > last")
        seen = []
        while "last" not in seen:
            seen.append((await anext(events))[1]["path"])
    assert not any(path.endswith("/file") for path in seen)


async def test_too_many_changes_for_a_reader_are_said(one_user):
    async with one_user.followed("/files/watch", path=".") as events:
        await anext(events)
        # nobody reads: pipe, server and connection are full after some, and then the kernel's own queue
        script = "import os\nfor n in range(60000): open(f'{n % 50:0100}', 'w').close(); os.unlink(f'{n % 50:0100}')"
        await one_user.exec(["python3", "-c", script], timeout=60)
        async with asyncio.timeout(60):
            while (await anext(events))[0] != "overflow":
                pass


async def test_more_folders_than_may_be_watched_are_said(tmp_path, monkeypatch):
    monkeypatch.setattr(watching, "MOST_FOLDERS", 3)
    for number in range(5):
        (tmp_path / str(number)).mkdir()
    said = []
    watching.Watcher(str(tmp_path), True, said.append)
    assert said == [{"overflow": True}]


async def test_a_watch_ends_with_its_folder_and_with_the_agents_processes(host):
    await host.exec("mkdir -p folder/below")
    async with host.followed("/files/watch", path="folder") as events:
        await anext(events)
        await host.exec("rm -r folder")
        found = [event async for event in events]
        assert (found[-1][0], found[-1][1]["kind"]) == ("error", "not_found")
    async with host.followed("/files/watch", path=".") as events:
        await anext(events)
        await host.kill_all()
        assert (await anext(events))[0] == "error"


async def test_hanging_up_ends_a_watch_and_watches_are_bounded(one_user):
    async def open_all():
        opened = [one_user.followed("/files/watch", path=".") for _ in range(files.MOST_WATCHES)]
        for each in opened:
            await anext(await each.__aenter__())
        return opened

    opened = await open_all()
    problem = await one_user.call("GET", "/files/watch", params={"path": "."}, status=429)
    assert "16 watches" in problem["detail"]
    for each in opened:
        await each.__aexit__(None, None, None)
    async with asyncio.timeout(20):
        while (await one_user.facts())["fds"] > 40:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    async with one_user.followed("/files/watch", path=".") as events:
        assert (await anext(events))[0] == "ready"


@pytest.mark.parametrize(
    ("parameters", "status"),
    [({"path": "missing"}, 404), ({"path": "file"}, 404), ({"path": ".", "recursive": "2"}, 422), ({}, 422)],
)
async def test_what_cannot_be_watched_is_told(one_user, parameters, status):
    await one_user.exec("touch file")
    await one_user.call("GET", "/files/watch", params=parameters, status=status)


async def test_a_folder_that_the_agent_may_not_read_is_told(two_users):
    (two_users.workspace / "closed").mkdir(mode=0o700)
    await two_users.call("GET", "/files/watch", params={"path": "closed"}, status=403)


def test_a_name_that_is_no_text_is_replaced(tmp_path):
    said = []
    watcher = watching.Watcher(os.fsencode(tmp_path).decode(), True, said.append)
    open(os.fsencode(tmp_path) + b"/\xff", "w").close()  # noqa: SIM115
    watcher._tell(list(watching._events(os.read(watcher._fd, 4096))))
    assert said[0]["path"] == "\ufffd"
