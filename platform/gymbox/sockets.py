"""Sockets: connect to a unix socket that sits in a directory which untrusted code may write to."""

from __future__ import annotations

import os
import stat
from typing import Self

from gymbox.errors import Unavailable


class PinnedSocket:
    """A unix socket held by its inode, so that nothing put in its place afterwards can lead elsewhere.

    Whoever can write to the directory of a socket can replace it by a symlink to another one (the engine's, say). So
    the last path component is opened without following links, checked to be a socket, and connected to through the
    open descriptor. The folders above it must not be writable for the untrusted side. The address is also always
    shorter than the 107 bytes that a unix socket's path may have.

    Close it only after everything that connects through `address` is closed: the number in it is reused.

    Raises:
        Unavailable: there is nothing at `path`, or it is no socket.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self._descriptor = -1
        try:
            if not stat.S_ISSOCK(os.lstat(self.path).st_mode):
                raise Unavailable(f"{self.path} is not a socket")
            if hasattr(os, "O_PATH"):  # Linux; elsewhere no container shares a folder of sockets with us
                self._descriptor = os.open(self.path, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise Unavailable(f"cannot open the socket {self.path}: {error.strerror}") from error
        if self._descriptor >= 0 and not stat.S_ISSOCK(os.fstat(self._descriptor).st_mode):
            self.close()
            raise Unavailable(f"{self.path} was replaced by something that is not a socket")

    @property
    def address(self) -> str:
        """What to connect to, as a path; valid in this process until `close`."""
        return self.path if self._descriptor < 0 else f"/proc/self/fd/{self._descriptor}"

    def close(self) -> None:
        """Let go of it; safe to call twice."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
