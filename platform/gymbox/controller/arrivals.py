"""Arrivals: requests for sandboxes that stand in line for a place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from gymbox_sandbox.lifecycle import CreateSandbox, QueuePlace, QueueView

from gymbox.controller.line import Account, Claim, FairLine, Full, Ticket
from gymbox.controller.rates import Rhythm
from gymbox.errors import AtCapacity, Conflict, Problem

FULL_RETRY = 1.0
"""Seconds after which to come back, where nothing is known of when a place will be free."""
SOONEST_RETRY, LATEST_RETRY = 0.5, 60.0
"""The same, at least and at most, where something is."""


def essence[Request: CreateSandbox](request: Request, id: str) -> Request:
    """The request without how its caller waits, which makes no other sandbox."""
    return request.model_copy(update={"id": id, "wait": True, "patience": 0})


@dataclass(eq=False, slots=True)
class Arrival:
    """A request in line for a place."""

    request: CreateSandbox
    ticket: Ticket
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """It has its place, or waits no longer."""
    refused: Problem | None = None

    def send_away(self, problem: Problem) -> None:
        """Refuse it, also where it was given its place a moment ago and nobody has heard of that yet."""
        self.refused = problem
        if not self.ticket.granted.done():
            self.ticket.granted.set_exception(problem)


class Arrivals:
    """The places of a controller, and who waits for one; of requests with the same id, one stands in line for all.

    Args:
        places: sandboxes that may live at once.
        longest: requests that may wait.
        seconds_a_start: tells how long a start takes, to say when who waits will have a sandbox.
        refused: hears of each request that finds no place.
    """

    def __init__(
        self,
        places: int,
        longest: int,
        seconds_a_start: Callable[[], float | None] = lambda: None,
        refused: Callable[[], object] = lambda: None,
    ) -> None:
        self._line = FairLine(places, longest=longest)
        self._seconds_a_start = seconds_a_start
        self._refused = refused
        self._freed = Rhythm()
        self._turns = 0
        """How many have had to wait so far."""
        self._waiting: dict[str, Arrival] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._waiting

    @property
    def held(self) -> int:
        """Places that sandboxes have."""
        return self._line.held

    @property
    def waiting(self) -> int:
        """Requests in line."""
        return len(self._line)

    async def admitted[Found, Allowed](
        self,
        id: str,
        request: CreateSandbox,
        *,
        found: Callable[[], Found | None],
        check: Callable[[], Allowed],
        make: Callable[[Allowed, Ticket], Found],
        bounded: bool,
        size: int = 1,
    ) -> Found:
        """What is there already, or is made once there is a place for it, within the request's patience.

        Args:
            check: raises where it may not be made; asked before the wait and after it, as much may happen meanwhile.
            make: takes what `check` has said and the place, which is its own from then on.

        Raises:
            AtCapacity: there was no place in time.
            Problem: see `place`, and what `check` raises.
        """
        try:
            async with asyncio.timeout(request.patience if request.wait else 0) as patience:
                while (there := found()) is None:
                    allowed, turns = check(), self._turns
                    place = await self.place(id, request, bounded=bounded, size=size)
                    if place is not None:
                        try:
                            return make(allowed if turns == self._turns else check(), place)
                        except BaseException:
                            self.leave(place)
                            raise
                return there
        except Full as error:
            raise self._full(request, size) from error
        except TimeoutError as error:
            if not patience.expired():
                raise
            raise self._full(request, size) from error

    def _full(self, request: CreateSandbox, size: int) -> AtCapacity:
        self._refused()
        most, place = self._line.capacity, self.newcomer(request)
        detail = f"all {most} sandboxes are in use (max_sandboxes)"
        if size > 1:
            free = max(0, most - self._line.held)
            detail = f"{size} places are needed at once, and {free} of {most} are free (max_sandboxes)"
        expected = place.expected_seconds
        retry = FULL_RETRY if expected is None else min(max(expected, SOONEST_RETRY), LATEST_RETRY)
        return AtCapacity(detail, retry_after=retry, queue=place.model_dump())

    async def place(self, id: str, request: CreateSandbox, *, bounded: bool, size: int = 1) -> Ticket | None:
        """A place for this request, or `size` of them at once, to be given back by `leave`; None: another request of
        its id has had its turn, so see what has become of it.

        Raises:
            Conflict: one of its id waits that asks for something else.
            Full: as many wait as may, and it is `bounded`.
            Problem: it was sent away.
        """
        other = self._waiting.get(id)
        if other is not None:
            if other.request != essence(request, id):
                raise Conflict(f"sandbox {id} waits for a place and was asked for with another request")
            await other.over.wait()
            if other.refused is not None:
                raise other.refused
            return None
        ticket = self._line.ask(Claim.of(request), bounded=bounded, size=size)
        if ticket.granted.done():
            return ticket
        self._turns += 1
        arrival = self._waiting[id] = Arrival(essence(request, id), ticket)
        try:
            await ticket.granted
            if arrival.refused is not None:
                raise arrival.refused
        except BaseException:
            self._line.leave(ticket)
            raise
        finally:
            del self._waiting[id]
            arrival.over.set()
        return ticket

    def take(self, request: CreateSandbox) -> Ticket:
        """A place for what is there already, whether there is room or not."""
        return self._line.take(Claim.of(request))

    def leave(self, ticket: Ticket) -> None:
        """Give a place back; safe to call twice."""
        if ticket.has_place and not ticket.left:
            self._freed.beat()
        self._line.leave(ticket)

    def split(self, ticket: Ticket) -> list[Ticket]:
        """The places of a ticket that has several, each with a ticket of its own."""
        return self._line.split(ticket)

    def newcomer(self, request: CreateSandbox) -> QueuePlace:
        """Where a request that comes now would stand."""
        return self._estimate(self._line.behind_all(Claim.of(request)))

    def _estimate(self, ahead: int) -> QueuePlace:
        interval, start = self._freed.interval, self._seconds_a_start()
        expected = None if interval is None else round((ahead + 1) * interval + (start or 0), 6)
        return QueuePlace(position=ahead, expected_seconds=expected)

    def send_away(self, id: str, problem: Problem) -> None:
        """Refuse the request of this id, and whoever else waits for the same."""
        self._waiting[id].send_away(problem)

    def send_all_away(self, problem: Problem) -> None:
        """Refuse everyone who waits."""
        for arrival in self._waiting.values():
            arrival.send_away(problem)

    def view(self) -> Iterator[QueueView]:
        """The runs that have places or wait for them, those that wait longest first."""
        for account in sorted(self._line.accounts(), key=_since):
            yield QueueView(
                run=account.claim.run,
                priority=account.claim.priority,
                share=account.claim.share,
                places=account.held,
                waiting=len(account.waiting),
                next=self._estimate(self._line.ahead_of(account.waiting[0])) if account.waiting else None,
            )


def _since(account: Account) -> float:
    return account.waiting[0].number if account.waiting else float("inf")
