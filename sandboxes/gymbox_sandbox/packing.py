"""Packing: a tar of a tree, or of what patterns match in it, for whoever asks a transfer for one.

A whole tree is looked through before its first byte, so that what cannot be read is told by name. Of what patterns
match, it is left out, as what is missing is: the tree is an agent's, and one that could break its archive could keep
itself from being scored.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable, Iterator, Sequence
from fnmatch import fnmatchcase
from tarfile import PAX_FORMAT, TarInfo
from typing import IO

from gymbox_sandbox.sparse import SparseTarFile
from gymbox_sandbox.transfer import CHUNK, LATEST, leaves, say

_Left = frozenset[tuple[str, ...]]
"""What of the patterns is left to be matched below a folder; an empty one is matched, and so is all below."""
_ALL: _Left = frozenset({()})


def pack(path: str, only: Sequence[str]) -> None:
    """Write `-1\\n` and the tar. In a pattern `*`, `?` and `[…]` stay within a name, `**` is any number of folders; a
    folder that matches comes with all that is in it.

    Raises:
        OSError: there is no such folder; or, without patterns, something in it cannot be read. Nothing is written.
    """
    left = frozenset(each for pattern in only for each in _open_ended(tuple(pattern.split("/")))) if only else _ALL
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC))
    except PermissionError:
        if not only:
            raise
    if not only:
        _refuse_unreadable(path)
    say(b"-1\n")
    with (
        open(1, "wb", closefd=False) as output,
        SparseTarFile.open(mode="w|", fileobj=output, bufsize=CHUNK, format=PAX_FORMAT) as archive,
    ):
        archive.fills_up = bool(only)
        for each, member in _walk(path, left, _leave_out if only else _raise):
            if member != "." or not only:
                _add(archive, each, member, lenient=bool(only))


def _walk(path: str, left: _Left, on_error: Callable[[OSError], None]) -> Iterator[tuple[str, str]]:
    """Paths and names of all that is chosen: a folder, the files and links in it, then the folders in it. Folders in
    which nothing can be chosen are not looked at."""
    folders = [(path, ".", left)]
    while folders:
        folder, inside, left = folders.pop()
        if () in left:
            yield folder, inside
        try:
            with os.scandir(folder) as entries:
                found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        except OSError as error:
            on_error(error)
            continue
        below = []
        for name, is_folder in found:
            member = name if inside == "." else f"{inside}/{name}"
            if not (left_there := _below(left, name)):
                continue
            if is_folder:
                below.append((os.path.join(folder, name), member, left_there))
            elif () in left_there:
                yield os.path.join(folder, name), member
        folders.extend(reversed(below))


def _below(left: _Left, name: str) -> _Left:
    """What is left to be matched below `name`."""
    found: set[tuple[str, ...]] = set()
    for pattern in left:
        if not pattern or pattern[0] == "**":
            found.update(_open_ended(pattern))
        elif fnmatchcase(name, pattern[0]):
            found.update(_open_ended(pattern[1:]))
    return frozenset(found)


def _open_ended(pattern: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    """A pattern, and what is left of it where the `**` that it begins with are no folders."""
    yield pattern
    while pattern and pattern[0] == "**":
        pattern = pattern[1:]
        yield pattern


def _raise(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):  # what has gone meanwhile is no fault
        raise error


def _leave_out(_: OSError) -> None:
    pass


def _refuse_unreadable(path: str) -> None:
    for each, _ in _walk(path, _ALL, _raise):
        with contextlib.suppress(FileNotFoundError):
            if stat.S_ISREG(os.lstat(each).st_mode):
                os.close(_opened(each))


def _opened(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def _add(archive: SparseTarFile, path: str, name: str, *, lenient: bool) -> None:
    """Add a file, folder or link; sockets, FIFOs and devices are left out, and what has gone meanwhile.

    Args:
        lenient: leave out, too, what cannot be read and links that lead out of the tree, for whose sake `unpack`
            would refuse the rest of the archive.
    """
    try:
        info, file = _described(archive, path, name)
    except FileNotFoundError:
        return
    except OSError:
        if lenient:
            return
        raise
    with file or contextlib.nullcontext():
        if info is None or (lenient and info.issym() and leaves(info.linkname, name.count("/"))):
            return
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mtime = min(info.mtime, LATEST)
        if info.isreg() and file is not None:
            archive.addfile(info, file)
        elif info.isdir() or info.issym() or info.islnk():
            archive.addfile(info)
    archive.members.clear()  # type: ignore[attr-defined]  # else it remembers every member


def _described(archive: SparseTarFile, path: str, name: str) -> tuple[TarInfo | None, IO[bytes] | None]:
    """What is there, and its content if it is a file."""
    if not stat.S_ISREG(os.lstat(path).st_mode):
        return archive.gettarinfo(path, arcname=name), None
    file = open(_opened(path), "rb")  # noqa: SIM115  whoever gets it closes it
    return archive.gettarinfo(arcname=name, fileobj=file), file
