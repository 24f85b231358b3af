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
from collections.abc import AsyncIterator, Callable, Iterator
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
    size: int = 1
    """Places that it stands for, given all at once."""
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

    def ask(self, claim: Claim, *, size: int = 1, bounded: bool = True) -> Ticket:
        """Stand in line; where there is room, the ticket has its place at once.

        Args:
            size: places that are to be given all at once. While they are waited for, nobody behind is served, or a
                large ticket would starve.

        Raises:
            Full: as many wait as may.
        """
        account = self._account(claim)
        free = self.held + size <= self.capacity and not self._waiting
        if bounded and not free and account.waiting and self._longest is not None and self._waiting >= self._longest:
            raise Full
        ticket, level = self._ticket(account, size), self._levels[claim.priority]
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
                party.held -= ticket.size
            self.held -= ticket.size
        if not account.held and not account.waiting:
            del self._levels[account.claim.priority].accounts[account.claim.run]
        self._grant()

    @asynccontextmanager
    async def place(self, claim: Claim, told: Callable[[Ticket], None] = lambda ticket: None) -> AsyncIterator[None]:
        """A place for as long as the block lasts; entering waits for it, and `told` hears with which ticket."""
        ticket = self.ask(claim, bounded=False)
        try:
            told(ticket)
            await ticket.granted
            yield
        finally:
            self.leave(ticket)

    def split(self, ticket: Ticket) -> list[Ticket]:
        """The places of a ticket that has them, each with a ticket of its own."""
        found = [self._ticket(ticket.account) for _ in range(ticket.size)]
        for each in found:
            each.has_place = True
            each.granted.set_result(None)
        ticket.left = True
        return found

    def ahead(self, claim: Claim, own: int) -> int:
        """About how many tickets have their turn before one that has `own` of its run before it: every run moves on by
        its share of the places that become free, until it has nobody waiting."""
        level = self._levels[claim.priority]
        runs = {each.claim.run: each.weight for each in level.waiting()} | {claim.run: claim.share}
        levels = {id(each): each.weight for each in self._levels.values() if each.waiting()} | {
            id(level): level.weight
        }
        part = claim.share / sum(runs.values()) * level.weight / sum(levels.values())
        return min(self._waiting, max(own, round((own + 1) / part) - 1))

    def ahead_of(self, ticket: Ticket) -> int:
        """The same for a ticket that waits."""
        return self.ahead(ticket.account.claim, ticket.account.waiting.index(ticket))

    def behind_all(self, claim: Claim) -> int:
        """The same for one that would come now."""
        account = self._levels[claim.priority].accounts.get(claim.run)
        return self.ahead(claim, 0 if account is None else len(account.waiting))

    def _ticket(self, account: Account, size: int = 1) -> Ticket:
        return Ticket(account, next(self._numbers), asyncio.get_running_loop().create_future(), size)

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
            level, account = self._next()
            if self.held + account.waiting[0].size > self.capacity:
                return
            ticket = account.waiting.popleft()
            self._waiting -= 1
            self._now, level.now = level.served, account.served
            for party in (level, account):
                party.served += ticket.size / party.weight
            self._give(ticket)

    def _next(self) -> tuple[Level, Account]:
        level = min((each for each in self._levels.values() if each.waiting()), key=lambda each: each.need)
        return level, min(level.waiting(), key=lambda each: each.need)

    def _give(self, ticket: Ticket) -> None:
        for party in (ticket.account, self._levels[ticket.account.claim.priority]):
            party.held += ticket.size
        self.held += ticket.size
        ticket.has_place = True
        if not ticket.granted.done():
            ticket.granted.set_result(None)
