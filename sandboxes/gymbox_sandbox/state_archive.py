"""State archive: all that a task has left on its sandbox's file systems as one tar, and back from it.

It runs in a process of the supervisor's user, while the agent's processes stand still (see reaper), and uses files as
their owners. What it keeps: owners, modes, times, symbolic and hard links, FIFOs, holes of sparse files. What it does
not: sockets and devices, which are nothing without a process; extended attributes. Verbs, as of `transfer`:

    save BYTES LABEL=PATH…    writes a tar of at most so much to its output, a file; then `FILES LEFT_OUT` to errors
    load LABEL=PATH…          reads such a tar from its input, a file, into the same places, which nobody uses yet
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from functools import partial
from io import BytesIO
from typing import BinaryIO, NamedTuple, cast

from gymbox_sandbox.file_owners import FileOwners
from gymbox_sandbox.options import User
from gymbox_sandbox.sparse import NO_TAR
from gymbox_sandbox.transfer import Refused, guarded

_CHUNK = 1 << 20
_BLOCK = 512
_DEEPEST = 250
"""Folders in folders; each holds a descriptor while it is looked at."""
_OPEN = 0o777
"""Mode of folders while they are filled: owners come one after the other, and nobody else is there yet."""


def main(arguments: Sequence[str], agent: User | None, server: User | None) -> int:
    """Do what the arguments ask for; the exit code."""
    owners = FileOwners(agent, server)
    match arguments:
        case ["save", most, *places]:
            return guarded(lambda: _save(owners, int(most), _places(places)))
        case ["load", *places]:
            return guarded(lambda: _load(owners, _places(places)))
        case _:
            return 2


def _places(pairs: Sequence[str]) -> dict[str, str]:
    return {label: path for label, _, path in (pair.partition("=") for pair in pairs)}


# --- save


def _save(owners: FileOwners, most: int, places: dict[str, str]) -> None:
    with (
        open(1, "wb", closefd=False, buffering=_CHUNK) as output,
        tarfile.open(mode="w", fileobj=_Bounded(output, most), format=tarfile.PAX_FORMAT) as archive,  # type: ignore[call-overload]
    ):
        archive.copybufsize = _CHUNK
        saving = _Saving(owners, archive)
        for label, path in places.items():
            root = os.open("/", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                saving.add_folder(path.strip("/"), root, "other", label, 0)
            finally:
                os.close(root)
    os.write(2, f"{saving.files} {saving.left_out}".encode())


class _Bounded:
    """A file that takes so many bytes."""

    def __init__(self, file: BinaryIO, most: int) -> None:
        self._file = file
        self._left = most
        self.tell = file.tell

    def write(self, data: bytes) -> int:
        self._left -= len(data)
        if self._left < 0:
            raise Refused("its files are more than a snapshot may hold", "conflict", "too_large")
        return self._file.write(data)


class _Saving:
    def __init__(self, owners: FileOwners, archive: tarfile.TarFile) -> None:
        self.files = 0
        self.left_out = 0
        self._owners = owners
        self._archive = archive
        self._linked: dict[tuple[int, int], str] = {}

    def add_folder(self, name: str, parent: int, owner: str, member: str, depth: int) -> None:
        if depth > _DEEPEST:
            raise Refused(f"{member[:200]}…: more than {_DEEPEST} folders in each other", "conflict")
        flags = os.O_RDONLY | os.O_DIRECTORY
        with self._owners.opened(name, parent, owner, flags) as (folder, status):
            self._add(member, status, tarfile.DIRTYPE)
            mine = self._owners.name_of(status.st_uid)
            with _open_to_owner(folder, status, partial(self._owners.acting, mine)):
                with self._owners.acting(mine):
                    names = sorted(os.listdir(folder))
                for each in names:
                    self._add_child(each, folder, mine, f"{member}/{each}", depth)

    def _add_child(self, name: str, folder: int, owner: str, member: str, depth: int) -> None:
        with self._owners.acting(owner):
            status = os.stat(name, dir_fd=folder, follow_symlinks=False)
            target = os.readlink(name, dir_fd=folder) if stat.S_ISLNK(status.st_mode) else ""
        first = self._linked.get((status.st_dev, status.st_ino))
        if stat.S_ISDIR(status.st_mode):
            self.add_folder(name, folder, owner, member, depth + 1)
        elif first is not None:
            self._add(member, status, tarfile.LNKTYPE, first)
        elif stat.S_ISREG(status.st_mode):
            with self._owners.opened(name, folder, owner, os.O_RDONLY) as (file, found):
                self._add_file(member, file, found)
        elif stat.S_ISLNK(status.st_mode):
            self._add(member, status, tarfile.SYMTYPE, target)
        elif stat.S_ISFIFO(status.st_mode):
            self._add(member, status, tarfile.FIFOTYPE)
        else:
            self.left_out += 1
            return
        if status.st_nlink > 1 and not stat.S_ISDIR(status.st_mode):
            self._linked.setdefault((status.st_dev, status.st_ino), member)

    def _add(self, member: str, status: os.stat_result, kind: bytes, target: str = "") -> None:
        info = self._info(member, status)
        info.type, info.linkname = kind, target
        self._put(info)

    def _add_file(self, member: str, file: int, status: os.stat_result) -> None:
        info = self._info(member, status)
        extents = list(_extents(file, status.st_size))
        if sum(size for _, size in extents) == status.st_size:
            info.size = status.st_size
            with open(file, "rb", closefd=False, buffering=0) as content:
                self._put(info, content)
            return
        # the form that GNU tar and Python's tarfile read: a map of the data, then the data
        numbers = [len(extents), *(number for extent in extents for number in extent)]
        table = "".join(f"{number}\n" for number in numbers).encode()
        table += bytes(-len(table) % _BLOCK)
        info.pax_headers = {
            "GNU.sparse.major": "1",
            "GNU.sparse.minor": "0",
            "GNU.sparse.name": member,
            "GNU.sparse.realsize": str(status.st_size),
        }
        info.size = len(table) + sum(size for _, size in extents)
        self._put(info, _Data(table, file, extents))

    def _info(self, member: str, status: os.stat_result) -> tarfile.TarInfo:
        info = tarfile.TarInfo(member)
        info.mode = stat.S_IMODE(status.st_mode)
        info.mtime = status.st_mtime
        info.uname = self._owners.name_of(status.st_uid)
        return info

    def _put(self, info: tarfile.TarInfo, content: object = None) -> None:
        self.files += 1
        self._archive.addfile(info, content)  # type: ignore[arg-type]
        self._archive.members.clear()  # type: ignore[attr-defined]  # else it remembers every member


@contextlib.contextmanager
def _open_to_owner(
    folder: int, status: os.stat_result, acting: Callable[[], AbstractContextManager[None]]
) -> Iterator[None]:
    """Let its owner read and search a folder within the block, also where its mode does not."""
    mode, needed = stat.S_IMODE(status.st_mode), stat.S_IRUSR | stat.S_IXUSR
    if mode & needed == needed or status.st_uid == 0:
        yield
        return
    with acting():
        os.fchmod(folder, mode | needed)
    try:
        yield
    finally:
        with acting():
            os.fchmod(folder, mode)


def _extents(file: int, size: int) -> Iterator[tuple[int, int]]:
    """Offset and length of each run of data in a file; the last ends where the file does, if it ends in a hole."""
    end = 0
    while end < size:
        try:
            start = os.lseek(file, end, os.SEEK_DATA)
        except OSError:  # nothing but a hole
            break
        end = os.lseek(file, start, os.SEEK_HOLE)
        yield start, min(end, size) - start
    os.lseek(file, 0, os.SEEK_SET)
    if end < size or size == 0:
        yield size, 0


class _Data:
    """A sparse file's map and its runs of data, one after the other."""

    def __init__(self, table: bytes, file: int, extents: list[tuple[int, int]]) -> None:
        self._table = BytesIO(table)
        self._file = file
        self._left = [[start, size] for start, size in extents if size]

    def read(self, size: int) -> bytes:
        data = self._table.read(size)
        while len(data) < size and self._left:
            run = self._left[0]
            chunk = os.pread(self._file, min(size - len(data), run[1]), run[0])
            if not chunk:
                break  # it became shorter; tarfile sees that bytes are missing
            data += chunk
            run[0] += len(chunk)
            run[1] -= len(chunk)
            if not run[1]:
                self._left.pop(0)
        return data


# --- load


class _Late(NamedTuple):
    """What a folder gets once it is full."""

    path: list[str]
    owner: str
    mode: int
    modified: float


def _load(owners: FileOwners, places: dict[str, str]) -> None:
    with open(0, "rb", closefd=False) as source, tarfile.open(fileobj=source, mode="r:") as archive:
        loading = _Loading(owners, places)
        try:
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]
                loading.add(member, source.fileno())
        except NO_TAR as error:
            raise Refused(f"this is no whole snapshot: {error}", cause="bad_archive") from error
        loading.finish()


class _Loading:
    def __init__(self, owners: FileOwners, places: dict[str, str]) -> None:
        self._owners = owners
        self._places = places
        self._late: list[_Late] = []
        self._near: tuple[list[str], int] | None = None
        """The folder that the last member went to: the next mostly goes there too."""

    def add(self, member: tarfile.TarInfo, source: int) -> None:
        parts = member.name.split("/")
        if parts[0] not in self._places or {"", ".", ".."} & set(parts):
            raise Refused(f"{member.name!r} is in none of {', '.join(self._places)}", cause="bad_archive")
        *above, name = parts
        if not above:
            self._open_root(parts[0], member)
            return
        folder = self._folder(above)
        with self._owners.acting(member.uname):
            self._make(member, folder, name, source)
        if member.isdir():
            self._late.append(_Late(parts, member.uname, member.mode, member.mtime))

    def finish(self) -> None:
        """Give the folders their modes and times, the innermost first."""
        for path, owner, mode, modified in reversed(self._late):
            folder = self._folder(path)
            with self._owners.acting(owner):
                os.utime(f"/proc/self/fd/{folder}", (modified, modified))
                os.chmod(f"/proc/self/fd/{folder}", mode)
        self._forget()

    def _open_root(self, label: str, member: tarfile.TarInfo) -> None:
        folder = self._folder([label])
        owner = self._owners.name_of(os.fstat(folder).st_uid)
        if owner == "other" or owner != member.uname:
            return  # as /tmp, which is nobody's
        with self._owners.acting(owner):
            os.chmod(f"/proc/self/fd/{folder}", _OPEN)
        self._late.append(_Late([label], owner, member.mode, member.mtime))

    def _make(self, member: tarfile.TarInfo, folder: int, name: str, source: int) -> None:
        if member.isdir():
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=folder)
                made = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                try:
                    os.chmod(f"/proc/self/fd/{made}", _OPEN)
                finally:
                    os.close(made)
            return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name, dir_fd=folder)
        if member.isreg():
            self._write(member, folder, name, source)
        elif member.issym():
            os.symlink(member.linkname, name, dir_fd=folder)
            os.utime(name, (member.mtime, member.mtime), dir_fd=folder, follow_symlinks=False)
        elif member.islnk():
            self._link(member, folder, name)
        elif member.isfifo():
            os.mkfifo(name, member.mode, dir_fd=folder)
            os.chmod(name, member.mode, dir_fd=folder)
            os.utime(name, (member.mtime, member.mtime), dir_fd=folder)
        else:
            raise Refused(f"{member.name!r} is nothing that a snapshot holds", cause="bad_archive")

    def _write(self, member: tarfile.TarInfo, folder: int, name: str, source: int) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
        file = os.open(name, flags, 0o600, dir_fd=folder)
        try:
            place = member.offset_data
            runs = cast("list[tuple[int, int]] | None", getattr(member, "sparse", None))
            for offset, size in runs or [(0, member.size)]:
                os.lseek(file, offset, os.SEEK_SET)
                while size:
                    sent = os.sendfile(file, source, place, size)
                    if not sent:
                        raise Refused("this is no whole snapshot: it ends too early", cause="bad_archive")
                    place, size = place + sent, size - sent
            os.ftruncate(file, member.size)
            os.utime(file, (member.mtime, member.mtime))
            os.fchmod(file, member.mode)
        finally:
            os.close(file)

    def _link(self, member: tarfile.TarInfo, folder: int, name: str) -> None:
        *above, target = member.linkname.split("/")
        if not above or above[0] not in self._places or {"", ".", ".."} & set(above):
            raise Refused(f"{member.name!r} links to what is not in the snapshot", cause="bad_archive")
        here, self._near = self._near, None  # `folder` stays open
        try:
            os.link(target, name, src_dir_fd=self._folder(above), dst_dir_fd=folder, follow_symlinks=False)
        finally:
            self._forget()
            self._near = here

    def _folder(self, path: list[str]) -> int:
        """A descriptor of a folder in one of the places, never through a link; open until the next is asked for."""
        if self._near is not None and self._near[0] == path:
            return self._near[1]
        self._forget()
        folder = os.open(self._places[path[0]], os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        for part in path[1:]:
            above = folder
            try:
                folder = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=above)
            finally:
                os.close(above)
        self._near = path, folder
        return folder

    def _forget(self) -> None:
        if self._near is not None:
            os.close(self._near[1])
            self._near = None
