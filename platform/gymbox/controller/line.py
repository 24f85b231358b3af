"""Line: who is next for one of a bounded number of places, so that it is fair between runs.

Three priorities share the places as 100 : 10 : 1, and the runs of one priority as their shares say. A place that is
free goes to the priority that has the fewest for its weight, and there to the run that has the fewest for its share;
where that is equal, to the one that was given the fewest so far. Within a run, first come, first served. What one does
not use, the others do: who is alone has everything. Nobody starves: who has nothing is before whoever has something,
and of those who have nothing, each has its turn.

Sources: weighted max-min fairness over what is held, as in Hadoop's Fair Scheduler; priorities as weighted levels that
lend each other what they do not use, as in Kubernetes' API Priority and Fairness; turns by start-time fair queueing
(Goyal, Vin, Cheng, SIGCOMM 1996).
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gymbox_sandbox.lifecycle import CreateSandbox, Priority

WEIGHTS: dict[Priority, float] = {"high": 100, "normal": 10, "low": 1}


@dataclass(frozen=True, slots=True)
class Claim:
    """On whose account a place is asked for."""

    run: str = ""
    priority: Priority = "normal"
    share: float = 1.0

    @classmethod
    def of(cls, request: CreateSandbox) -> Claim:
        return cls(request.run, request.priority, request.share)


@dataclass(eq=False, slots=True)
class Ticket:
    """A place, or the wait for one; `FairLine.leave` gives back either."""

    account: Account
    number: int
    granted: asyncio.Future[None]
    """Done once it has a place; whoever awaits it may be cancelled, and then has to leave."""
    has_place: bool = False
    left: bool = False


@dataclass(eq=False, slots=True)
class Party:
    """One of those who share places."""

    weight: float
    held: int = 0
    served: float = 0.0
    """Places that it was given for its weight, as virtual time: who comes anew begins where the others are."""

    @property
    def need(self) -> tuple[float, float]:
        """The smallest is next."""
        return self.held / self.weight, self.served


@dataclass(eq=False, slots=True)
class Account(Party):
    """One run in the line."""

    claim: Claim = field(default_factory=Claim)
    waiting: deque[Ticket] = field(default_factory=deque)


@dataclass(eq=False, slots=True)
class Level(Party):
    """The runs of one priority."""

    accounts: dict[str, Account] = field(default_factory=dict)
    now: float = 0.0
    """Virtual time among its runs."""

    def waiting(self) -> list[Account]:
        return [account for account in self.accounts.values() if account.waiting]


class Full(Exception):
    """As many wait as may."""


class FairLine:
    """Places, and who waits for them.

    Args:
        capacity: places.
        longest: tickets that may wait; a run that has none waiting may always have one.
    """

    def __init__(self, capacity: int, *, longest: int | None = None) -> None:
        self.capacity = capacity
        self.held = 0
        self._longest = longest
        self._waiting = 0
        self._numbers = itertools.count()
        self._levels = {priority: Level(weight) for priority, weight in WEIGHTS.items()}
        self._now = 0.0
        """Virtual time among the levels."""

    def __len__(self) -> int:
        """How many wait."""
        return self._waiting

    def accounts(self) -> Iterator[Account]:
        """The runs that have or wait for places."""
        for level in self._levels.values():
            yield from level.accounts.values()

    def ask(self, claim: Claim, *, bounded: bool = True) -> Ticket:
        """Stand in line; where there is room, the ticket has its place at once.

        Raises:
            Full: as many wait as may.
        """
        account = self._account(claim)
        free = self.held < self.capacity and not self._waiting
        if bounded and not free and account.waiting and self._longest is not None and self._waiting >= self._longest:
            raise Full
        ticket, level = self._ticket(account), self._levels[claim.priority]
        if not level.waiting():
            level.served = max(level.served, self._now)
        if not account.waiting:
            account.served = max(account.served, level.now)
        account.waiting.append(ticket)
        self._waiting += 1
        self._grant()
        return ticket

    def take(self, claim: Claim) -> Ticket:
        """A place at once, whether there is room or not: for what is there already."""
        ticket = self._ticket(self._account(claim))
        self._give(ticket)
        return ticket

    def leave(self, ticket: Ticket) -> None:
        """Give the place back, or no longer wait for one; safe to call twice."""
        account = ticket.account
        if ticket.left:
            return
        ticket.left = True
        if not ticket.has_place:
            account.waiting.remove(ticket)
            self._waiting -= 1
            ticket.granted.cancel()
        else:
            for party in (account, self._levels[account.claim.priority]):
                party.held -= 1
            self.held -= 1
        if not account.held and not account.waiting:
            del self._levels[account.claim.priority].accounts[account.claim.run]
        self._grant()

    @asynccontextmanager
    async def place(self, claim: Claim) -> AsyncIterator[None]:
        """A place for as long as the block lasts; entering waits for it."""
        ticket = self.ask(claim, bounded=False)
        try:
            await ticket.granted
            yield
        finally:
            self.leave(ticket)

    def _ticket(self, account: Account) -> Ticket:
        return Ticket(account, next(self._numbers), asyncio.get_running_loop().create_future())

    def _account(self, claim: Claim) -> Account:
        """The run's account, by what it claims now."""
        level = self._levels[claim.priority]
        account = level.accounts.get(claim.run)
        if account is None:
            account = level.accounts[claim.run] = Account(claim.share, served=level.now)
        account.claim, account.weight = claim, claim.share
        return account

    def _grant(self) -> None:
        while self.held < self.capacity and self._waiting:
            account = self._next()
            ticket = account.waiting.popleft()
            self._waiting -= 1
            self._give(ticket)

    def _next(self) -> Account:
        level = min((each for each in self._levels.values() if each.waiting()), key=lambda each: each.need)
        account = min(level.waiting(), key=lambda each: each.need)
        self._now, level.now = level.served, account.served
        for party in (level, account):
            party.served += 1 / party.weight
        return account

    def _give(self, ticket: Ticket) -> None:
        for party in (ticket.account, self._levels[ticket.account.claim.priority]):
            party.held += 1
        self.held += 1
        ticket.has_place = True
        if not ticket.granted.done():
            ticket.granted.set_result(None)
