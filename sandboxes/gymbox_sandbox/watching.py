"""Watching: what changes in a folder, as the kernel tells whoever runs this (inotify).

One JSON object a line: `{"ready": true}` once everything is watched; `{"change": KIND, "path": P, "folder": bool}`
with a path below what is watched, KIND one of created, modified, attributes, deleted, and moved (`"to": P2`; a move in
or out is created or deleted); `{"overflow": true}` where some changes were missed, because there were too many for
whoever reads, or too many folders to watch. What is made in a new folder while that is found may be told twice.
"""

from __future__ import annotations

import ctypes
import errno
import json
import os
import struct
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

MOST_FOLDERS = 8192
_MODIFY, _ATTRIB, _MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x2, 0x4, 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _OVERFLOW, _IGNORED, _IS_FOLDER = 0x400, 0x4000, 0x8000, 0x4000_0000
_ONLY_FOLDERS, _NO_FOLLOW = 0x0100_0000, 0x0200_0000
_WATCHED = _MODIFY | _ATTRIB | _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE
_KINDS = {_MODIFY: "modified", _ATTRIB: "attributes", _MOVED_TO: "created", _CREATE: "created", _DELETE: "deleted"}
_HEAD = struct.Struct("iIII")
_libc = ctypes.CDLL(None, use_errno=True)


class _Event(NamedTuple):
    watch: int
    mask: int
    cookie: int
    name: str


class Watcher:
    """Watches one folder, and all below it if `recursive`; `say` gets each line."""

    def __init__(self, root: str, recursive: bool, say: Callable[[dict[str, Any]], None]) -> None:
        """
        Raises:
            OSError: it is no folder, or cannot be read.
        """
        self._root = root
        self._recursive = recursive
        self._say = say
        self._fd = _checked(_libc.inotify_init1(os.O_CLOEXEC))
        self._paths: dict[int, str] = {}
        self._full = False
        self._watch("", must=True)

    def run(self) -> None:
        """Tell of changes until the folder itself is gone."""
        self._say({"ready": True})
        while self._paths:
            self._tell(list(_events(os.read(self._fd, 1 << 16))))

    def _watch(self, path: str, *, must: bool = False, found: bool = False) -> None:
        """Watch a folder and those below it; `found` says that what is in those not watched before is new, and to be
        told."""
        waiting = [path]
        while waiting:
            path = waiting.pop()
            whole = os.path.join(self._root, path) if path else self._root
            mask = _WATCHED | _ONLY_FOLDERS | (0 if must and not path else _NO_FOLLOW)
            watch = _libc.inotify_add_watch(self._fd, os.fsencode(whole), mask | (0 if path else _DELETE_SELF))
            if watch < 0:
                number = ctypes.get_errno()
                if must and not path:
                    raise OSError(number, os.strerror(number), whole)
                if number == errno.ENOSPC:
                    self._overflow()
                continue  # gone already, or not ours to read
            known = watch in self._paths
            if not known and len(self._paths) >= MOST_FOLDERS:
                _libc.inotify_rm_watch(self._fd, watch)
                self._overflow()
                return
            self._paths[watch] = path
            if not self._recursive and not found:
                continue
            try:
                entries = list(os.scandir(whole))
            except OSError:
                if found and not known:  # moved meanwhile: where it is then, it is found anew, with what is in it
                    _libc.inotify_rm_watch(self._fd, watch)
                    del self._paths[watch]
                continue
            for entry in entries:
                below = os.path.join(path, entry.name)
                folder = entry.is_dir(follow_symlinks=False)
                if found and not known:
                    self._change("created", below, folder)
                if folder and self._recursive:
                    waiting.append(below)

    def _tell(self, events: list[_Event]) -> None:
        moved: _Event | None = None
        for event in events:
            if moved is not None and not (event.mask & _MOVED_TO and event.cookie == moved.cookie):
                self._left(moved)
                moved = None
            if event.mask & _OVERFLOW:
                self._say({"overflow": True})
                self._watch("")  # folders may have come that nobody told of
            elif event.mask & (_IGNORED | _DELETE_SELF):
                self._paths.pop(event.watch, None)
            elif event.watch not in self._paths:
                pass
            elif event.mask & _MOVED_FROM:
                moved = event
            else:
                self._one(event, moved)
                moved = None
        if moved is not None:
            self._left(moved)

    def _one(self, event: _Event, moved: _Event | None) -> None:
        path, folder = self._path(event), bool(event.mask & _IS_FOLDER)
        if moved is not None and moved.watch in self._paths:
            before = self._path(moved)
            self._say({"change": "moved", "path": _text(before), "to": _text(path), "folder": folder})
            if folder:
                self._rename(before, path)
                if self._recursive:
                    self._watch(path, found=True)  # what was moved before it could be watched where it was made
            return
        kind = next((name for bit, name in _KINDS.items() if event.mask & bit), None)
        if kind is not None and (event.name or not event.mask & _ATTRIB):
            self._change(kind, path, folder)
        if folder and self._recursive and event.mask & (_CREATE | _MOVED_TO):
            self._watch(path, found=True)

    def _left(self, event: _Event) -> None:
        """It was moved to where nobody watches."""
        path = self._path(event)
        self._change("deleted", path, bool(event.mask & _IS_FOLDER))
        for watch, below in list(self._paths.items()):
            if below == path or below.startswith(path + "/"):
                _libc.inotify_rm_watch(self._fd, watch)
                del self._paths[watch]

    def _rename(self, before: str, after: str) -> None:
        for watch, path in self._paths.items():
            if path == before or path.startswith(before + "/"):
                self._paths[watch] = after + path[len(before) :]

    def _path(self, event: _Event) -> str:
        return os.path.join(self._paths[event.watch], event.name)

    def _change(self, kind: str, path: str, folder: bool) -> None:
        self._say({"change": kind, "path": _text(path), "folder": folder})

    def _overflow(self) -> None:
        if not self._full:
            self._full = True
            self._say({"overflow": True})


def _events(data: bytes) -> Iterator[_Event]:
    at = 0
    while at < len(data):
        watch, mask, cookie, length = _HEAD.unpack_from(data, at)
        at += _HEAD.size
        yield _Event(watch, mask, cookie, os.fsdecode(data[at : at + length].rstrip(b"\0")))
        at += length


def _text(path: str) -> str:
    """A path as it can be written as JSON: what is not UTF-8 in it is replaced."""
    return os.fsencode(path).decode(errors="replace")


def _checked(result: int) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), "inotify")
    return result


def watch(root: str, recursive: bool, write: Callable[[bytes], None]) -> None:
    """Write lines about what changes below `root` until it is gone.

    Raises:
        OSError: it is no folder, or cannot be watched.
    """
    Watcher(root, recursive, lambda line: write(json.dumps(line).encode() + b"\n")).run()
