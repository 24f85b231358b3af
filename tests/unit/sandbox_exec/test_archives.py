"""Archives: trees and parts of them, as they are or not at all, and never out of where they belong."""

from __future__ import annotations

import io
import os
import tarfile

import pytest

from tests.unit.sandbox_exec.transfers import get, member, put, tar_of


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


def with_headers(kind=tarfile.REGTYPE, **headers):
    """A file or link with these pax headers; `_` in their names is a dot."""
    info = member("a", kind)
    info.pax_headers = {name.replace("_", "."): value for name, value in headers.items()}
    return [(info, b"x")]


LONG_NAME = (member("././@LongLink", tarfile.GNUTYPE_LONGNAME), b"a\0")
BAD_HEADERS = {
    "sparse map of no numbers": with_headers(GNU_sparse_map="a,b"),
    "sparse size of no number": with_headers(GNU_sparse_size="x", GNU_sparse_map="0,1"),
    "sparse version": with_headers(GNU_sparse_major="1", GNU_sparse_minor="0"),
    "endless time": with_headers(mtime="inf"),
    "no time": with_headers(mtime="nan"),
    "late time": with_headers(mtime="1e300"),
    "nul in a name": with_headers(path="a\0b"),
    "nul in a link": [with_headers(tarfile.SYMTYPE, linkpath="a\0b")[0][0]],
    "name of names": [LONG_NAME] * 5000,
    "long name": with_headers(path="x/" * 3000 + "x"),
}


@pytest.mark.parametrize("members", BAD_HEADERS.values(), ids=BAD_HEADERS)
async def test_an_archive_with_impossible_headers_is_refused_in_one_line(one_user, members):
    status, problem = await put(one_user, "into", tar_of(*members), "/archive")
    assert (status, problem["cause"]) == (422, "bad_archive")
    assert "Traceback" not in problem["detail"] and len(problem["detail"]) < 1000


@pytest.mark.parametrize("route", ["/files", "/archive"])
async def test_a_path_that_is_too_long_is_refused_and_a_deep_one_made(one_user, route):
    data = tar_of(("a", b"x"))
    status, problem = await put(one_user, "x/" * 3000 + "x", data, route)
    assert (status, problem["kind"]) == (422, "invalid")
    assert "File name too long" in problem["detail"]
    assert not (one_user.workspace / "x").exists()
    assert (await put(one_user, "x/" * 1500 + "x", data, route))[0] == 200
    await one_user.exec("rm -rf x")


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
