"""Arrivals: requests for sandboxes that stand in line for a place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field

from gymbox_sandbox.lifecycle import CreateSandbox, QueueView

from gymbox.controller.line import Account, Claim, FairLine, Ticket
from gymbox.errors import Conflict, Problem


def essence(request: CreateSandbox, id: str) -> CreateSandbox:
    """The request without how its caller waits, which makes no other sandbox."""
    return request.model_copy(update={"id": id, "wait": True, "patience": 0})


@dataclass(eq=False, slots=True)
class Arrival:
    """A request in line for a place."""

    request: CreateSandbox
    ticket: Ticket
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """It has its place, or waits no longer."""

    def send_away(self, problem: Problem) -> None:
        """Refuse it, unless it has its place already."""
        if not self.ticket.granted.done():
            self.ticket.granted.set_exception(problem)


class Arrivals:
    """The places of a controller, and who waits for one; of requests with the same id, one stands in line for all.

    Args:
        places: sandboxes that may live at once.
        longest: requests that may wait.
    """

    def __init__(self, places: int, longest: int) -> None:
        self._line = FairLine(places, longest=longest)
        self._waiting: dict[str, Arrival] = {}

    def __contains__(self, id: str) -> bool:
        return id in self._waiting

    async def place(self, id: str, request: CreateSandbox, *, bounded: bool) -> Ticket | None:
        """A place for this request, to be given back by `leave`; None: another request of its id has had its turn, so
        see what has become of it.

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
            return None
        ticket = self._line.ask(Claim.of(request), bounded=bounded)
        if ticket.granted.done():
            return ticket
        arrival = self._waiting[id] = Arrival(essence(request, id), ticket)
        try:
            await ticket.granted
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
        self._line.leave(ticket)

    def send_away(self, id: str, problem: Problem) -> None:
        """Refuse the request of this id."""
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
            )


def _since(account: Account) -> float:
    return account.waiting[0].number if account.waiting else float("inf")
