"""Handover: files that pass between a controller and the server of a sandbox, in a directory where that server may put
anything in their place."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gymbox.errors import Invalid, Unavailable

_NO_COPYING = {errno.EXDEV, errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP}
"""What the kernel says where two files are on file systems between which it does not copy by itself."""


@contextmanager
def below(directory: Path, name: str) -> Iterator[str]:
    """A path to `name` in a directory that its sandbox may rename or replace meanwhile; nothing is left there.

    Raises:
        Unavailable: there is no such directory: the sandbox is no more.
    """
    try:
        descriptor = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise Unavailable(f"the sandbox's directory cannot be opened: {error.strerror}") from error
    path = f"/proc/self/fd/{descriptor}/{name}"
    try:
        yield path
    finally:
        with contextlib.suppress(OSError):
            os.unlink(path)
        os.close(descriptor)


@contextmanager
def made_for(directory: os.stat_result, path: str) -> Iterator[int]:
    """A new file for who owns that directory, open; whatever is at its path later, this is the one that was made."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        if os.geteuid() == 0:
            os.fchown(file, directory.st_uid, directory.st_gid)
        yield file
    finally:
        os.close(file)


def keep_copy(file: int, target: Path, most: int) -> int:
    """Copy what a server wrote, and may hold open to write more, to where nobody else writes. Returns: bytes taken up.

    Raises:
        Invalid: the server has put something else in its place, or did not leave what it was told to.
        OSError: it cannot be written.
    """
    status = os.fstat(file)
    if status.st_nlink != 1 or status.st_size > most:
        raise Invalid("what the sandbox's server left is no snapshot")
    kept = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        if _copied(file, kept, status.st_size) < status.st_size:
            raise Invalid("what the sandbox's server left grew shorter while it was kept")
        # sandboxes get it under another name, where their servers, which are other users, read and never write it
        os.fchmod(kept, 0o444)
        return os.fstat(kept).st_blocks * 512
    finally:
        os.close(kept)


def _copied(file: int, to: int, size: int) -> int:
    """Bytes that were copied, fewer where the file has fewer; without a second copy on disk where that is possible."""
    done = 0
    try:
        while done < size and (count := os.copy_file_range(file, to, size - done)):
            done += count
    except OSError as error:
        if error.errno not in _NO_COPYING:
            raise
        while done < size and (count := os.sendfile(to, file, None, size - done)):
            done += count
    return done


def lend(tar: Path, path: str) -> None:
    """Give a sandbox a snapshot to read: the file itself where that is root's, else a copy, since its server is then
    of our own user and could write to it."""
    if os.geteuid() == 0:
        os.link(tar, path)
    else:
        shutil.copyfile(tar, path)
        os.chmod(path, 0o400)


async def in_thread[**Given, Found](work: Callable[Given, Found], *given: Given.args, **named: Given.kwargs) -> Found:
    """What it returns. Who is cancelled waits for it all the same: it uses what they would close."""
    thread = asyncio.ensure_future(asyncio.to_thread(work, *given, **named))
    try:
        return await asyncio.shield(thread)
    except asyncio.CancelledError:
        while not thread.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({thread})
        thread.exception()  # which nobody is told any more
        raise
