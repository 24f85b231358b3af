"""Egress: this provider's side of the process that decides what leaves its sandboxes (gymbox.egress)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import socket
import sys
import tempfile
from collections import OrderedDict, deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gymbox.environment import Environment
from gymbox.errors import Unavailable
from gymbox.network import EGRESS_SOCKET, RESOLVER, Refusal, Traffic, told, way_out
from gymbox.providers import ModelsAt, StartSpec
from gymbox.providers.own_session import in_own_session

log = logging.getLogger(__name__)

COMMAND = (sys.executable, "-Im", "gymbox.egress")
REMEMBERED = 1000
"""Sandboxes that are no more whose traffic is still told."""
_LONGEST_REPORT = 128 * 1024
_PAUSE = 0.5
"""Seconds before a process that ended is started anew."""
_BACKLOG = 256
_RESOLVED_BY_RELAY = "nameserver 127.0.0.1\noptions timeout:2 attempts:1\n"


class Egress:
    """The sandboxes that have a way out. The process starts with the first of them, and anew whenever it ends.

    Args:
        command: what to start; tests replace it.
    """

    def __init__(self, command: Sequence[str] = COMMAND) -> None:
        self._command = command
        self._orders: dict[str, tuple[dict[str, Any], socket.socket]] = {}
        self._unsent: deque[tuple[dict[str, Any], socket.socket | None]] = deque()
        """What the process that runs has not read fast enough to be sent."""
        self._announced: set[str] = set()
        """Whose `open` it was sent, or will be."""
        self._traffic: OrderedDict[str, Traffic] = OrderedDict()
        self._before: dict[str, Traffic] = {}
        self._control: socket.socket | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()
        self._said: set[str] = set()

    async def open(self, spec: StartSpec) -> None:
        """Open the way out of a sandbox whose directory is there, if its network has one; a second time is fine.

        Raises:
            Unavailable: no process can be started, or the directory allows no socket.
        """
        way = way_out(spec.environment.manifest.network)
        if way is None or spec.id in self._orders:
            return
        self._say(spec.environment)
        write_resolver(spec.directory.parent)
        listener = _listen(spec.directory)
        models = spec.models._asdict() if way.models and spec.models else None
        order = {"open": spec.id, "way": way.model_dump(), "models": models}
        self._orders[spec.id] = order, listener
        self._traffic[spec.id] = Traffic()
        async with self._starting:
            if self._keeper is None:
                await self._start()
                self._keeper = asyncio.create_task(self._keep(), name="egress")
            else:
                self._announce(spec.id)

    def lead_models(self, id: str, models: ModelsAt) -> None:
        """Send a sandbox's model calls there from now on; one that has no way to models, or is no more, is fine."""
        if id in self._orders and self._orders[id][0]["way"]["models"]:
            order, listener = self._orders[id]
            self._orders[id] = {**order, "models": models._asdict()}, listener
            self._send({"lead": id, "models": models._asdict()})

    def close_way(self, id: str) -> None:
        """Close it; what has none is fine."""
        found = self._orders.pop(id, None)
        if found is None:
            return
        found[1].close()
        self._unsent = deque(each for each in self._unsent if each[1] is not found[1])
        self._announced.discard(id)
        self._send({"close": id})
        self._traffic.move_to_end(id)
        while len(self._traffic) > len(self._orders) + REMEMBERED:
            oldest = next(id for id in self._traffic if id not in self._orders)
            self._traffic.pop(oldest)
            self._before.pop(oldest, None)

    def traffic(self, id: str) -> Traffic:
        """What a sandbox was let through to and refused so far; nothing for one that has no way out."""
        return self._traffic.get(id, Traffic())

    async def close(self) -> None:
        """End the process. What it let through ends, too; safe to call twice."""
        keeper, self._keeper = self._keeper, None
        if keeper is not None:
            keeper.cancel()
            await asyncio.wait({keeper})
        self._hang_up()
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        for _, listener in self._orders.values():
            listener.close()
        self._orders.clear()

    async def _start(self) -> None:
        control, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
        control.setblocking(False)
        try:
            with theirs:
                self._process = await in_own_session(
                    *self._command, stdin=theirs.fileno(), stdout=asyncio.subprocess.DEVNULL, env=_variables()
                )
        except OSError as error:
            control.close()
            raise Unavailable(f"the egress process cannot be started: {error}") from error
        self._control = control
        asyncio.get_running_loop().add_reader(control, self._hear)
        for id in self._orders:
            self._announce(id)

    async def _keep(self) -> None:
        """Start the process anew whenever it ends: until then nothing leaves a sandbox."""
        while True:
            assert self._process is not None
            status = await self._process.wait()
            log.error("the egress process ended (%d); nothing leaves the sandboxes until it is back", status)
            async with self._starting:
                self._hang_up()
                self._doubt_models()
                self._before = dict(self._traffic)  # the next one counts from zero
            while self._control is None:
                await asyncio.sleep(_PAUSE)
                async with self._starting:
                    try:
                        await self._start()
                    except Unavailable as error:
                        log.error("%s", error.detail)

    def _doubt_models(self) -> None:
        """Whether a model call broke off with the process nobody knows; the next one that is answered settles it."""
        for id, (order, _) in self._orders.items():
            if order["way"]["models"]:
                before = self._traffic[id]
                self._traffic[id] = before.model_copy(update={"models_unanswered": before.models_unanswered + 1})

    def _hang_up(self) -> None:
        if self._control is not None:
            asyncio.get_running_loop().remove_reader(self._control)
            self._forget_unsent()
            self._announced.clear()
            self._control.close()
            self._control = None

    def _announce(self, id: str) -> None:
        """Tell the process of a way, once: a second `open` would end the sandbox's connections."""
        if self._control is not None and id in self._orders and id not in self._announced:
            self._announced.add(id)
            self._send(*self._orders[id])

    def _send(self, order: dict[str, Any], listener: socket.socket | None = None) -> None:
        if self._control is not None:
            self._unsent.append((order, listener))
            self._flush()

    def _flush(self) -> None:
        """Send what the process has room for, and the rest once it has read that."""
        assert self._control is not None
        try:
            while self._unsent:
                order, listener = self._unsent[0]
                fds = [listener.fileno()] if listener else []
                socket.send_fds(self._control, [json.dumps(order).encode()], fds)
                self._unsent.popleft()
        except BlockingIOError:
            asyncio.get_running_loop().add_writer(self._control, self._flush)
            return
        except OSError as error:  # it has ended, or will: then the next one is told all anew
            log.error("the egress process takes no orders: %s", error)
            if self._process is not None and self._process.returncode is None:
                self._process.kill()
        self._forget_unsent()

    def _forget_unsent(self) -> None:
        assert self._control is not None
        asyncio.get_running_loop().remove_writer(self._control)
        self._unsent.clear()

    def _hear(self) -> None:
        assert self._control is not None
        try:
            data = self._control.recv(_LONGEST_REPORT)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            asyncio.get_running_loop().remove_reader(self._control)
            return
        report = json.loads(data)
        id, news = report["sandbox"], [Refusal.model_validate(each) for each in report["news"]]
        for each in news:
            log.warning("sandbox %s was refused %s (%s): %s", id, each.target, each.kind, each.why)
        if id in self._traffic:
            before, unanswered = self._before.get(id, Traffic()), report["models_unanswered"]
            self._traffic[id] = Traffic(
                let_through=before.let_through + report["let_through"],
                names_answered=before.names_answered + report["names_answered"],
                refused=before.refused + report["refused"],
                models_unanswered=self._traffic[id].models_unanswered if unanswered is None else unanswered,
                refusals=[*self._traffic[id].refusals, *news][:100],
            )

    def _say(self, environment: Environment) -> None:
        """Say once what an environment lets out; and loudly, where that is all."""
        network = environment.manifest.network
        if environment.name not in self._said:
            self._said.add(environment.name)
            if network == "open":
                log.warning(
                    "NETWORK OPEN: what the agent runs in sandboxes of %s reaches every public host of the internet",
                    environment.name,
                )
            else:
                log.info("sandboxes of %s have a way out: %s", environment.name, told(network))


def write_resolver(folder: Path) -> None:
    """Write what is mounted as /etc/resolv.conf of the sandboxes whose directories are in this folder: their own
    relays answer. It is beside these directories, not in them: what a sandbox's server could replace by a link would
    be mounted from anywhere on the host.

    Raises:
        Unavailable: it cannot be written.
    """
    path = folder / RESOLVER
    try:
        if not path.exists() or path.read_text() != _RESOLVED_BY_RELAY:
            descriptor, temporary = tempfile.mkstemp(prefix=f".{RESOLVER}-", dir=folder)
            with os.fdopen(descriptor, "w") as file:
                file.write(_RESOLVED_BY_RELAY)
                os.fchmod(descriptor, 0o644)  # the agent's user reads it
            Path(temporary).replace(path)
    except OSError as error:
        raise Unavailable(f"cannot write {path}: {error.strerror}") from error


def _listen(directory: Path) -> socket.socket:
    """A listening socket in a sandbox's directory, for its owner and group. What stands there already is replaced,
    never followed: untrusted code may have put it there.

    Raises:
        Unavailable: the directory does not allow it.
    """
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(EGRESS_SOCKET, dir_fd=folder)
            mask = os.umask(0o117)  # and no chmod, before which it could be replaced by a link
            try:
                listener.bind(f"/proc/self/fd/{folder}/{EGRESS_SOCKET}")
            finally:
                os.umask(mask)
        finally:
            os.close(folder)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise Unavailable(f"cannot listen on {directory / EGRESS_SOCKET}: {error.strerror}") from error
    listener.setblocking(False)
    return listener


def _variables() -> dict[str, str]:
    """What the process needs of this one's environment: no secret is among it."""
    return {name: value for name, value in os.environ.items() if name in ("PATH", "LANG")}
