"""Hang-up: work ends with its caller."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from gymbox_sandbox.hang_up import unless_hung_up
from starlette.requests import ClientDisconnect


class Caller:
    """What a server tells of a request whose body has been read."""

    def __init__(self) -> None:
        self.gone = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.gone.wait()
        return {"type": "http.disconnect"}


async def a_result() -> str:
    await asyncio.sleep(0)
    return "done"


async def a_failure() -> str:
    await asyncio.sleep(0)
    raise LookupError("nothing there")


async def endless(began: asyncio.Event, ended: list[str]) -> None:
    try:
        began.set()
        await asyncio.Event().wait()
    finally:
        await asyncio.sleep(0)
        ended.append("cleaned up")


async def test_work_that_ends_first_is_answered():
    assert await unless_hung_up(Caller().receive, a_result()) == "done"


async def test_work_that_fails_fails():
    with pytest.raises(LookupError, match="nothing there"):
        await unless_hung_up(Caller().receive, a_failure())


async def test_a_caller_who_hangs_up_cancels_the_work_and_waits_for_its_cleaning_up():
    caller, began, ended = Caller(), asyncio.Event(), list[str]()
    call = asyncio.create_task(unless_hung_up(caller.receive, endless(began, ended)))
    await began.wait()
    caller.gone.set()
    with pytest.raises(ClientDisconnect):
        await call
    assert ended == ["cleaned up"]


async def test_the_task_lives_on_after_a_caller_has_hung_up():
    caller = Caller()
    caller.gone.set()
    with pytest.raises(ClientDisconnect):
        await unless_hung_up(caller.receive, asyncio.Event().wait())
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None and task.cancelling() == 0


async def test_what_the_work_says_when_it_is_cancelled_is_said_to_nobody():
    caller = Caller()

    async def fails_at_the_end() -> None:
        try:
            caller.gone.set()
            await asyncio.Event().wait()
        finally:
            raise LookupError("while it ends")

    with pytest.raises(ClientDisconnect):
        await unless_hung_up(caller.receive, fails_at_the_end())


async def test_a_server_that_fails_to_listen_counts_as_a_caller_who_hung_up():
    async def receive() -> dict[str, Any]:
        raise OSError("the line is broken")

    with pytest.raises(ClientDisconnect):
        await unless_hung_up(receive, asyncio.Event().wait())


async def test_a_hang_up_in_the_moment_in_which_the_work_ends_cancels_nothing_after_it():
    caller = Caller()

    async def ends_as_the_caller_goes() -> str:
        caller.gone.set()
        return "done"

    assert await unless_hung_up(caller.receive, ends_as_the_caller_goes()) == "done"
    await asyncio.sleep(0.01)


async def test_a_server_that_stops_cancels_the_work_too():
    caller, began, ended = Caller(), asyncio.Event(), list[str]()
    call = asyncio.create_task(unless_hung_up(caller.receive, endless(began, ended)))
    await began.wait()
    call.cancel()
    caller.gone.set()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert ended == ["cleaned up"]
