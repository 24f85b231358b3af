"""Paths, listeners, listings and refusals by themselves."""

from __future__ import annotations

import asyncio
import base64
import stat

import pytest
from gymbox.background import Change
from gymbox.e2b.filesystem import entries_in, failure
from gymbox.e2b.paths import check_user, in_sandbox, user_of
from gymbox.e2b.processes import BACKLOG, End, Listener, Output, end_of
from gymbox.e2b.refusals import Away, Code, Refused, TooLarge, Unserved, as_away, refused, told
from gymbox.e2b.watchers import events_of_change
from gymbox.errors import (
    AtCapacity,
    Conflict,
    Forbidden,
    Gone,
    Internal,
    Invalid,
    NotFound,
    SandboxEnded,
    StartFailed,
    TimedOut,
    Unauthorized,
    Unavailable,
)
from gymbox_sandbox.lifecycle import Ended
from gymbox_sandbox.wire import ExecResult

ENDED = Ended(cause="oom_killed", detail="it needed too much")


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("", "/w"),
        (".", "/w"),
        ("a/./b//c", "/w/a/b/c"),
        ("/home/user", "/w"),
        ("/home/user/", "/w"),
        ("/home/user/a", "/w/a"),
        ("/home/users/a", "/home/users/a"),
        ("~", "/w"),
        ("~/a", "/w/a"),
        ("~a", "/w/~a"),
        ("/", "/"),
        ("/etc//passwd", "/etc/passwd"),
        ("../a", "/w/../a"),
        ("-rf", "/w/-rf"),
    ],
)
def test_a_path_is_in_the_workspace_unless_it_says_otherwise(path: str, there: str) -> None:
    assert in_sandbox(path, "/w") == there


def test_what_is_no_path_or_no_user_is_refused() -> None:
    for wrong in ("a\0b", "x" * 4096, "\N{SNOWMAN}" * 1366):
        with pytest.raises(Refused, match="is no path"):
            in_sandbox(wrong, "/w")
    assert user_of("") == user_of("Bearer x") == ""
    assert user_of("Basic " + base64.b64encode(b"user:").decode()) == "user"
    for wrong in ("Basic ***", "Basic /w=="):
        with pytest.raises(Refused, match="wrong"):
            user_of(wrong)
    check_user(None), check_user(""), check_user("user")
    with pytest.raises(Unserved, match="no user 'root'"):
        check_user("root")


async def test_a_command_waits_for_a_listener_that_is_behind_and_for_none_that_has_left() -> None:
    listener = Listener()
    await listener.tell(Output("stdout", b"x" * (BACKLOG + 1)))
    more = asyncio.create_task(listener.tell(Output("stdout", b"more")))
    await asyncio.sleep(0.05)
    assert not more.done()
    assert await listener.next() == Output("stdout", b"x" * (BACKLOG + 1))
    await more
    listener.end(End(0, "exit status 0"))
    assert await listener.next() == Output("stdout", b"more") and await listener.next() == End(0, "exit status 0")
    await listener.tell(Output("stdout", b"x" * (BACKLOG + 1)))
    more = asyncio.create_task(listener.tell(Output("stdout", b"more")))
    await asyncio.sleep(0.05)
    listener.leave()
    await asyncio.wait_for(more, 1)


def test_how_a_command_ended_is_told_as_e2b_does() -> None:
    assert end_of(ExecResult(exit_code=3, duration=1)) == End(3, "exit status 3")
    assert end_of(ExecResult(exit_code=None, signal=9, duration=1)) == End(-1, "signal: killed")
    assert end_of(ExecResult(exit_code=None, signal=15, duration=1)) == End(-1, "signal: 15")
    with pytest.raises(Refused, match="after 2 s") as raised:
        end_of(ExecResult(exit_code=None, timed_out=True, duration=2.0))
    assert raised.value.code == Code.DEADLINE_EXCEEDED


def test_a_listing_is_read_as_it_was_shown_and_refused_where_it_changed_meanwhile() -> None:
    shown = b"/a\0/l\0/gone\0/x\0\x0081a4 5 7 me us\na1ff 1 7 me us\n-\na1ff 1 7 me us\x0041ed\0to\0\0no\nwhere\0end\0"
    file, link, broken = entries_in(shown)
    assert (file.path, file.size, file.modified, file.owner, file.group) == ("/a", 5, 7, "me", "us")
    assert stat.S_ISLNK(link.mode) and (link.followed, link.target) == (0o40755, "to")
    assert (broken.followed, broken.target) == (None, "no\nwhere")
    assert link.message()["type"] == "FILE_TYPE_DIRECTORY" and link.message()["isSymlink"] is True
    assert broken.message()["type"] == "FILE_TYPE_SYMLINK" and "symlinkTarget" not in file.message()
    assert file.message()["modifiedTime"] == "1970-01-01T00:00:07Z" and file.message()["size"] == "5"
    assert entries_in(b"") == []
    for wrong in (shown[:-4], b"/a\0", b"/a\0\0-\n-\0end\0", b"/a\0\x0081a4 x 7 me us\0end\0"):
        with pytest.raises(Conflict, match="changed while"):
            entries_in(wrong)


@pytest.mark.parametrize(
    ("said", "kind"),
    [
        ("rm: cannot remove '/x': Permission denied", Forbidden),
        ("mkdir: can't create directory '/x': Read-only file system", Forbidden),
        ("mkdir: cannot create directory: No space left on device", Conflict),
        ("mv: cannot stat '/f/x': Not a directory", Refused),
        ("find: not found", Internal),
        ("", Internal),
    ],
)
def test_what_a_tool_complains_of_is_told_by_its_kind(said: str, kind: type[Exception]) -> None:
    result = ExecResult(exit_code=1, stderr=base64.b64encode(said.encode()).decode(), duration=1)
    found = failure(result, "/x")
    assert isinstance(found, kind) and said in str(found)


def test_what_takes_too_long_is_told_as_that() -> None:
    found = failure(ExecResult(exit_code=None, timed_out=True, duration=60), "/x")
    assert isinstance(found, Refused) and found.code == Code.DEADLINE_EXCEEDED


def test_changes_are_told_as_e2b_names_them() -> None:
    assert events_of_change(Change("moved", "a", to="b")) == [
        {"name": "a", "type": "EVENT_TYPE_RENAME"},
        {"name": "b", "type": "EVENT_TYPE_CREATE"},
    ]
    assert events_of_change(Change("attributes", "a")) == [{"name": "a", "type": "EVENT_TYPE_CHMOD"}]
    with pytest.raises(Refused, match="missed"):
        events_of_change(Change("overflow"))


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Invalid("x"), 400, "invalid_argument"),
        (Unauthorized("x"), 401, "unauthenticated"),
        (Forbidden("x"), 403, "permission_denied"),
        (NotFound("x"), 404, "not_found"),
        (Conflict("x"), 409, "failed_precondition"),
        (Conflict("x", cause="disk_full"), 507, "failed_precondition"),
        (Gone("x"), 404, "not_found"),
        (AtCapacity("x", retry_after=1.5), 429, "resource_exhausted"),
        (Internal("x"), 500, "internal"),
        (Unavailable("x"), 503, "unavailable"),
        (TimedOut("x"), 504, "deadline_exceeded"),
        (StartFailed(ENDED), 503, "unavailable"),
        (Unserved("x"), 501, "unimplemented"),
        (TooLarge("x"), 413, "resource_exhausted"),
        (Refused(Code.ALREADY_EXISTS, "x"), 409, "already_exists"),
        (Away("x"), 502, "unavailable"),
        (as_away(SandboxEnded(ENDED), "x"), 502, "unavailable"),
        (as_away(Conflict("x", cause="paused"), "x"), 502, "unavailable"),
    ],
)
def test_each_failure_has_a_status_and_a_code(error: Exception, status: int, code: str) -> None:
    found = told(error)
    assert (found.status, found.body["code"], refused(error).code) == (status, status, code)
    if isinstance(error, AtCapacity):
        assert found.headers == {"Retry-After": "2"}
    if isinstance(error, StartFailed):
        assert found.headers == {"Should-Retry": "false"}
    if isinstance(error, Away):
        assert "was not found" in found.message


def test_what_is_a_fault_of_ours_is_told_to_nobody() -> None:
    for tell in (told, refused):
        with pytest.raises(ZeroDivisionError):
            tell(ZeroDivisionError())
