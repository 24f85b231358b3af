"""The egress process: `python -m gymbox.egress`, with a SEQPACKET socket as its standard input.

    provider → here   {"open": ID, "way": Way, "models": ModelsAt | null}, with a listening unix socket
                      {"lead": ID, "models": ModelsAt}
                      {"close": ID}
    here → provider   {"sandbox": ID, "let_through": N, "names_answered": N, "refused": N,
                       "models_unanswered": N | null, "news": [{kind, target, why}]}

It ends with the other end of that socket. Started as root, it becomes nobody: it needs no file and no right.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from gymbox_sandbox import prctl

from gymbox.egress.ledger import Ledger
from gymbox.egress.places import Places
from gymbox.egress.ways import ModelsAt, Ways
from gymbox.lifetime import raise_file_limit
from gymbox.network import Way

NOBODY = 65_534
LONGEST_ORDER = 128 * 1024
TELL_EVERY = 0.1
"""Seconds between two reports on one sandbox."""
BACKLOG = 256
LONGEST_FAULT = 500


class Faults:
    """What went wrong in this process that nobody waited for. A sandbox may bring it about as often as it likes, so
    it is told when it happens first, and each time that there are twice as many."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, fault: BaseException | str | None) -> None:
        """Count one."""
        self.count += 1
        if self.count & (self.count - 1) == 0:
            told = repr(fault)[:LONGEST_FAULT]
            print(f"fault {self.count} of the egress process: {told}", file=sys.stderr, flush=True)


class Egress:
    """All sandboxes of one provider."""

    def __init__(self, control: socket.socket, places: Places, faults: Faults) -> None:
        control.setblocking(False)
        self._faults = faults
        self._control = control
        self._places = places
        self._sandboxes: dict[str, tuple[asyncio.Server, Ways, Ledger]] = {}
        self._due: dict[str, asyncio.TimerHandle] = {}
        self._ending: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Take orders until the provider hangs up."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, said: self._faults.note(said.get("exception") or said["message"]))
        orders: asyncio.Queue[tuple[bytes, list[int]]] = asyncio.Queue()
        loop.add_reader(self._control, self._receive, orders)
        try:
            while (order := await orders.get())[0]:
                await self._do(json.loads(order[0]), order[1])
        finally:
            loop.remove_reader(self._control)
            for id in list(self._sandboxes):
                self._close(id)
            await asyncio.gather(*self._ending)

    def _receive(self, orders: asyncio.Queue[tuple[bytes, list[int]]]) -> None:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, LONGEST_ORDER, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except OSError:
            data, fds = b"", []
        if not data:
            asyncio.get_running_loop().remove_reader(self._control)
        orders.put_nowait((data, fds))

    async def _do(self, order: dict[str, Any], fds: list[int]) -> None:
        if "close" in order:
            self._close(order["close"])
            return
        if "lead" in order:
            if order["lead"] in self._sandboxes:
                self._sandboxes[order["lead"]][1].lead_models(ModelsAt.model_validate(order["models"]))
            return
        id, models = order["open"], order["models"]
        self._close(id)
        ledger = Ledger(changed=self._later(id), tell=partial(self._tell, id))
        ways = Ways(Way.model_validate(order["way"]), models and ModelsAt.model_validate(models), ledger, self._places)
        listener = socket.socket(fileno=fds[0])
        server = await asyncio.start_unix_server(ways.serve, sock=listener, backlog=BACKLOG)
        self._sandboxes[id] = server, ways, ledger

    def _close(self, id: str) -> None:
        """Let nothing more in; the connections that there are end beside the orders that follow."""
        if id in self._sandboxes:
            self._tell(id)  # what has not been told yet
            server, ways, ledger = self._sandboxes.pop(id)
            server.close()
            ending = asyncio.create_task(self._end(id, ways, ledger))
            self._ending.add(ending)
            ending.add_done_callback(self._ending.discard)

    async def _end(self, id: str, ways: Ways, ledger: Ledger) -> None:
        await ways.close()
        if id not in self._sandboxes:
            self._report(id, ledger)

    def _later(self, id: str) -> Callable[[], None]:
        def changed() -> None:
            if id not in self._due:
                self._due[id] = asyncio.get_running_loop().call_later(TELL_EVERY, self._tell, id)

        return changed

    def _tell(self, id: str) -> None:
        due = self._due.pop(id, None)
        if due is None or id not in self._sandboxes:
            return
        due.cancel()
        ledger = self._sandboxes[id][2]
        if not self._report(id, ledger):
            self._later(id)()

    def _report(self, id: str, ledger: Ledger) -> bool:
        """Whether that is done; False: the provider is busy."""
        report = ledger.report()
        try:
            self._control.send(json.dumps({"sandbox": id, **report}).encode())
        except BlockingIOError:
            ledger.news[:0] = report["news"]
            return False
        except OSError:
            pass  # it is gone, and we shall be
        return True


def drop_rights() -> None:
    """Become nobody, where this is root's process."""
    prctl.forbid_new_privileges()
    if os.getuid() != 0:
        return
    try:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    except PermissionError as error:  # a container's root that may not: it has few rights anyway
        print(f"the egress process stays root's: {error}", file=sys.stderr, flush=True)


def main(places: Places | None = None) -> None:
    """Serve until the provider is gone."""
    control = socket.socket(fileno=os.dup(0))
    raise_file_limit()
    # what a resolver loads when it is first asked has to be loaded while we may read it
    socket.getaddrinfo("localhost", 80)
    "xn--nxasmq6b".encode("idna")
    drop_rights()
    faults = Faults()
    sys.unraisablehook = lambda unraisable: faults.note(unraisable.exc_value)
    asyncio.run(Egress(control, places or Places(), faults).run())


if __name__ == "__main__":
    main()
