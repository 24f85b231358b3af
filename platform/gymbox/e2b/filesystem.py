"""Filesystem: files and folders of one sandbox, looked at and moved by its own shell, as its own user."""

from __future__ import annotations

import base64
import posixpath
import stat
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gymbox_sandbox.wire import ExecResult

from gymbox.e2b.paths import in_sandbox
from gymbox.e2b.refusals import Code, Refused
from gymbox.errors import Conflict, Forbidden, Internal
from gymbox.sandbox_client import SandboxClient

MOST_TOLD = 8_000_000
"""Bytes of a listing."""
PATIENCE = 60.0
"""Seconds that one of these may take."""
_MISSING, _NO_FOLDER, _THERE = 44, 45, 46
"""Exit codes of the script."""
_END = "end"

# Of each batch: the names, each with a NUL; a NUL; a line on each, `-` for what is gone again; of each link its
# target's mode and what it says; `end`. Options are those that GNU's tools and BusyBox's have in common.
_SHOW = r"""
printf '%s\0' "$@" ''
lines=$(stat -c '%f %s %Y %U %G' "$@" 2>/dev/null) ||
    lines=$(for each do stat -c '%f %s %Y %U %G' "$each" 2>/dev/null || echo -; done)
printf '%s\0' "$lines"
for each do
    if [ -L "$each" ]; then printf '%s\0' "$(stat -L -c %f "$each" 2>/dev/null)" "$(readlink "$each")"; fi
done
printf 'end\0'
"""
_SCRIPT = rf"""
show=$1 verb=$2 path=$3 more=${{4-}}
there() {{ [ -e "$1" ] || [ -L "$1" ]; }}
case $verb in
    stat) there "$path" || exit {_MISSING}
        exec /bin/sh -c "$show" show "$path" ;;
    list) there "$path" || exit {_MISSING}
        [ -d "$path" ] || exit {_NO_FOLDER}
        exec find -H "$path" -mindepth 1 -maxdepth "$more" -exec /bin/sh -c "$show" show {{}} + ;;
    make) [ ! -d "$path" ] || exit {_THERE}
        ! there "$path" || exit {_NO_FOLDER}
        exec mkdir -p "$path" ;;
    move) there "$path" || exit {_MISSING}
        if [ -d "$more" ] && [ ! -L "$more" ]; then exit {_THERE}; fi
        mkdir -p "${{more%/*}}/" && exec mv -f "$path" "$more" ;;
    remove) exec rm -rf "$path" ;;
esac
"""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file, a folder or a link."""

    path: str
    mode: int
    """As the kernel has it, with the kind."""
    size: int
    modified: int
    """Unix seconds."""
    owner: str
    group: str
    followed: int | None = None
    """Of a link: the mode of what it leads to; None: it leads nowhere."""
    target: str | None = None
    """Of a link: what it says."""

    def message(self) -> dict[str, Any]:
        """As `filesystem.EntryInfo`."""
        link = self.target is not None
        found: dict[str, Any] = {
            "name": posixpath.basename(self.path),
            "type": _type(self.followed if link else self.mode),
            "path": self.path,
            "size": str(self.size),
            "mode": stat.S_IMODE(self.mode),
            "permissions": stat.filemode(self.mode),
            "owner": self.owner,
            "group": self.group,
            "modifiedTime": datetime.fromtimestamp(self.modified, UTC).isoformat().replace("+00:00", "Z"),
        }
        return found | ({"symlinkTarget": self.target, "isSymlink": True} if link else {})


def _type(mode: int | None) -> str:
    if mode is None:  # of a link that leads nowhere
        return "FILE_TYPE_SYMLINK"
    if stat.S_ISDIR(mode):
        return "FILE_TYPE_DIRECTORY"
    return "FILE_TYPE_FILE" if stat.S_ISREG(mode) else "FILE_TYPE_UNSPECIFIED"


def entries_in(told: bytes) -> list[Entry]:
    """What the script has shown.

    Raises:
        Conflict: it changed while it was looked at.
    """
    fields = iter(told.decode(errors="replace").split("\0")[:-1])
    found = []
    try:
        for first in fields:
            names = [first]
            while name := next(fields):
                names.append(name)
            for path, line in zip(names, next(fields).split("\n"), strict=True):
                if line != "-":
                    found.append(_entry(path, line, fields))
            if next(fields) != _END:
                raise ValueError
    except (StopIteration, ValueError) as error:
        raise Conflict("it changed while it was looked at: try again") from error
    return found


def _entry(path: str, line: str, fields: Any) -> Entry:
    mode, size, modified, owner, group = line.split(" ", 4)
    entry = Entry(path, int(mode, 16), int(size), int(modified), owner, group)
    if not stat.S_ISLNK(entry.mode):
        return entry
    followed, target = next(fields), next(fields)
    return Entry(
        path, entry.mode, entry.size, entry.modified, owner, group, int(followed, 16) if followed else None, target
    )


class Filesystem:
    """Files and folders of one sandbox; paths are E2B's, see `in_sandbox`. Whatever is called, Forbidden is raised
    where the user may not do that.

    Args:
        home: where its relative paths begin.
    """

    def __init__(self, client: SandboxClient, home: str) -> None:
        self._client = client
        self._home = home

    def at(self, path: str) -> str:
        """See `in_sandbox`."""
        return in_sandbox(path, self._home)

    async def stat(self, path: str) -> Entry:
        """
        Raises:
            Refused: there is nothing.
        """
        found = entries_in(await self._ask("stat", self.at(path)))
        if not found:
            raise _missing(path)
        return found[0]

    async def list(self, path: str, depth: int) -> list[Entry]:
        """What is in a folder, by name; `depth` is how many folders deep.

        Raises:
            Refused: there is no such folder, or there is too much in it.
        """
        return sorted(entries_in(await self._ask("list", self.at(path), str(depth))), key=lambda entry: entry.path)

    async def make(self, path: str) -> Entry:
        """Make a folder, with those above it.

        Raises:
            Refused: it is there, or a file is.
        """
        await self._ask("make", self.at(path))
        return await self.stat(path)

    async def move(self, path: str, to: str) -> Entry:
        """Move a file or a folder; the folders above the new place are made, and a file there is replaced.

        Raises:
            Refused: there is nothing, or there is a folder where it is to go.
        """
        await self._ask("move", self.at(path), self.at(to))
        return await self.stat(to)

    async def remove(self, path: str) -> None:
        """Remove a file, or a folder with all in it; what is not there is fine."""
        await self._ask("remove", self.at(path))

    async def _ask(self, verb: str, path: str, *more: str) -> bytes:
        command = ["/bin/sh", "-c", _SCRIPT, "files", _SHOW, verb, path, *more]
        result = await self._client.exec(
            command, timeout=PATIENCE, output_limit=MOST_TOLD, encoding="base64", env={"LC_ALL": "C"}
        )
        if result.exit_code != 0:
            raise failure(result, (path, *more)[-1] if result.exit_code == _THERE else path)
        if result.truncated:
            raise Refused(Code.FAILED_PRECONDITION, f"there is too much in {path} to be told at once")
        return base64.b64decode(result.stdout)


def _missing(path: str) -> Refused:
    return Refused(Code.NOT_FOUND, f"path {path!r} does not exist")


def failure(result: ExecResult, path: str) -> Exception:
    """What it means that the script, or a tool of it, has ended like this."""
    said = base64.b64decode(result.stderr).decode(errors="replace").strip()[-300:]
    if result.timed_out:
        return Refused(Code.DEADLINE_EXCEEDED, f"{path}: it took longer than {PATIENCE:g} s")
    if result.exit_code == _MISSING:
        return _missing(path)
    if result.exit_code == _NO_FOLDER:
        return Refused(Code.INVALID_ARGUMENT, f"path {path!r} is not a directory")
    if result.exit_code == _THERE:
        return Refused(Code.ALREADY_EXISTS, f"path {path!r} is a directory that exists")
    if "ermission denied" in said or "ead-only file system" in said or "not permitted" in said:
        return Forbidden(said)
    if "o space left" in said:
        return Conflict(said, cause="disk_full")
    if "ile name too long" in said or "ot a directory" in said:
        return Refused(Code.INVALID_ARGUMENT, said)
    return Internal(f"{path}: {said or f'the shell ended with {result.exit_code}'}")
