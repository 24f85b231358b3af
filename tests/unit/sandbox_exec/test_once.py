"""Once: the same request is carried out once, however often it is sent."""

from __future__ import annotations

import asyncio

import pytest
from gymbox_sandbox import once
from gymbox_sandbox.once import Forgotten, Once
from gymbox_sandbox.problems import AtCapacity, Gone, Unavailable
from gymbox_sandbox.wire import ExecRequest, ExecResult

REQUEST = ExecRequest(command="x")


async def test_a_retry_while_the_first_still_runs_and_afterwards_gets_its_answer(host):
    command = "echo x >> runs; read line < gate; cat runs"
    with host.gate() as say:
        first = asyncio.create_task(host.exec(command, request_id="r"))
        await host.until((host.workspace / "runs").exists)
        first.cancel()
        second = asyncio.create_task(host.exec(command, request_id="r"))
        assert (await host.exec("other", request_id="r"))["kind"] == "conflict"
        say("on")
        assert (await second)["stdout"] == "x\n"
    assert (await host.exec(command, request_id="r"))["stdout"] == "x\n"
    (host.workspace / "runs").unlink()


async def test_what_was_refused_before_it_ran_may_be_tried_again(one_user):
    fields = {"request_id": "folder", "cwd": "later"}
    assert (await one_user.exec("pwd", **fields))["kind"] == "invalid"
    (one_user.workspace / "later").mkdir()
    assert (await one_user.exec("pwd", **fields))["exit_code"] == 0


async def test_a_request_id_is_for_a_plain_exec(one_user):
    assert "job" in (await one_user.exec("true", request_id="s", stream=True))["detail"]
    assert (await one_user.exec("true", request_id="bad id"))["kind"] == "invalid"


def answering(calls, answer="done"):
    async def work(begun):
        begun()
        calls.append(1)
        return ExecResult(exit_code=0, duration=0, stdout=answer)

    return work


async def test_an_answer_that_is_no_longer_kept_is_gone_and_never_made_again(monkeypatch):
    monkeypatch.setattr(once, "_MOST", 3)
    works, calls = Once(), []
    for number in range(5):
        await works.run(f"r{number}", REQUEST, answering(calls))
    with pytest.raises(Gone):
        await works.run("r0", REQUEST, answering(calls))
    await works.run("r4", REQUEST, answering(calls))
    assert len(calls) == 5


async def test_answers_are_bounded_in_bytes(monkeypatch):
    monkeypatch.setattr(once, "_MOST_BYTES", 1000)
    works, calls = Once(), []
    for number in range(4):
        await works.run(f"r{number}", REQUEST, answering(calls, "x" * 400))
    with pytest.raises(Gone):
        await works.run("r0", REQUEST, answering(calls))
    assert (await works.run("r3", REQUEST, answering(calls))).stdout == "x" * 400


async def test_no_more_than_so_many_are_under_way(monkeypatch):
    monkeypatch.setattr(once, "_MOST", 1)
    works, go = Once(), asyncio.Event()

    async def work(begun):
        begun()
        await go.wait()
        raise Unavailable("it was killed")

    first = asyncio.create_task(works.run("a", REQUEST, work))
    await asyncio.sleep(0)
    with pytest.raises(AtCapacity):
        await works.run("b", REQUEST, work)
    go.set()
    with pytest.raises(Unavailable):
        await first
    with pytest.raises(Unavailable):  # it had begun, so it is not tried again
        await works.run("a", REQUEST, answering([]))


def test_what_was_forgotten_is_bounded(monkeypatch):
    monkeypatch.setattr(once, "_MOST_FORGOTTEN", 2)
    forgotten = Forgotten()
    for name in "abc":
        forgotten.add(name)
    assert [name in forgotten for name in "abc"] == [False, True, True]
