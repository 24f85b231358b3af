"""Files: transfers as the agent, streamed, whole or not at all, and never out of the tree."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import tarfile

import pytest
from gymbox_sandbox import files
from gymbox_sandbox.command import Ended


async def put(host, path, data, route="/files", **parameters):
    async with host.client.put(route, params={"path": str(path), **parameters}, data=data) as answer:
        return answer.status, await answer.json()


async def get(host, path, route="/files"):
    async with host.client.get(route, params={"path": str(path)}) as answer:
        return answer.status, await answer.read() if answer.status == 200 else await answer.json()


def tar_of(*members, form=tarfile.PAX_FORMAT):
    """A tar of (name, content) or TarInfo members."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=form) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            elif isinstance(member[0], tarfile.TarInfo):
                member[0].size = len(member[1])
                archive.addfile(member[0], io.BytesIO(member[1]))
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return buffer.getvalue()


def member(name, kind, link="", size=0):
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, size
    return info


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


async def test_a_tree_comes_back_as_it_was(host):
    await host.exec(
        "mkdir -p tree/sub/empty; echo a > tree/a; chmod 755 tree/a; ln -s ../a tree/sub/link; ln tree/a tree/hard;"
        " ln -s sub tree/folder-link; mkfifo tree/fifo; truncate -s 1M tree/sub/sparse"
    )
    status, data = await get(host, "tree", "/archive")
    assert status == 200
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        names = archive.getnames()
        assert sorted(names) == sorted([".", "a", "hard", "folder-link", "sub", "sub/empty", "sub/link", "sub/sparse"])
        assert {info.uid for info in archive} == {0}
    assert await put(host, "copy/of it", data, "/archive") == (200, {"files": 8})
    copy = host.workspace / "copy/of it"
    assert (copy / "a").read_text() == "a\n" and (copy / "a").stat().st_mode & 0o777 == 0o755
    assert (copy / "hard").stat().st_ino == (copy / "a").stat().st_ino
    assert os.readlink(copy / "sub/link") == "../a" and os.readlink(copy / "folder-link") == "sub"
    assert (copy / "sub/sparse").stat().st_size == 1 << 20 and (copy / "sub/empty").is_dir()
    assert (copy / "a").stat().st_mtime == pytest.approx((host.workspace / "tree/a").stat().st_mtime, abs=1)
    assert (await put(host, "copy/of it", data, "/archive"))[0] == 200  # again, over what is there


async def test_of_a_tree_only_what_matches_comes(host):
    folder = host.workspace
    names = ("a.txt", "b.py", "src/c.py", "src/deep/er/d.py", "src/deep/e.txt", "out/f", "out/g/h", "other/i.py")
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / "out/empty").mkdir()
    (folder / "out/inside").symlink_to("../a.txt")
    (folder / "out/outside").symlink_to("/etc/passwd")
    (folder / "src/up.py").symlink_to("../../x")

    async def names_of(*patterns):
        return sorted(await chosen(host, *patterns))

    assert await names_of("a.txt", "missing", "*.md") == ["a.txt"]
    assert await names_of("*") == sorted(
        ["a.txt", "b.py", "other", "other/i.py", "out", "out/empty", "out/f", "out/g", "out/g/h", "out/inside", "src"]
        + ["src/c.py", "src/deep", "src/deep/e.txt", "src/deep/er", "src/deep/er/d.py"]
    )
    assert await names_of("*.py", "out") == ["b.py", "out", "out/empty", "out/f", "out/g", "out/g/h", "out/inside"]
    assert await names_of("src/**/*.py") == ["src/c.py", "src/deep/er/d.py"]
    assert await names_of("**/[hi]*") == ["other/i.py", "out/g/h", "out/inside"]


async def chosen(host, *patterns):
    """Content of what these patterns match in the workspace, by name; None for what is no file."""
    parameters = [("path", "."), *(("only", pattern) for pattern in patterns)]
    async with host.client.get("/archive", params=parameters) as answer:
        assert answer.status == 200, await answer.text()
        with tarfile.open(fileobj=io.BytesIO(await answer.read())) as archive:
            return {info.name: archive.extractfile(info).read() if info.isreg() else None for info in archive}


@pytest.mark.parametrize("closed", ["tree/closed", "tree/file", "tree/sub/file"])
async def test_a_tree_that_cannot_be_read_whole_is_refused_with_the_path(two_users, closed):
    await two_users.exec(f"mkdir -p tree/closed tree/sub; touch tree/file tree/sub/file; chmod 000 {closed}")
    status, problem = await get(two_users, "tree", "/archive")
    assert (status, problem["kind"]) == (403, "forbidden")
    assert f"{closed}: Permission denied" in problem["detail"]
    await two_users.exec(f"chmod 755 {closed}")


DEEP = "import os\nfor _ in range(1200): os.mkdir('deep'), os.chdir('deep')\nopen('out.txt', 'w').close()"


async def test_a_tree_that_is_too_deep_to_be_read_is_refused(host):
    await host.exec(["python3", "-c", DEEP])
    status, problem = await get(host, ".", "/archive")
    assert (status, problem["kind"]) == (422, "invalid")
    assert "File name too long" in problem["detail"] and len(problem["detail"]) < 1000
    await host.exec("rm -rf deep")


async def test_what_cannot_be_read_does_not_keep_the_rest_of_what_matches_from_coming(two_users):
    await two_users.exec(["python3", "-c", DEEP])
    await two_users.exec("mkdir -p elsewhere out/closed; touch out/closed/a.txt; chmod 000 elsewhere out/closed")
    await two_users.exec("echo yes > out/a.txt; echo no > out/b.txt; chmod 000 out/b.txt")
    assert await chosen(two_users, "out/*.txt") == {"out/a.txt": b"yes\n"}
    assert await chosen(two_users, "**/*.txt") == {"out/a.txt": b"yes\n"}
    assert await chosen(two_users, "out") == {"out": None, "out/closed": None, "out/a.txt": b"yes\n"}
    await two_users.exec("chmod -R 755 out elsewhere; rm -rf deep")


async def test_of_a_workspace_that_the_agent_closed_to_itself_nothing_matches(two_users):
    await two_users.exec("echo yes > a.txt; chmod 000 .")
    assert await chosen(two_users, "*.txt") == {}
    two_users.workspace.chmod(0o755)


async def test_what_changes_while_it_is_read_does_not_break_the_archive_of_what_matches(host):
    await host.exec("truncate -s 16M a.bin; head -c 16000000 /dev/urandom > b.bin; echo last > c.bin")
    async with host.client.get("/archive", params={"path": ".", "only": "*.bin"}) as answer:
        await host.exec("truncate -s 0 a.bin b.bin")
        with tarfile.open(fileobj=io.BytesIO(await answer.read())) as archive:
            assert [info.name for info in archive] == ["a.bin", "b.bin", "c.bin"]
            assert archive.extractfile("c.bin").read() == b"last\n"


async def test_names_and_times_at_the_limits_come_out_and_go_in(host):
    name = "\N{BOX DRAWINGS HEAVY HORIZONTAL}" * 84
    await host.exec(f"echo yes > {name}; touch -d @9223372036854775807 {name}")
    async with host.client.get("/archive", params={"path": ".", "only": "*"}) as answer:
        data = await answer.read()
    assert await put(host, "copy", data, "/archive") == (200, {"files": 1})
    assert (host.workspace / "copy" / name).read_text() == "yes\n"


async def test_a_tree_that_is_none_is_told(host):
    await host.exec("touch file")
    assert (await get(host, "missing", "/archive"))[0] == 404
    assert (await get(host, "file", "/archive"))[0] == 404


def sparse_bomb():
    """A member of few bytes that says to be a file of a terabyte."""
    info = member("bomb", tarfile.REGTYPE)
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "bomb",
        "GNU.sparse.realsize": str(1 << 40),
    }
    return info, b"1\n1099511627776\n0\n".ljust(512, b"\0")


ESCAPES = {
    "parent": [("../escaped", b"x")],
    "hidden parent": [("a/../../escaped", b"x")],
    "absolute": [("/tmp/gymbox-escaped", b"x")],
    "link out": [member("link", tarfile.SYMTYPE, "../..")],
    "absolute link": [member("link", tarfile.SYMTYPE, "/etc")],
    "through a link": [member("link", tarfile.SYMTYPE, "."), ("link/file", b"x")],
    "two-step link": [
        member("d/up", tarfile.SYMTYPE, ".."),
        member("out", tarfile.SYMTYPE, "d/up/.."),
        ("out/escaped", b"x"),
    ],
    "hard link out": [member("link", tarfile.LNKTYPE, "../secret")],
    "absolute hard link": [member("link", tarfile.LNKTYPE, "/etc/passwd")],
    "hard link to a link": [member("s", tarfile.SYMTYPE, "x"), member("link", tarfile.LNKTYPE, "s")],
    "hard link to nothing": [member("link", tarfile.LNKTYPE, ".")],
    "fifo": [member("fifo", tarfile.FIFOTYPE)],
    "device": [member("device", tarfile.CHRTYPE)],
    "no name": [("", b"x")],
    "through a file": [("a", b"x"), ("a/b", b"x")],
    "too large": [member("huge", tarfile.REGTYPE, size=65 << 20)],
    "sparse bomb": [sparse_bomb()],
    "too many": [(str(number), b"") for number in range(201)],
}


@pytest.mark.parametrize("members", ESCAPES.values(), ids=ESCAPES)
async def test_an_archive_that_would_escape_or_flood_is_refused(one_user, members):
    (one_user.folder / "secret").write_text("secret")
    outside = sorted(os.listdir(one_user.folder))
    data = tar_of(*members)
    if members[0].size if isinstance(members[0], tarfile.TarInfo) else False:
        data = members[0].tobuf() + bytes(1024)
    status, problem = await put(one_user, "into", data, "/archive")
    assert (status, problem["kind"]) == (422, "invalid")
    assert problem["cause"] in ("bad_archive", "too_large")
    assert sorted(os.listdir(one_user.folder)) == outside
    assert not os.path.exists("/tmp/gymbox-escaped")  # noqa: ASYNC240


async def test_a_hard_link_to_what_is_missing_is_refused(one_user):
    data = tar_of(member("link", tarfile.LNKTYPE, "missing"))
    assert (await put(one_user, "into", data, "/archive"))[0] == 404


async def test_a_hard_link_to_itself_changes_nothing(one_user):
    data = tar_of(("a", b"x"), member("a", tarfile.LNKTYPE, "./a"))
    assert await put(one_user, "into", data, "/archive") == (200, {"files": 2})


async def test_links_of_the_archive_that_stay_inside_are_made(one_user):
    data = tar_of(("a/b/file", b"x"), member("a/b/up", tarfile.SYMTYPE, "../../a/b/file"))
    assert (await put(one_user, "into", data, "/archive"))[0] == 200
    assert (one_user.workspace / "into/a/b/up").read_text() == "x"


async def test_set_uid_bits_are_dropped(one_user):
    info = tarfile.TarInfo("program")
    info.mode = 0o6777
    await put(one_user, ".", tar_of(info), "/archive")
    assert (one_user.workspace / "program").stat().st_mode & 0o7777 == 0o755


@pytest.mark.parametrize("data", [b"", b"no tar at all" * 100, tar_of(("a", bytes(5000)))[:3000]])
async def test_what_is_no_whole_archive_is_refused(one_user, data):
    status, problem = await put(one_user, "into", data, "/archive")
    assert (status, problem["cause"]) == (422, "bad_archive")


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
