"""Groups: sandboxes that are asked for together, and are there all or not at all.

All places are given at once, so two groups never wait for each other's. One start that fails ends the others. Once all
are ready that is noted, before it is answered: of a group without that note the next controller removes what it finds.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gymbox_sandbox.lifecycle import CreateGroup, CreateSandbox, Ended, GroupView

from gymbox.controller.arrivals import essence
from gymbox.controller.records import Records
from gymbox.controller.sandbox import GROUP_LABEL, Sandbox, no_own_labels
from gymbox.errors import Conflict, Gone, Invalid, NotFound, Problem, SandboxEnded, Unavailable

if TYPE_CHECKING:
    from gymbox.controller.line import Ticket
    from gymbox.controller.sandboxes import Sandboxes
    from gymbox.environment import Environment


@dataclass(eq=False, slots=True)
class Group:
    """One group. Of one that was adopted, sandboxes that had ended before are missing."""

    id: str
    request: CreateGroup
    sandboxes: list[Sandbox]
    complete: asyncio.Future[None]
    """All are ready, or it has failed."""


class Groups:
    """All groups of a controller that have sandboxes."""

    def __init__(self, sandboxes: Sandboxes, records: Records[CreateGroup]) -> None:
        self._sandboxes = sandboxes
        self._records = records
        self._groups: dict[str, Group] = {}

    def adopt(self, found: Iterable[Sandbox]) -> None:
        """Know the groups of what an earlier controller left, and remove those that were never complete."""
        noted = self._records.read()
        for sandbox in found:
            id = sandbox.group
            if id is None:
                continue
            if id not in noted:
                sandbox.error = Unavailable(f"group {id} was not complete when its controller ended")
                self._sandboxes.end(sandbox, Ended(cause="deleted", detail=sandbox.error.detail))
                continue
            if id not in self._groups:
                complete: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                complete.set_result(None)
                self._groups[id] = Group(id, noted[id], [], complete)
            self._groups[id].sandboxes.append(sandbox)
        for id in noted.keys() - self._groups.keys():
            self._records.drop(id)

    async def create(self, request: CreateGroup) -> Group:
        """The group that the request asks for: all ready, or as it is now where the request does not wait.

        Raises:
            NotFound: there is no such environment.
            Invalid: there can never be that many.
            Conflict: the id is another request's, or one of its sandboxes' is.
            Gone: the id has been used, and one of its sandboxes has ended.
            AtCapacity: there were not that many places at once within the request's `patience`.
            StartFailed, ImageBuildFailed, Unavailable: one did not become ready, so all were removed; the id may be
                used again.
        """
        id, asked = request.id or f"{request.environment}-{secrets.token_hex(8)}", time.monotonic()
        request = request.model_copy(update={"id": id})
        most = self._sandboxes.settings.max_sandboxes
        if request.n > most:
            raise Invalid(f"n: there are never {request.n} places at once: max_sandboxes is {most}; ask for fewer")
        wanted = _requests(request)
        group = await self._sandboxes.arrivals.admitted(
            _key(id),
            request,
            found=lambda: self._groups.get(id),
            check=lambda: self._check(wanted),
            make=lambda environment, place: self._admit(id, request, wanted, environment, place, asked),
            bounded=True,
            size=request.n,
        )
        if group.request != essence(request, id):
            raise Conflict(f"group {id} exists and was asked for with another request")
        if request.wait:
            # whoever hangs up does not end it: it is all or none, for whoever asks again
            await asyncio.shield(group.complete)
        self._intact(group)
        return group

    def get(self, id: str) -> Group:
        """A group of which at least one sandbox lives.

        Raises:
            NotFound: there is none of that id.
        """
        if id not in self._groups:
            raise NotFound(f"there is no group {id!r}")
        return self._groups[id]

    async def delete(self, id: str) -> None:
        """End all of it, as `Sandboxes.delete` does.

        Raises:
            NotFound: there is none of that id.
        """
        if _key(id) in self._sandboxes.arrivals:
            self._sandboxes.arrivals.send_away(_key(id), Gone(f"group {id} was deleted while it waited"))
            return
        ended = Ended(cause="deleted", detail=f"group {id} was deleted")
        living = [each for each in self.get(id).sandboxes if each.ended is None]
        await asyncio.gather(*(asyncio.shield(self._sandboxes.end(each, ended)) for each in living))

    def view(self, group: Group, *, tokens: bool = True) -> GroupView:
        """What is told about it."""
        found = [self._sandboxes.views.of(each, tokens=tokens) for each in group.sandboxes]
        return GroupView(id=group.id, n=group.request.n, sandboxes=found)

    def ended(self, sandbox: Sandbox) -> None:
        """A sandbox has ended; the group is forgotten with its last."""
        group = self._groups.get(sandbox.group or "")
        if group is not None and all(each.ended is not None for each in group.sandboxes):
            del self._groups[group.id]
            self._records.drop(group.id)

    def _check(self, wanted: list[CreateSandbox]) -> Environment:
        for request in wanted:
            assert request.id is not None
            if request.id in self._sandboxes:
                raise Conflict(f"sandbox {request.id} exists and is not of this group")
            self._sandboxes.tombstones.refuse(request.id)
        return self._sandboxes.admissible(wanted[0].environment, snapshot=wanted[0].snapshot)

    def _admit(
        self,
        id: str,
        request: CreateGroup,
        wanted: list[CreateSandbox],
        environment: Environment,
        place: Ticket,
        asked: float,
    ) -> Group:
        sandboxes = [
            self._sandboxes.admit(str(one.id), one, environment, ticket, asked)
            for one, ticket in zip(wanted, self._sandboxes.arrivals.split(place), strict=True)
        ]
        complete = asyncio.create_task(self._complete(id, essence(request, id), sandboxes), name=f"group {id}")
        complete.add_done_callback(lambda task: task.cancelled() or task.exception())  # nobody may be waiting for it
        group = self._groups[id] = Group(id, essence(request, id), sandboxes, complete)
        return group

    async def _complete(self, id: str, request: CreateGroup, sandboxes: list[Sandbox]) -> None:
        starts = [asyncio.create_task(self._sandboxes.until_ready(each)) for each in sandboxes]
        try:
            await asyncio.gather(*starts)
            for sandbox in sandboxes:
                if sandbox.ended is not None:  # it was ready, and did not live until the last one was
                    raise SandboxEnded(sandbox.ended)
            try:
                self._records.write(id, request)
            except OSError as error:
                raise Unavailable(f"group {id} cannot be noted in the controller's state: {error}") from error
        except Problem as error:
            for start in starts:
                start.cancel()
            await asyncio.gather(*starts, return_exceptions=True)
            for sandbox in sandboxes:
                if sandbox.ended is None:
                    sandbox.error = error  # so that its id may be used again
                    detail = f"group {id} did not become complete: {error.detail}"
                    self._sandboxes.end(sandbox, Ended(cause="deleted", detail=detail))
            raise

    def _intact(self, group: Group) -> None:
        """
        Raises:
            Gone: not all of its sandboxes live.
        """
        for sandbox in group.sandboxes:
            if sandbox.ended is not None:
                raise SandboxEnded(sandbox.ended)
        if len(group.sandboxes) < group.request.n:
            raise Gone(f"of the {group.request.n} sandboxes of group {group.id}, {len(group.sandboxes)} are left")


def _key(id: str) -> str:
    """By which a group stands in line; no sandbox has such an id."""
    return f"{id}:group"


def _requests(request: CreateGroup) -> list[CreateSandbox]:
    """
    Raises:
        Invalid: it has labels that only the controller sets.
    """
    no_own_labels(request)
    fields = request.model_dump(exclude={"id", "n", "labels"})
    labels = {**request.labels, GROUP_LABEL: str(request.id)}
    return [CreateSandbox(**fields, id=f"{request.id}.{number}", labels=labels) for number in range(request.n)]
