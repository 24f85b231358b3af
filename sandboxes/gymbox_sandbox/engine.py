"""Engine: forks the reapers that a server asks for, each of which runs one command at a time.

One engine serves one or many servers.

A server holds a *link*, one end of a SEQPACKET socket pair. It sends, each with descriptors:

    `s`        [control]   start a reaper, which takes commands from this socket (see spawn)
    `a<n>`     [socket]    another link, for another server, whose commands run as the nth of the agents' users (two
                           bytes); the first link alone may ask for it
    `k<token>`             kill all commands of this link and end its reapers; answered with the same bytes when none
                           of their processes is left

The engine parses nothing and never waits: a command's request is read by its reaper. When a link closes, all that was
started over it is killed.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys

from gymbox_sandbox import prctl
from gymbox_sandbox.options import User
from gymbox_sandbox.process_tree import Descendants, kill_descendants, reap_children
from gymbox_sandbox.reaper import most_descriptors, reap, wake_on_children

_MOST_FDS = 2


def new_link() -> tuple[socket.socket, socket.socket]:
    """The two ends of a link: the server's and the engine's."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


class Link:
    """One server, its agent's user, its reapers, and the leash by which these are held."""

    def __init__(self, link: socket.socket, agent: User | None) -> None:
        link.setblocking(False)
        self.socket = link
        self.agent = agent
        self.reapers: set[int] = set()
        self.awaited: list[tuple[bytes, set[int]]] = []
        """What to answer once these reapers are gone."""
        self.leash, self._hand = os.pipe()

    def let_go(self) -> None:
        """Make every reaper kill its command's tree and end; those started from now on are on a new leash."""
        os.close(self._hand)
        os.close(self.leash)
        self.leash, self._hand = os.pipe()

    def kill(self, token: bytes) -> None:
        """Kill all commands, and answer `token` when they are gone."""
        self.let_go()
        self.awaited.append((token, set(self.reapers)))
        self.forget(0)

    def forget(self, pid: int) -> None:
        """A reaper has ended."""
        self.reapers.discard(pid)
        for token, reapers in self.awaited:
            reapers.discard(pid)
            if not reapers:
                with contextlib.suppress(OSError):
                    self.socket.send(token)
        self.awaited = [(token, reapers) for token, reapers in self.awaited if reapers]

    def close(self) -> None:
        """Give up the server."""
        self.let_go()
        os.close(self._hand)
        os.close(self.leash)
        self.socket.close()


class Engine:
    """Serves links until the first one closes, or the process that it watches over ends."""

    def __init__(self, first: socket.socket, agent: User | None, agents: int = 1) -> None:
        """`agent` is the first of the `agents` users that run commands; None for the user that this process has."""
        prctl.adopt_orphans()
        self._agent = agent
        self._agents = agents
        self._first = first.fileno()
        self._links: dict[int, Link] = {}
        self._reapers: dict[int, Link] = {}
        self._poll = select.poll()
        self._woken = wake_on_children()
        self._poll.register(self._woken, select.POLLIN)
        self._child: int | None = None
        self._child_status: int | None = None
        self._stopping = False
        self._gone: list[int] = []
        self._strangers = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        self._attach(first, agent)

    def run(self, child: int | None = None) -> int:
        """Serve until `child` has ended, and return its exit code (128 + n for signal n); without one, until SIGTERM
        or the end of the first link, and return 0. Then nothing that descends from this process is left.

        SIGTERM and SIGINT are passed on to `child`.
        """
        self._child = child
        while self._child_status is None and not (child is None and self._stopping):
            for fd, _ in self._poll.poll():
                if fd == self._woken:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._woken, 512)
                    self._reap()
                elif fd in self._links:
                    self._receive(self._links[fd])
        kill_descendants(reap_children)
        code = os.waitstatus_to_exitcode(self._child_status or 0)
        return code if code >= 0 else 128 - code

    def _stop(self, number: int, frame: object) -> None:
        self._stopping = True
        if self._child is not None and self._child_status is None:
            os.kill(self._child, signal.SIGTERM)

    def _attach(self, link: socket.socket, agent: User | None) -> None:
        self._links[link.fileno()] = Link(link, agent)
        self._poll.register(link, select.POLLIN)

    def _receive(self, link: Link) -> None:
        try:
            message, fds, _, _ = socket.recv_fds(link.socket, 64, _MOST_FDS, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            return
        except ConnectionError:
            message, fds = b"", []
        match message[:1], fds:
            case b"s", [control]:
                self._start(link, control)
                return
            case b"a", [fd] if link.socket.fileno() == self._first:
                self._attach(socket.socket(fileno=fd), self._nth_agent(int.from_bytes(message[1:])))
                return
            case b"k", []:
                link.kill(message)
            case b"", []:
                self._detach(link)
        for fd in fds:
            os.close(fd)

    def _nth_agent(self, number: int) -> User | None:
        number %= self._agents  # so that no order leads to another user
        return self._agent and User(self._agent.uid + number, self._agent.gid + number)

    def _detach(self, link: Link) -> None:
        fd = link.socket.fileno()
        self._poll.unregister(fd)
        del self._links[fd]
        link.close()
        self._stopping = self._stopping or fd == self._first

    def _start(self, link: Link, control: int) -> None:
        try:
            pid = os.fork()
        except OSError as error:
            with contextlib.suppress(OSError):
                os.write(control, f"refused unavailable no process could be started: {error.strerror}\n".encode())
        else:
            if pid == 0:
                self._become_reaper(link, control)
            link.reapers.add(pid)
            self._reapers[pid] = link
        os.close(control)

    def _become_reaper(self, link: Link, control: int) -> None:
        status = 1
        try:
            signal.set_wakeup_fd(-1)
            # above all the other end of the leash: a copy here would keep it from ever closing
            close_all_but({link.leash, control})
            reap(socket.socket(fileno=control), link.leash, link.agent)
            status = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            sys.stderr.flush()
            os._exit(status)

    def _reap(self) -> None:
        reap_children(self._ended)
        if self._strangers:
            # the processes of a reaper that was killed have become our children; each one's end brings us here again
            known = {*self._reapers, *([self._child] if self._child else [])}
            self._strangers = Descendants(spare=known).kill() > 0
        if not self._strangers:  # else what a reaper left behind is still there
            for pid in self._gone:
                self._reapers.pop(pid).forget(pid)
            self._gone.clear()

    def _ended(self, pid: int, status: int) -> None:
        if pid == self._child:
            self._child_status = status
        elif pid in self._reapers:
            self._gone.append(pid)
            self._strangers = self._strangers or status != 0


def close_all_but(kept: set[int]) -> None:
    """Close every descriptor above the standard three, except these."""
    low = 3
    for fd in sorted(kept):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, most_descriptors())
