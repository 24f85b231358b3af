"""Sparse: files with holes, which keep them when they are copied and when they are packed."""

from __future__ import annotations

import contextlib
import io
import os
import tarfile
from copy import copy
from typing import IO, Any

BLOCK = 1 << 16
NO_TAR = (tarfile.TarError, ValueError, OverflowError, RecursionError)
"""What reading a tar raises that is none; all but the first where headers say what no header may."""
_ZEROS = bytes(BLOCK)
_MOST_SEGMENTS = 10_000
"""Of one file; one of more is packed with its holes as zeros, since their list is held in memory."""


class SparseWriter:
    """Writes to a file from its beginning on, and leaves holes where only zeros are written."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = 0

    def write(self, data: bytes) -> None:
        """Append."""
        view = memoryview(data)
        self.size += len(view)
        begun = 0
        for at in range(0, len(view), BLOCK):
            block = view[at : at + BLOCK]
            if _is_hole(block):
                self._write(view[begun:at])
                self._file.seek(len(block), os.SEEK_CUR)
                begun = at + len(block)
        self._write(view[begun:])

    def _write(self, data: memoryview) -> None:
        while data:  # an unbuffered file may take less
            data = data[self._file.write(data) :]

    def finish(self) -> None:
        """Give the file its size, where it ends in a hole."""
        self._file.truncate(self.size)


def _is_hole(block: memoryview) -> bool:
    # its ends first: nearly all that is no hole is known by them, and nothing is copied
    return len(block) >= 4096 and not block[0] and not block[-1] and bytes(block) == _ZEROS[: len(block)]


class SparseTarFile(tarfile.TarFile):
    """A tar whose sparse files are stored without their holes, as GNU tar does (format 1.0)."""

    fills_up = False
    """Whether what becomes shorter or unreadable while it is read is filled up with zeros, instead of an error."""

    def addfile(self, tarinfo: tarfile.TarInfo, fileobj: Any = None) -> None:
        """As TarFile's."""
        if fileobj is not None and tarinfo.isreg() and _has_holes(fileobj):
            segments = _segments(fileobj.fileno(), tarinfo.size)
            if len(segments) <= _MOST_SEGMENTS:
                tarinfo, fileobj = _without_holes(tarinfo, fileobj, segments)
        if fileobj is not None and self.fills_up:
            fileobj = _FilledUp(fileobj)
        super().addfile(tarinfo, fileobj)


def _has_holes(file: IO[bytes]) -> bool:
    try:
        status = os.fstat(file.fileno())
    except OSError:  # no file, but something that reads like one
        return False
    return status.st_size > BLOCK and status.st_blocks * 512 < status.st_size


def _segments(fd: int, size: int) -> list[tuple[int, int]]:
    """Where data is: offsets and lengths; and the end, with none."""
    found: list[tuple[int, int]] = []
    at = 0
    with contextlib.suppress(OSError):  # no data follows
        while at < size and len(found) <= _MOST_SEGMENTS:
            begin = os.lseek(fd, at, os.SEEK_DATA)
            at = min(size, os.lseek(fd, begin, os.SEEK_HOLE))
            if begin >= size:
                break
            found.append((begin, at - begin))
    os.lseek(fd, 0, os.SEEK_SET)  # as it was found
    return [*found, (size, 0)]


def _without_holes(
    info: tarfile.TarInfo, file: IO[bytes], segments: list[tuple[int, int]]
) -> tuple[tarfile.TarInfo, IO[bytes]]:
    listed = "".join(f"{offset}\n{length}\n" for offset, length in segments)
    head = f"{len(segments)}\n{listed}".encode()
    head += bytes(-len(head) % tarfile.BLOCKSIZE)
    info = copy(info)
    folder, _, name = info.name.rpartition("/")
    info.pax_headers = {
        **info.pax_headers,
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": info.name,
        "GNU.sparse.realsize": str(info.size),
    }
    info.name = f"{folder or '.'}/GNUSparseFile.0/{name}"
    info.size = len(head) + sum(length for _, length in segments)
    return info, io.BufferedReader(_Segments(head, file.fileno(), segments), BLOCK)


class _FilledUp:
    """A file that always has as many bytes as are asked for."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file

    def read(self, size: int) -> bytes:
        data = b""
        with contextlib.suppress(OSError):
            data = self._file.read(size)
        return data.ljust(size, b"\0")


class _Segments(io.RawIOBase):
    """A list of segments, and then what is in them."""

    def __init__(self, head: bytes, fd: int, segments: list[tuple[int, int]]) -> None:
        self._head = memoryview(head)
        self._fd = fd
        self._left = segments[::-1]

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data: memoryview | bytes = self._head[: len(buffer)]
        self._head = self._head[len(data) :]
        while not data and self._left:  # more than once where the file has become shorter
            offset, length = self._left.pop()
            data = os.pread(self._fd, min(length, len(buffer)), offset)
            if data and len(data) < length:
                self._left.append((offset + len(data), length - len(data)))
        buffer[: len(data)] = data
        return len(data)
