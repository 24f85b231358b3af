"""Checks with E2B's SDK, without an event loop; run by test_sdk.py, in an interpreter that has it."""

from __future__ import annotations

import io
import os
import time
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from e2b import (
    AuthenticationException,
    CommandExitException,
    FileNotFoundException,
    InvalidArgumentException,
    NotFoundException,
    Sandbox,
    SandboxException,
    SandboxNotFoundException,
    SandboxQuery,
    SandboxState,
    TimeoutException,
)
from e2b.exceptions import SandboxNotRunningException
from e2b.sandbox.commands.command_handle import PtySize
from e2b.sandbox.filesystem.filesystem import FileType
from e2b.sandbox.filesystem.watch_handle import FilesystemEventType


@pytest.fixture(scope="module")
def box() -> Iterator[Sandbox]:
    with Sandbox.create(envs={"OF_ALL": "all"}, metadata={"who": "a b&c"}) as sandbox:
        yield sandbox


@pytest.fixture
def folder(box: Sandbox) -> str:
    """A new folder in the sandbox."""
    name = f"f-{uuid.uuid4().hex[:8]}"
    assert box.files.make_dir(name)
    return name


# --- the life of a sandbox


def test_a_sandbox_lives_from_create_to_kill() -> None:
    sandbox = Sandbox.create("other", timeout=60, metadata={"n": "1"})
    assert sandbox.is_running()
    info = sandbox.get_info()
    assert (info.sandbox_id, info.template_id, info.name) == (sandbox.sandbox_id, "other", "other")
    assert (info.cpu_count, info.memory_mb, info.state) == (2, 512, SandboxState.RUNNING)
    assert info.metadata == {"n": "1"} and 50 < (info.end_at - info.started_at).total_seconds() < 70
    sandbox.set_timeout(600)
    assert 580 < sandbox.get_info().end_at.timestamp() - time.time() < 620
    assert sandbox.kill() is True
    assert sandbox.is_running() is False
    assert sandbox.kill() is False and Sandbox.kill(sandbox.sandbox_id) is False
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_info()
    with pytest.raises(SandboxNotFoundException):
        sandbox.set_timeout(10)
    with pytest.raises(SandboxNotFoundException):
        Sandbox.connect(sandbox.sandbox_id)
    with pytest.raises(SandboxNotRunningException):
        sandbox.commands.run("true")
    with pytest.raises(SandboxNotRunningException):
        sandbox.files.read("x")


def test_a_sandbox_ends_when_its_timeout_is_over_also_in_the_midst_of_a_command() -> None:
    sandbox = Sandbox.create(timeout=3)
    with pytest.raises(TimeoutException):
        sandbox.commands.run("sleep 60")
    assert sandbox.is_running() is False
    with pytest.raises(SandboxNotFoundException):
        sandbox.get_info()


def test_sandboxes_are_listed_in_pages_and_found_by_what_they_are(box: Sandbox) -> None:
    mark = uuid.uuid4().hex
    made = [Sandbox.create("other", metadata={"mark": mark, "n": str(n)}) for n in range(3)]
    try:
        pages = Sandbox.list(query=SandboxQuery(metadata={"mark": mark}), limit=2, order="asc")
        first, second = pages.next_items(), pages.next_items()
        assert [each.sandbox_id for each in [*first, *second]] == [each.sandbox_id for each in made]
        assert len(first) == 2 and not pages.has_next
        newest = Sandbox.list(query=SandboxQuery(template="other", state=[SandboxState.RUNNING])).next_items()
        assert [each.sandbox_id for each in newest] == [each.sandbox_id for each in reversed(made)]
        assert Sandbox.list(query=SandboxQuery(state=[SandboxState.PAUSED])).next_items() == []
        odd = Sandbox.list(query=SandboxQuery(metadata={"who": "a b&c"})).next_items()
        assert [each.sandbox_id for each in odd] == [box.sandbox_id]
        later = SandboxQuery(started_after=made[2].get_info().started_at)
        assert [each.sandbox_id for each in Sandbox.list(query=later).next_items()] == [made[2].sandbox_id]
        with pytest.raises(SandboxException, match="token is not known"):
            Sandbox.list(next_token="other").next_items()
    finally:
        for each in made:
            each.kill()


def test_another_program_connects_to_a_sandbox_by_its_id(box: Sandbox) -> None:
    before = box.get_info().end_at
    again = Sandbox.connect(box.sandbox_id, timeout=10)
    # a shorter time than it has changes nothing
    assert abs((again.get_info().end_at - before).total_seconds()) < 1
    again.files.write("connected.txt", "yes")
    assert box.files.read("connected.txt") == "yes"
    Sandbox.connect(box.sandbox_id, timeout=4000)
    assert (box.get_info().end_at - before).total_seconds() > 3000


def test_a_snapshot_holds_files_and_sandboxes_begin_with_it() -> None:
    with Sandbox.create() as sandbox:
        sandbox.files.write("kept.txt", "kept")
        saved = sandbox.create_snapshot()
        assert saved.snapshot_id in [each.snapshot_id for each in sandbox.list_snapshots().next_items()]
        with Sandbox.create(saved.snapshot_id) as other:
            assert other.files.read("kept.txt") == "kept"
        with pytest.raises(SandboxException, match="501.*holds files, no processes"):
            sandbox.create_snapshot(mode="full")
        forks: Any = sandbox.fork(count=2)
        for fork in forks:
            assert fork.sandbox_id != sandbox.sandbox_id and fork.files.read("kept.txt") == "kept"
            fork.kill()
    assert Sandbox.delete_snapshot(saved.snapshot_id) is True
    assert Sandbox.delete_snapshot(saved.snapshot_id) is False


def test_a_create_with_an_idempotency_key_is_done_once() -> None:
    key = uuid.uuid4().hex
    first, second = (Sandbox.create(idempotency_key=key) for _ in range(2))
    assert first.sandbox_id == second.sandbox_id
    with pytest.raises(SandboxException, match="409"):
        Sandbox.create("other", idempotency_key=key)
    first.kill()
    with pytest.raises(SandboxException, match="409.*has ended"):
        Sandbox.create(idempotency_key=key)


def test_what_is_not_served_is_refused_by_name(box: Sandbox) -> None:
    asked: list[dict[str, Any]] = [
        {"allow_internet_access": True},
        {"lifecycle": {"on_timeout": "pause"}},
        {"volume_mounts": {"/data": "volume"}},
        {"network": {"deny_out": ["0.0.0.0/0"]}},
    ]
    for each in asked:
        with pytest.raises(SandboxException, match=f"501.*{next(iter(each))[:5]}"):
            Sandbox.create(**each)
    with pytest.raises(SandboxException, match="404.*there is no template 'nonesuch'"):
        Sandbox.create("nonesuch")
    with pytest.raises(SandboxException, match="501.*/metrics is not served here"):
        box.get_metrics()
    with pytest.raises(SandboxException, match="unimplemented.*no user 'root'|no user 'root'"):
        box.commands.run("true", user="root")
    with pytest.raises(SandboxException, match="501.*no user 'root'"):
        box.files.read("x", user="root")
    with pytest.raises(SandboxException, match="501.*metadata"):
        box.files.write("x", "x", metadata={"a": "b"})
    with pytest.raises(SandboxException, match="501.*provider process cannot be paused"):
        box.pause()
    with pytest.raises(SandboxException, match="501.*keeps its processes"):
        box.pause(mode="filesystem")
    with pytest.raises(SandboxException, match="501.*reboot"):
        Sandbox.connect(box.sandbox_id, on_resume="reboot")
    with Sandbox.create(allow_internet_access=False) as sandbox:  # as it is anyway
        assert sandbox.is_running()


def test_a_wrong_key_and_a_wrong_token_are_refused(box: Sandbox) -> None:
    with pytest.raises(AuthenticationException):
        Sandbox.create(api_key="another")
    with pytest.raises(AuthenticationException):
        Sandbox.list(api_key="another").next_items()
    other = Sandbox.connect(box.sandbox_id)
    with Sandbox.create() as foreign:
        headers = other.connection_config.sandbox_headers
        assert headers["X-Access-Token"] == box.connection_config.sandbox_headers["X-Access-Token"]
        mine = other.connection_config._ConnectionConfig__extra_sandbox_headers
        mine["X-Access-Token"] = foreign.connection_config.sandbox_headers["X-Access-Token"]
        fooled = Sandbox(
            sandbox_id=box.sandbox_id,
            sandbox_domain=None,
            envd_version=box._envd_version,
            envd_access_token="wrong",
            traffic_access_token=None,
            connection_config=other.connection_config,
        )
        for call in (
            lambda: fooled.commands.run("true"),
            lambda: fooled.commands.list(),
            lambda: fooled.files.read("x"),
            lambda: fooled.files.write("x", "x"),
            lambda: fooled.files.list("."),
            lambda: fooled.is_running(),
        ):
            with pytest.raises(AuthenticationException):
                call()


# --- commands


def test_a_command_says_what_it_printed_and_how_it_ended(box: Sandbox) -> None:
    told: list[str] = []
    result = box.commands.run(
        "echo out; echo err >&2; echo $OF_ALL $OF_ONE; pwd; echo ~",
        envs={"OF_ONE": "one"},
        on_stdout=told.append,
        on_stderr=lambda text: told.append(f"! {text}"),
    )
    home = box.files.get_info(".").path
    assert result.stdout == f"out\nall one\n{home}\n{home}\n" and result.stderr == "err\n"
    assert result.exit_code == 0 and result.error is None
    assert "! err\n" in told and "".join(text for text in told if text[0] != "!") == result.stdout
    with pytest.raises(CommandExitException) as raised:
        box.commands.run("echo before; echo why >&2; exit 7")
    assert (raised.value.exit_code, raised.value.stdout, raised.value.stderr) == (7, "before\n", "why\n")
    assert raised.value.error == "exit status 7"


def test_a_command_runs_where_it_is_told_to(box: Sandbox, folder: str) -> None:
    home = box.files.get_info(".").path
    for cwd in (folder, f"/home/user/{folder}", f"~/{folder}", f"{home}/{folder}"):
        assert box.commands.run("pwd", cwd=cwd).stdout == f"{home}/{folder}\n"
    assert box.commands.run("pwd", cwd="/tmp").stdout == "/tmp\n"
    with pytest.raises(InvalidArgumentException):
        box.commands.run("pwd", cwd="/nowhere")


def test_output_of_any_size_comes_whole_and_bytes_that_are_no_text_are_replaced(box: Sandbox) -> None:
    result = box.commands.run("seq 1 2000000 | head -c 12000000; printf '\\377' >&2", timeout=120)
    assert result.stdout == "".join(f"{n}\n" for n in range(1, 1_700_000))[:12_000_000]
    assert result.stderr == "\N{REPLACEMENT CHARACTER}"
    assert box.commands.run("for i in 1 2 3; do printf '\\303'; sleep 0.1; printf '\\251'; done").stdout == "é" * 3


def test_a_command_in_the_background_is_found_again_followed_and_killed(box: Sandbox) -> None:
    handle = box.commands.run("echo begun; sleep 60", background=True)
    found = next(process for process in box.commands.list() if process.pid == handle.pid)
    assert (found.cmd, found.args[:2], found.tag) == ("/bin/bash", ["-l", "-c"], None)
    handle.disconnect()
    again = box.commands.connect(handle.pid)
    assert again.pid == handle.pid
    assert box.commands.kill(handle.pid) is True and box.commands.kill(handle.pid) is False
    with pytest.raises(CommandExitException) as raised:
        again.wait()
    assert (raised.value.exit_code, raised.value.error) == (-1, "signal: killed")
    with pytest.raises(NotFoundException):
        box.commands.connect(handle.pid)
    assert handle.pid not in [process.pid for process in box.commands.list()]


def test_who_hangs_up_leaves_the_command_alone(box: Sandbox, folder: str) -> None:
    handle = box.commands.run(f"sleep 1; echo done >{folder}/done", background=True)
    handle.disconnect()
    for _ in range(50):
        if box.files.exists(f"{folder}/done"):
            break
        time.sleep(0.1)
    assert box.files.read(f"{folder}/done") == "done\n"


def test_a_command_that_takes_too_long_is_killed(box: Sandbox, folder: str) -> None:
    before = time.monotonic()
    with pytest.raises(TimeoutException):
        box.commands.run(f"sleep 3; touch {folder}/late", timeout=1)
    assert time.monotonic() - before < 2.5
    time.sleep(3)
    assert not box.files.exists(f"{folder}/late")
    handle = box.commands.run("sleep 60", background=True, timeout=0)
    with pytest.raises(TimeoutException):  # of who listens, and not of the command
        box.commands.connect(handle.pid, timeout=0.5).wait()
    assert handle.kill() is True


def test_input_is_written_to_a_command_and_closed(box: Sandbox) -> None:
    handle = box.commands.run("cat; echo end", background=True, stdin=True)
    box.commands.send_stdin(handle.pid, "one\n")
    handle.send_stdin(b"two\n")
    box.commands.stream_input(handle.pid, ["three\n", b"four\n"])
    box.commands.close_stdin(handle.pid)
    assert handle.wait().stdout == "one\ntwo\nthree\nfour\nend\n"
    assert box.commands.run("cat; echo none").stdout == "none\n"
    for write in (box.commands.send_stdin, lambda pid, data: box.commands.stream_input(pid, [data])):
        with pytest.raises(NotFoundException):
            write(handle.pid, "late")
    silent = box.commands.run("sleep 60", background=True)
    with pytest.raises(SandboxException, match="without stdin"):
        silent.send_stdin("x")
    silent.kill()


def test_a_terminal_is_written_to_and_resized(box: Sandbox) -> None:
    handle = box.pty.create(PtySize(rows=30, cols=100), envs={"PS1": "$ "}, timeout=30)
    box.pty.send_stdin(handle.pid, b"stty size\n")
    box.pty.resize(handle.pid, PtySize(rows=20, cols=60))
    box.pty.stream_input(handle.pid, ["stty size; echo $TER", "M $((6 * 7))\n", "exit 3\n"])
    seen = bytearray()
    with pytest.raises(CommandExitException) as raised:
        handle.wait(on_pty=seen.extend)
    assert raised.value.exit_code == 3
    assert b"20 60" in seen and b"xterm-256color 42" in seen
    other = box.pty.create(PtySize(rows=30, cols=100))
    assert box.pty.kill(other.pid) is True
    with pytest.raises(InvalidArgumentException):
        box.pty.create(PtySize(rows=0, cols=0))


# --- files


def test_files_are_written_and_read_in_every_way(box: Sandbox, folder: str) -> None:
    path, blob = f"{folder}/a/b.bin", os.urandom(3_000_000)
    info = box.files.write(path, blob)
    assert (info.name, info.type, info.path.endswith(path)) == ("b.bin", FileType.FILE, True)
    assert box.files.read(path, format="bytes") == blob
    assert b"".join(box.files.read(path, format="stream")) == blob
    assert box.files.read(path, format="bytes", gzip=True) == blob
    for options in ({"use_octet_stream": True}, {"gzip": True}, {"use_octet_stream": False}, {}):
        box.files.write(path, "größer\n", **options)
        assert box.files.read(path) == "größer\n"
    box.files.write(path, io.BytesIO(blob))
    assert box.files.read(path, format="bytes") == blob
    box.files.write(path, iter([b"one", b"two"]), gzip=True)
    assert box.files.read(path) == "onetwo"
    box.files.write(path, "")
    assert box.files.read(path) == "" and box.files.read(path, format="bytes") == b""
    absolute = box.files.get_info(path).path
    for same in (f"/home/user/{path}", f"~/{path}", absolute):
        box.files.write(same, same)
        assert box.files.read(path) == same


def test_several_files_are_written_at_once_under_odd_names(box: Sandbox, folder: str) -> None:
    names = [f'{folder}/quo"te \\ %41.txt', f"{folder}/é\N{SNOWMAN}.txt", f"{folder}/deep/er/--b.txt"]
    entries: list[Any] = [{"path": name, "data": f"of {name}\r\n--x"} for name in names]
    for options in ({}, {"use_octet_stream": True}):
        written = box.files.write_files(entries, **options)
        assert [info.name for info in written] == [name.rpartition("/")[2] for name in names]
        assert [box.files.read(name) for name in names] == [f"of {name}\r\n--x" for name in names]


def test_folders_are_listed_as_deep_as_one_asks(box: Sandbox, folder: str) -> None:
    box.files.write(f"{folder}/one.txt", "12345")
    box.files.write(f"{folder}/sub/line\nbreak.txt", "")
    box.commands.run("ln -s one.txt link; ln -s sub into; ln -s nowhere broken; chmod 600 one.txt", cwd=folder)
    found = {entry.name: entry for entry in box.files.list(folder)}
    assert list(found) == ["broken", "into", "link", "one.txt", "sub"]
    one = found["one.txt"]
    assert (one.type, one.size, one.mode, one.permissions) == (FileType.FILE, 5, 0o600, "-rw-------")
    assert one.path == box.files.get_info(f"{folder}/one.txt").path
    assert abs(one.modified_time.timestamp() - time.time()) < 60
    assert (found["sub"].type, found["link"].type, found["link"].symlink_target) == (
        FileType.DIR,
        FileType.SYMLINK,
        "one.txt",
    )
    assert one.owner and one.group and one.symlink_target is None
    assert "line\nbreak.txt" not in found
    assert "line\nbreak.txt" in [entry.name for entry in box.files.list(folder, depth=2)]
    box.commands.run("mkdir many; cd many; touch $(seq 1 3000)", cwd=folder)
    assert len(box.files.list(f"{folder}/many")) == 3000
    with pytest.raises(FileNotFoundException):
        box.files.list(f"{folder}/none")
    with pytest.raises(InvalidArgumentException):
        box.files.list(f"{folder}/one.txt")
    with pytest.raises(InvalidArgumentException):
        box.files.list(folder, depth=0)


def test_files_are_found_made_moved_and_removed(box: Sandbox, folder: str) -> None:
    assert box.files.make_dir(f"{folder}/x/y") is True and box.files.make_dir(f"{folder}/x/y") is False
    box.files.write(f"{folder}/x/y/f", "f")
    assert box.files.exists(f"{folder}/x") and not box.files.exists(f"{folder}/z")
    moved = box.files.rename(f"{folder}/x/y/f", f"{folder}/new/g")
    assert moved.name == "g" and not box.files.exists(f"{folder}/x/y/f")
    box.files.write(f"{folder}/h", "h")
    box.files.rename(f"{folder}/new/g", f"{folder}/h")
    assert box.files.read(f"{folder}/h") == "f"
    box.files.remove(f"{folder}/x")
    assert not box.files.exists(f"{folder}/x")
    box.files.remove(f"{folder}/x")
    for call in (
        lambda: box.files.read(f"{folder}/none"),
        lambda: box.files.get_info(f"{folder}/none"),
        lambda: box.files.rename(f"{folder}/none", "n"),
    ):
        with pytest.raises(FileNotFoundException):
            call()
    with pytest.raises(InvalidArgumentException):
        box.files.read(folder)
    with pytest.raises(InvalidArgumentException):
        box.files.make_dir(f"{folder}/h")
    with pytest.raises(SandboxException):
        box.files.rename(f"{folder}/h", folder)


def test_what_the_user_may_not_do_is_refused_and_a_path_leads_nowhere_but_in_the_sandbox(box: Sandbox) -> None:
    with pytest.raises(SandboxException, match="(?i)permission|read-only"):
        box.files.make_dir("/usr/x")
    with pytest.raises(SandboxException, match="(?i)permission|read-only"):
        box.files.write("/usr/x", "x")
    with pytest.raises(SandboxException, match="(?i)permission|read-only"):
        box.files.remove("/etc/passwd")
    inside = box.commands.run("cat /etc/passwd").stdout
    assert box.files.read("../" * 40 + "etc/passwd") == inside
    with pytest.raises(InvalidArgumentException):
        box.files.list("x\0y")
    with pytest.raises(InvalidArgumentException):
        box.files.read("x" * 5000)
    box.commands.run("ln -s /etc/passwd out")
    assert box.files.read("out") == inside


def test_changes_in_a_folder_are_told_to_who_asks(box: Sandbox, folder: str) -> None:
    watch = box.files.watch_dir(folder, recursive=True, include_entry=True)
    box.files.make_dir(f"{folder}/sub")
    time.sleep(0.5)
    box.commands.run("echo x >sub/new; mv sub/new sub/other; rm sub/other", cwd=folder)
    box.files.write(f"{folder}/stays", "stays")
    time.sleep(0.5)
    events = watch.get_new_events()
    told = [(event.name, event.type) for event in events]
    for name, kind in (("sub/new", "CREATE"), ("sub/new", "RENAME"), ("sub/other", "CREATE"), ("sub/other", "REMOVE")):
        assert (name, FilesystemEventType[kind]) in told
    assert any(event.entry is not None and event.entry.name == "stays" for event in events)
    assert watch.get_new_events() == []
    watch.stop()
    with pytest.raises(SandboxException):
        watch.get_new_events()
    with pytest.raises(NotFoundException):
        box.files.watch_dir(f"{folder}/none")
