"""Jobs: commands in the background, over HTTP."""

from __future__ import annotations

import asyncio
import base64
import os
import signal

import pytest
from gymbox_sandbox import jobs
from gymbox_sandbox.output_log import OutputLog
from gymbox_sandbox.process_tree import parent_of


async def start(host, id, command, *, status=200, **fields):
    return await host.call("PUT", f"/exec/jobs/{id}", json={"command": command, **fields}, status=status)


async def ended(host, id):
    return await host.call("GET", f"/exec/jobs/{id}", params={"wait": 30})


async def output(host, id, offset=0, **parameters):
    return await host.call("GET", f"/exec/jobs/{id}/output", params={"offset": offset, **parameters})


async def forget(host, *ids):
    for id in ids:
        await host.call("DELETE", f"/exec/jobs/{id}", status=204)


def followed(host, id, offset=0):
    return host.followed(f"/exec/jobs/{id}/events", offset=offset)


async def test_a_job_outlives_its_request_and_tells_its_output_and_exit_code_later(host):
    name = f"later-{host.two_users}"
    with host.gate() as say:
        view = await start(host, name, "echo one; read line < gate; echo $line >&2; exit 3")
        assert (view["status"], view["result"]) == ("running", None)
        say("two")
        view = await ended(host, name)
    assert (view["status"], view["result"]["exit_code"]) == ("ended", 3)
    whole = await output(host, name)
    assert (whole["stdout"], whole["stderr"], whole["ended"], whole["next_offset"]) == ("one\n", "two\n", True, 8)
    rest = await output(host, name, 6, encoding="base64")
    assert (rest["stdout"], base64.b64decode(rest["stderr"])) == ("", b"o\n")
    assert name in [job["id"] for job in (await host.call("GET", "/exec/jobs"))["jobs"]]


async def test_the_same_request_again_finds_the_job_and_another_is_a_conflict(one_user):
    counted = "echo x >> runs; sleep 0.2"
    first, *others = await asyncio.gather(*(start(one_user, "same", counted) for _ in range(8)))
    assert {other["pid"] for other in others} == {first["pid"]}
    await ended(one_user, "same")
    assert (await start(one_user, "same", counted))["status"] == "ended"
    assert (one_user.workspace / "runs").read_text() == "x\n"
    await start(one_user, "same", "other", status=409)
    await forget(one_user, "same", "same")
    await start(one_user, "same", counted, status=410)
    await one_user.call("GET", "/exec/jobs/same", status=410)


async def test_of_much_output_the_end_is_kept_and_the_rest_counted(one_user):
    await start(one_user, "much", "seq 100000", output_limit=1000)
    view = await ended(one_user, "much")
    assert view["output_bytes"] == 588_895
    found = await output(one_user, "much")
    assert found["stdout"].endswith("99999\n100000\n")
    assert 500 < len(found["stdout"]) <= 1000
    assert found["dropped_bytes"] == found["offset"] == view["dropped_bytes"] == 588_895 - len(found["stdout"])


async def test_endless_output_of_a_job_neither_blocks_the_server_nor_grows_it(one_user):
    await start(one_user, "endless", "yes")
    before = (await one_user.facts())["rss"]
    while (await one_user.call("GET", "/exec/jobs/endless"))["output_bytes"] < 50_000_000:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    assert (await one_user.facts())["rss"] < before + (16 << 20)
    view = await one_user.call("POST", "/exec/jobs/endless/kill")
    assert (view["status"], view["result"]["signal"]) == ("ended", signal.SIGKILL)
    await forget(one_user, "endless")


async def test_a_killed_job_leaves_no_process(host):
    name = f"tree-{host.two_users}"
    await start(host, name, "setsid sleep 98 & echo $! > pid; wait")
    await host.until(lambda: (host.workspace / "pid").exists() and (host.workspace / "pid").read_text())
    pid = int((host.workspace / "pid").read_text())
    await host.call("POST", f"/exec/jobs/{name}/kill")
    await host.until(lambda: not host.alive(pid))
    await forget(host, name)


async def test_a_job_is_followed_comes_again_where_it_was_and_gets_input(one_user):
    await start(one_user, "chat", "while read line; do echo got $line; done", stdin_open=True)
    async with followed(one_user, "chat") as events:
        assert (await anext(events))[0] == "started"
        await one_user.call("POST", "/exec/chat/stdin", data=b"a\n", status=204)
        assert await anext(events) == ("stdout", b"got a\n")
    await one_user.call("POST", "/exec/chat/stdin", data=b"b\n", status=204)
    async with followed(one_user, "chat", 6) as events:
        await anext(events)
        assert await anext(events) == ("stdout", b"got b\n")
        await one_user.call("POST", "/exec/chat/stdin", params={"eof": "1"}, status=204)
        name, result = await anext(events)
        assert (name, result["exit_code"]) == ("exit", 0)
    async with followed(one_user, "chat", 3) as events:
        assert [event async for event in events][1] == ("stdout", b" a\ngot b\n")


async def test_a_follower_hears_of_what_was_dropped(one_user):
    await start(one_user, "drop", "seq 1000", output_limit=500)
    view = await ended(one_user, "drop")
    async with followed(one_user, "drop") as events:
        found = [event async for event in events]
    assert found[1] == ("dropped", {"bytes": view["dropped_bytes"]})
    assert found[-1][0] == "exit"


async def test_a_terminal_can_be_attached_again_with_what_it_showed(host):
    name = f"tty-{host.two_users}"
    await start(host, name, ["/bin/sh"], pty={"rows": 10, "columns": 33}, stdin_open=True, env={"PS1": "> "})
    async with followed(host, name) as events:
        await anext(events)
        await host.call("POST", f"/exec/{name}/stdin", data=b"x=5; stty size\n", status=204)
        seen = b""
        while b"10 33" not in seen:
            seen += (await anext(events))[1]
    await host.call("POST", f"/exec/{name}/resize", json={"rows": 20, "columns": 44}, status=204)
    await host.call("POST", f"/exec/{name}/stdin", data=b"stty size; echo kept $x; exit 4\n", status=204)
    async with followed(host, name) as events:
        found = [event async for event in events]
    shown = b"".join(data for stream, data in found if stream == "stdout")
    assert shown.startswith(seen)
    assert b"20 44" in shown and b"kept 5" in shown
    assert found[-1][1]["exit_code"] == 4


async def test_jobs_end_when_the_agents_processes_do(host):
    name = f"verified-{host.two_users}"
    await start(host, name, "sleep 99")
    async with followed(host, name) as events:
        await anext(events)
        await host.kill_all()
        assert (await anext(events))[1]["signal"] == signal.SIGKILL


async def test_a_job_whose_supervisor_is_killed_says_so(one_user):
    pid = (await start(one_user, "orphan", "sleep 99"))["pid"]
    os.kill(parent_of(pid), signal.SIGKILL)
    view = await ended(one_user, "orphan")
    assert (view["result"], view["problem"]["kind"]) == (None, "unavailable")
    async with followed(one_user, "orphan") as events:
        assert [name async for name, _ in events][-1] == "error"


async def test_jobs_are_bounded_and_the_first_that_ended_makes_room(one_user):
    have = len((await one_user.call("GET", "/exec/jobs"))["jobs"])
    for number in range(have):
        await start(one_user, f"short-{number}", "true")
        await ended(one_user, f"short-{number}")
    for number in range(jobs.MOST_JOBS):
        await start(one_user, f"many-{number}", ["sleep", "99"])
    problem = await start(one_user, "one-more", "true", status=429)
    assert "32 jobs" in problem["detail"]
    await one_user.kill_all()
    await ended(one_user, "many-0")
    await start(one_user, "one-more", "true")
    await one_user.call("GET", "/exec/jobs/many-0", status=410)
    await start(one_user, "large", "true", output_limit=8_000_000)
    assert len((await one_user.call("GET", "/exec/jobs"))["jobs"]) < jobs.MOST_JOBS


@pytest.mark.parametrize(
    ("method", "path", "options", "status"),
    [
        ("PUT", "/exec/jobs/bad%20id", {"json": {"command": "true"}}, 422),
        ("PUT", "/exec/jobs/x", {"json": {"command": "true", "stream": True}}, 422),
        ("PUT", "/exec/jobs/x", {"json": {"command": "true", "request_id": "r"}}, 422),
        ("PUT", "/exec/jobs/x", {"json": {"command": "true", "cwd": "/missing"}}, 422),
        ("GET", "/exec/jobs/x", {}, 404),
        ("GET", "/exec/jobs/x/output", {}, 404),
        ("DELETE", "/exec/jobs/x", {}, 404),
        ("GET", "/exec/jobs/known?wait=soon", {}, 422),
        ("GET", "/exec/jobs/known/output?offset=-1", {}, 422),
        ("GET", "/exec/jobs/known/output?encoding=latin", {}, 422),
    ],
)
async def test_what_is_wrong_about_a_job_is_told(one_user, method, path, options, status):
    await start(one_user, "known", "true")
    problem = await one_user.call(method, path, status=status, **options)
    assert problem["detail"]


def test_a_log_of_many_tiny_pieces_is_as_small_as_one_of_large_ones():
    log = OutputLog(10_000)
    for _ in range(5_000):
        log.add("stdout", b"x")
        log.add("stderr", b"y")
    assert log.end == 10_000
    start, pieces = log.since(0)
    assert start == log.begin == 10_000 - len(pieces)
    assert len(pieces) < 100


def test_a_log_that_keeps_nothing_counts():
    log = OutputLog(0)
    log.add("stdout", b"x" * 1000)
    assert (log.begin, log.end, log.since(0)) == (1000, 1000, (1000, []))
