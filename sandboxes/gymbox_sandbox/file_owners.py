"""File owners: reads and writes files as the user to whom each belongs, without rights over all files.

The supervisor's root has neither DAC_OVERRIDE nor CHOWN, so it cannot read a user's files, nor give files away. It may
become any user for the length of a system call, though, and a file's owner may read it and make another like it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from gymbox_sandbox import prctl
from gymbox_sandbox.options import User


class FileOwners:
    """The two users of a sandbox, by the names that they have in every sandbox.

    Args:
        agent: None: there are no users; all files are this process's own.
    """

    def __init__(self, agent: User | None, server: User | None) -> None:
        self._users = {"agent": agent, "server": server} if agent is not None and server is not None else {}
        self._me = User(os.getuid(), os.getgid())

    def name_of(self, uid: int) -> str:
        """`agent` or `server`; of what belongs to neither, as a mounted folder may, `other`."""
        if not self._users:
            return "agent" if uid == self._me.uid else "other"
        return next((name for name, user in self._users.items() if user is not None and user.uid == uid), "other")

    @contextmanager
    def acting(self, name: str) -> Iterator[None]:
        """Use files as this owner within the block; as the agent for `other`."""
        user = self._users.get(name) or self._users.get("agent")
        if user is None:
            yield
            return
        prctl.use_files_as(*user)
        try:
            yield
        finally:
            prctl.use_files_as(*self._me)

    @contextmanager
    def opened(self, name: str | bytes, folder: int, owner: str, flags: int) -> Iterator[tuple[int, os.stat_result]]:
        """A descriptor of what is in `folder`, which is `owner`'s, opened as whoever it belongs to, also where its
        mode refuses that; and its status. Never through a link, never waiting for the other end of a FIFO.

        Raises:
            OSError: as of `os.open`.
        """
        with self.acting(owner):
            place = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        try:
            status = os.fstat(place)
            if stat.S_ISLNK(status.st_mode):
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), name)
            with self.acting(self.name_of(status.st_uid)):
                descriptor = _reopened(place, status.st_mode, flags | os.O_NONBLOCK | os.O_CLOEXEC)
        finally:
            os.close(place)
        try:
            yield descriptor, status
        finally:
            os.close(descriptor)


def _reopened(place: int, mode: int, flags: int) -> int:
    path = f"/proc/self/fd/{place}"
    with contextlib.suppress(PermissionError):
        return os.open(path, flags)
    os.chmod(path, stat.S_IMODE(mode) | stat.S_IRWXU)  # its owner has closed it to himself
    try:
        return os.open(path, flags)
    finally:
        os.chmod(path, stat.S_IMODE(mode))
