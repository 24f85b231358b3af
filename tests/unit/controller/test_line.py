from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from gymbox.controller.line import Claim, FairLine, Full, Ticket


def waiting(line: FairLine, claim: Claim, number: int) -> list[Ticket]:
    return [line.ask(claim) for _ in range(number)]


def served(line: FairLine, held: list[Ticket], rounds: int) -> Counter[str]:
    """How often each run has a place, looked at after each turn in which the oldest place is given back."""
    seen: Counter[str] = Counter()
    everyone = list(held)
    for _ in range(rounds):
        oldest = min(
            (each for each in everyone if each.granted.done() and not each.left), key=lambda each: grants[each]
        )
        line.leave(oldest)
        note(everyone)
        seen.update(each.account.claim.run for each in everyone if each.granted.done() and not each.left)
    return seen


grants: dict[Ticket, int] = {}


def note(tickets: list[Ticket]) -> None:
    for each in tickets:
        if each.granted.done() and each not in grants:
            grants[each] = len(grants)


async def test_who_is_alone_has_everything() -> None:
    line = FairLine(3)
    tickets = waiting(line, Claim("a"), 5)

    assert [each.granted.done() for each in tickets] == [True, True, True, False, False]
    assert (line.held, len(line)) == (3, 2)


async def test_within_a_run_it_is_first_come_first_served() -> None:
    line = FairLine(1)
    first, second, third = waiting(line, Claim("a"), 3)

    line.leave(first)
    assert second.granted.done() and not third.granted.done()


@pytest.mark.parametrize(("big", "small", "ratio"), [(1.0, 1.0, 1.0), (3.0, 1.0, 3.0), (1.0, 4.0, 0.25)])
async def test_places_are_held_in_the_proportion_of_the_shares(big: float, small: float, ratio: float) -> None:
    line = FairLine(20)
    tickets = waiting(line, Claim("big", share=big), 300) + waiting(line, Claim("small", share=small), 300)
    note(tickets)
    served(line, tickets, 100)  # until what the first run had at the start is given back

    seen = served(line, tickets, 100)
    assert seen["big"] / seen["small"] == pytest.approx(ratio, rel=0.15)


async def test_a_late_small_run_gets_every_place_that_is_free_until_it_has_its_part() -> None:
    line = FairLine(4)
    early = waiting(line, Claim("early"), 1000)
    late = waiting(line, Claim("late"), 2)

    line.leave(early[0])
    line.leave(early[1])
    assert all(each.granted.done() for each in late)


async def test_priorities_share_as_weighted_levels_however_many_runs_each_has_and_none_starves() -> None:
    line = FairLine(12)
    tickets = waiting(line, Claim("urgent", "high"), 300)
    for number in range(20):
        tickets += waiting(line, Claim(f"usual-{number}"), 20)
    tickets += waiting(line, Claim("night", "low"), 20)
    note(tickets)
    served(line, tickets, 12)

    seen = served(line, tickets, 60)
    usual = sum(count for run, count in seen.items() if run.startswith("usual"))
    assert seen["night"] > 0 and usual > 0
    assert seen["urgent"] > 4 * usual


@pytest.mark.parametrize("ratio", [1, 3])
async def test_where_there_are_more_runs_than_places_each_has_its_turn(ratio: int) -> None:
    line = FairLine(1)
    tickets = waiting(line, Claim("early", share=ratio), 60) + waiting(line, Claim("late"), 60)
    tickets += waiting(line, Claim("night", "low"), 60)
    note(tickets)

    seen = served(line, tickets, 44)
    assert seen["early"] / seen["late"] == pytest.approx(ratio, rel=0.15)
    assert seen["night"] == pytest.approx(4, abs=1)


async def test_what_a_priority_does_not_use_goes_to_the_others() -> None:
    line = FairLine(4)
    tickets = waiting(line, Claim("night", "low"), 4)

    assert all(each.granted.done() for each in tickets)


async def test_the_line_is_bounded_but_no_run_is_locked_out_of_it() -> None:
    line = FairLine(1, longest=2)
    waiting(line, Claim("a"), 3)

    with pytest.raises(Full):
        line.ask(Claim("a"))
    assert not line.ask(Claim("b")).granted.done()
    with pytest.raises(Full):
        line.ask(Claim("b"))
    assert not line.ask(Claim("b"), bounded=False).granted.done()


async def test_who_waits_no_longer_is_out_of_the_line_and_leaving_twice_is_fine() -> None:
    line = FairLine(1)
    first, second, third = waiting(line, Claim("a"), 3)

    line.leave(second)
    line.leave(second)
    line.leave(first)
    line.leave(first)
    assert third.granted.done() and not third.granted.cancelled()
    assert (line.held, len(line)) == (1, 0)
    line.leave(third)
    assert list(line.accounts()) == []


async def test_a_waiter_that_is_cancelled_gives_its_place_on() -> None:
    line = FairLine(1)
    began = asyncio.Event()

    async def work() -> None:
        async with line.place(Claim("a")):
            began.set()
            await asyncio.sleep(60)

    first, second = asyncio.create_task(work()), asyncio.create_task(work())
    await began.wait()
    second.cancel()
    await asyncio.wait({second})
    assert len(line) == 0

    third = asyncio.create_task(work())
    began.clear()
    first.cancel()
    await began.wait()
    third.cancel()
    await asyncio.wait({first, third})
    assert line.held == 0


async def test_a_place_that_is_granted_just_as_its_waiter_is_cancelled_is_not_lost() -> None:
    line = FairLine(1)
    held = line.ask(Claim("a"))

    async def work() -> None:
        async with line.place(Claim("b")):
            raise AssertionError("it was cancelled before")

    waiter = asyncio.create_task(work())
    await asyncio.sleep(0)
    waiter.cancel()
    line.leave(held)
    await asyncio.wait({waiter})

    assert waiter.cancelled() and line.held == 0


async def test_what_is_there_already_counts_though_there_is_no_room() -> None:
    line = FairLine(1)
    first, second = line.take(Claim("a")), line.take(Claim("a"))
    third = line.ask(Claim("a"))

    line.leave(first)
    assert line.held == 1 and not third.granted.done()
    line.leave(second)
    assert third.granted.done()
