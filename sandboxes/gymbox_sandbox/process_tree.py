"""Process tree: what descends from this process, found in /proc, and how to end all of it.

Whoever uses this is a child subreaper (`prctl.adopt_orphans`), so that no descendant can leave the tree: neither
`setsid` nor a double fork changes that an orphan becomes our child.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator

from gymbox_sandbox.options import User

_LONGEST_PAUSE = 0.02
_FORGET_OUTSIDERS_AFTER = 64
"""Looks, after which pids known not to be ours are looked at again: they may have been reused."""


class Descendants:
    """The processes below this one, but not those in `spare` and below them."""

    def __init__(self, spare: Collection[int] = ()) -> None:
        self._spare = spare
        self._known: set[int] = set()
        self._outside: set[int] = set()
        self._looks = 0

    def kill(self) -> int:
        """SIGKILL all that one look into /proc finds; how many of them were not found before."""
        if self._looks % _FORGET_OUTSIDERS_AFTER == 0:
            self._outside = {0, os.getppid(), *self._spare}
        self._looks += 1
        me = os.getpid()
        # what is not ours never becomes ours, so only newcomers are read: a look must be quicker than a process that
        # keeps replacing itself
        parents = {pid: parent for pid in _pids() if pid not in self._outside and (parent := parent_of(pid)) >= 0}
        found = 0
        for pid in parents:
            chain = []
            while pid in parents and pid != me and pid not in self._outside:
                chain.append(pid)
                pid = parents[pid]
            if pid == me:
                for descendant in chain:
                    with contextlib.suppress(ProcessLookupError, PermissionError):
                        os.kill(descendant, signal.SIGKILL)
                found += len(set(chain) - self._known)
                self._known.update(chain)
            elif pid in self._outside:
                self._outside.update(chain)
        return found


def kill_descendants(reap: Callable[[], bool]) -> None:
    """SIGKILL every descendant and return when none is left.

    Args:
        reap: waits for children that have ended and says whether there are any others. When there are none, there are
            no descendants: the kernel hands every orphan to us.
    """
    descendants = Descendants()
    pause = 0.0
    while reap():
        # when all of them are dying, wait: a process in uninterruptible sleep takes its time
        pause = 0.0 if descendants.kill() else min(2 * pause or 0.0005, _LONGEST_PAUSE)
        time.sleep(pause)


@contextlib.contextmanager
def standing_still(user: User | None) -> Iterator[None]:
    """Stop every process of a user within the block, but for those that someone has stopped already. None: nobody
    stands still, since we would, too."""
    stopped: set[int] = set()
    try:
        while user is not None and (found := {pid for pid in _pids() if _runs_as(pid, user.uid)} - stopped):
            for pid in found:
                _signal(pid, signal.SIGSTOP)
            stopped |= found
        yield
    finally:
        for pid in stopped:
            _signal(pid, signal.SIGCONT)


def _runs_as(pid: int, uid: int) -> bool:
    """Whether it is a process of this user, which the owner of /proc/PID does not tell of one that hides its memory,
    and is neither stopped nor dead."""
    try:
        with open(f"/proc/{pid}/status", "rb") as file:
            status = dict(line.split(b":", 1) for line in file)
        return int(status[b"Uid"].split()[0]) == uid and status[b"State"].split()[0] not in (b"T", b"Z", b"X")
    except (OSError, KeyError):
        return False


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def reap_children(ended: Callable[[int, int], None] = lambda pid, status: None) -> bool:
    """Wait for all children that have ended, tell `ended` their pid and status; whether there are any others."""
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False
        if pid == 0:
            return True
        ended(pid, status)


def children_of_this_thread() -> set[int] | None:
    """Pids of its children that were not waited for, adopted ones included; None where the kernel does not list them
    (CONFIG_PROC_CHILDREN)."""
    try:
        with open("/proc/thread-self/children", "rb") as file:
            return {int(pid) for pid in file.read().split()}
    except FileNotFoundError:
        return None


def parent_of(pid: int) -> int:
    """Pid of its parent; -1 if there is no such process."""
    return _stat(pid, 1)


def foreground_group(pid: int) -> int:
    """Process group in the foreground of its terminal; -1 if it has none, or there is no such process."""
    return _stat(pid, 5)


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdecimal()]


def _stat(pid: int, index: int) -> int:
    """A field of /proc/PID/stat, counted from the state, which follows the name."""
    try:
        fd = os.open(f"/proc/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1
    try:
        line = os.read(fd, 4096)
    except ProcessLookupError:
        return -1
    finally:
        os.close(fd)
    # the name may hold anything, also parentheses and blanks
    return int(line[line.rindex(b")") + 2 :].split()[index])
