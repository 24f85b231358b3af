"""Admission: where in line a request stands, and when to come back; and how long each phase took."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

import pytest
from gymbox.controller.line import Claim, FairLine
from gymbox.controller.rates import Durations, Rhythm
from gymbox.controller.settings import ControllerSettings
from gymbox.errors import AtCapacity
from gymbox_sandbox.lifecycle import CreateSandbox

from .conftest import until


def asked(id: str, **fields: Any) -> CreateSandbox:
    return CreateSandbox(id=id, environment="alone", **fields)


def test_by_default_about_three_start_at_once_for_two_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(2)))
    assert ControllerSettings().most_starting == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert ControllerSettings().most_starting == 2
    assert ControllerSettings(max_starting=9).most_starting == 9


def test_what_was_never_seen_is_unknown():
    assert Durations().mean is None
    rhythm = Rhythm()
    rhythm.beat()
    assert rhythm.interval is None
    rhythm.beat()
    assert rhythm.interval is not None


async def test_the_position_in_line_counts_those_before_and_shares():
    line = FairLine(1)
    line.ask(Claim("holder"))
    mine = [line.ask(Claim("a")) for _ in range(3)]
    assert [line.ahead_of(ticket) for ticket in mine] == [0, 1, 2]
    assert line.behind_all(Claim("a")) == 3

    for _ in range(30):
        line.ask(Claim("b"))
    assert line.ahead_of(mine[2]) == 5  # of two equal runs each has every second place
    assert line.behind_all(Claim("c", share=2)) == 1  # half of the places
    assert line.behind_all(Claim("c", priority="high")) == 0
    assert line.behind_all(Claim("c", priority="low")) == 10
    assert line.behind_all(Claim("c", share=0.001)) == 33  # everybody there


async def test_a_ticket_of_several_places_waits_for_all_and_is_given_back_one_by_one():
    line = FairLine(4)
    first = line.ask(Claim("a"), size=3)
    assert first.granted.done()
    second = line.ask(Claim("b"), size=2)
    third = line.ask(Claim("c"))
    assert not second.granted.done() and not third.granted.done()

    singles = line.split(first)
    line.leave(first)  # its places are others' now
    assert (len(singles), line.held) == (3, 3)
    line.leave(singles[0])
    assert second.granted.done() and not third.granted.done()
    line.leave(second)
    assert third.granted.done()
    assert line.held == 3


async def test_who_is_refused_is_told_where_it_would_stand_and_when_to_come_back(controller):
    async with controller(max_sandboxes=1) as sandboxes:
        await sandboxes.create(asked("s0"))
        with pytest.raises(AtCapacity) as refused:
            await sandboxes.create(asked("s1"))
        assert refused.value.retry_after == 1
        assert refused.value.extra["queue"] == {"position": 0, "expected_seconds": None}

        for number in range(3):
            await sandboxes.delete(f"s{number}")
            await sandboxes.create(asked(f"s{number + 1}"))
        waiting = [asyncio.create_task(sandboxes.create(asked(f"w{number}", patience=10))) for number in range(2)]
        await until(lambda: sandboxes.arrivals.waiting == 2)
        with pytest.raises(AtCapacity) as refused:
            await sandboxes.create(asked("s9"))
        queue = refused.value.extra["queue"]
        assert queue["position"] == 2 and queue["expected_seconds"] > 0
        assert refused.value.retry_after == max(0.5, queue["expected_seconds"])
        assert refused.value.to_wire()["queue"] == queue

        [line] = sandboxes.arrivals.view()
        assert line.next is not None and line.next.position == 0 and line.next.expected_seconds > 0
        for task in waiting:
            task.cancel()


async def test_one_in_line_to_be_started_is_shown_where_it_stands(controller, provider):
    async with controller(max_starting=1) as sandboxes:
        await sandboxes.create(asked("s0"))
        provider.may_start.clear()
        for number in range(1, 4):
            await sandboxes.create(asked(f"s{number}", wait=False))
        await until(lambda: len(provider.starts) == 2)

        views = [sandboxes.views.of(sandboxes.get(f"s{number}")) for number in range(4)]
        assert [view.queue and view.queue.position for view in views] == [None, None, 0, 1]
        assert views[2].queue.expected_seconds < views[3].queue.expected_seconds
        await sandboxes.delete("s3")
        assert sandboxes.views.of(sandboxes.get("s3")).queue is None
        provider.may_start.set()


# --- phases


async def test_the_wait_for_a_place_counts_as_queued(controller):
    async with controller(max_sandboxes=1) as sandboxes:
        await sandboxes.create(asked("s0"))
        waiting = asyncio.create_task(sandboxes.create(asked("s1", patience=10)))
        await until(lambda: sandboxes.arrivals.waiting)
        began = time.monotonic()
        await asyncio.sleep(0.05)
        waited = time.monotonic() - began
        await sandboxes.delete("s0")

        phases = sandboxes.views.of(await waiting).phases
        assert round(waited, 6) <= phases.queued <= phases.ready
        assert phases.claimed is None


async def test_the_reset_is_learnt_from_the_server(controller, provider):
    async with controller() as sandboxes:
        sandbox = await sandboxes.create(asked("s0"))
        await sandboxes.views.learn_resets([sandbox])
        assert sandboxes.views.of(sandbox).phases.reset is None

        provider.containers[sandbox.container.id].sessions.add("")
        sandbox.created -= 1
        began = time.monotonic()
        await sandboxes.views.learn_resets(sandboxes.all())
        # the server says that it was half a second ago
        earliest, latest = (round(now - 0.5 - sandbox.created, 6) for now in (began, time.monotonic()))
        assert earliest <= sandboxes.views.of(sandbox).phases.reset <= latest


async def test_a_server_that_does_not_tell_its_resets_leaves_them_unknown(controller, provider):
    async with controller() as sandboxes:
        sandbox = await sandboxes.create(asked("s0"))
        await provider.containers[sandbox.container.id]._runner.cleanup()
        await sandboxes.views.learn_resets([sandbox])
        assert sandboxes.views.of(sandbox).phases.reset is None
