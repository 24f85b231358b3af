"""Transfer: reads and writes files and trees as whoever runs it, over its standard streams.

It runs in a process of the agent's user, so permissions and links are the kernel's matter. What a caller asks of it:

    read PATH                       writes `SIZE\\n` (-1: unknown) and the bytes
    write PATH MODE BYTES           reads the bytes (at most BYTES); writes how many they were
    pack PATH [ONLY…]               writes `-1\\n` and a tar of the tree, or of what these patterns match in it
    unpack PATH BYTES FILES         reads a tar of at most so much; writes how many files it held
    watch PATH RECURSIVE            writes what changes in a folder (see watching), until it is gone

Holes of sparse files are kept: in a tar they are not stored, and of plain bytes zeros are not written.

On failure the exit code is 1 and standard error holds `KIND CAUSE TEXT` (KIND as in problems, CAUSE `-` or one word).
SIGTERM is for a transfer that was cut off: what is half written is removed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import stat
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from tarfile import TarFile, TarInfo

CHUNK = 1 << 18
LATEST = 1 << 62
"""Seconds: the last time that a file of an archive may be of; the kernel takes few more."""
_LONGEST_PATH = 4095
"""Bytes of a path that the kernel takes."""
_LONGEST_SHOWN = 512
"""Characters of a path in an error."""
_KINDS = {
    errno.ENOENT: ("not_found", "-"),
    errno.ENOTDIR: ("not_found", "-"),
    errno.EACCES: ("forbidden", "-"),
    errno.EPERM: ("forbidden", "-"),
    errno.EROFS: ("forbidden", "-"),
    errno.ENOSPC: ("conflict", "disk_full"),
    errno.EDQUOT: ("conflict", "disk_full"),
    errno.EEXIST: ("conflict", "-"),
    errno.EISDIR: ("invalid", "directory"),
    errno.ENAMETOOLONG: ("invalid", "-"),
    errno.ELOOP: ("invalid", "-"),
    errno.ENXIO: ("invalid", "special_file"),
}


class Refused(Exception):
    """It cannot be done; `kind` and `cause` are for the wire."""

    def __init__(self, text: str, kind: str = "invalid", cause: str = "-") -> None:
        super().__init__(text)
        self.kind = kind
        self.cause = cause


def main(arguments: Sequence[str]) -> int:
    """Do what the arguments ask for; the exit code."""
    return guarded(lambda: _do(arguments))


def _do(arguments: Sequence[str]) -> None:
    match arguments:
        case ["read", path]:
            _read(path)
        case ["write", path, mode, most]:
            say(f"{_write(path, int(mode, 8), int(most))}\n".encode())
        case ["pack", path, *only]:
            from gymbox_sandbox.packing import pack

            pack(path, only)
        case ["watch", path, recursive]:
            from gymbox_sandbox.watching import watch

            watch(path, recursive == "1", say)
        case ["unpack", path, most_bytes, most_files]:
            say(f"{_unpack(path, int(most_bytes), int(most_files))}\n".encode())


def guarded(work: Callable[[], None]) -> int:
    """Do it, and tell as above what fails; the exit code."""
    signal.signal(signal.SIGTERM, _cut_off)
    try:
        work()
    except Refused as error:
        return _fail(error.kind, error.cause, str(error))
    except OSError as error:
        kind, cause = _KINDS.get(error.errno or 0, ("internal", "-"))
        return _fail(kind, cause, f"{_shown(error.filename) or 'transfer'}: {error.strerror or error}")
    except SystemExit:
        return 1
    except Exception as error:  # told in one line, and not as the traceback that this process would end with
        return _fail("internal", "-", f"transfer: {type(error).__name__}: {error}")
    return 0


def load(verb: str) -> None:
    """Import what a transfer needs, which whoever it will be may not be allowed to read."""
    if verb == "pack":
        from gymbox_sandbox import packing  # noqa: F401
    elif verb in ("unpack", "write"):
        from gymbox_sandbox import sparse  # noqa: F401
    elif verb == "watch":
        from gymbox_sandbox import watching  # noqa: F401


def _fail(kind: str, cause: str, text: str) -> int:
    os.write(2, f"{kind} {cause} {text}".encode(errors="replace"))
    return 1


def _shown(path: object) -> str:
    text = "" if path is None else str(path)
    return text if len(text) <= _LONGEST_SHOWN else f"{text[: _LONGEST_SHOWN // 2]}…{text[-_LONGEST_SHOWN // 2 :]}"


def _cut_off(number: int, frame: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one more must not cut off the clean-up
    raise SystemExit(1)


def say(data: bytes) -> None:
    """Write to whoever asked."""
    _write_all(1, data)


def _write_all(fd: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _read(path: str) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)  # a FIFO would block
    status = os.fstat(fd)
    _refuse_special(path, status.st_mode)
    # what the kernel makes up as it is read (/proc) has size 0
    left = status.st_size or -1
    say(f"{left}\n".encode())
    if left > 0:
        left -= _splice(fd, left)
    while left and (chunk := os.read(fd, min(CHUNK, left) if left > 0 else CHUNK)):
        say(chunk)
        left -= len(chunk) if left > 0 else 0
    if left > 0:
        raise Refused(f"{path} became shorter while it was read", "conflict")


def _splice(fd: int, size: int) -> int:
    """Move so many bytes of a file to the output without a copy, as far as the kernel can; how many that were."""
    done = 0
    with contextlib.suppress(OSError):  # not of every file system, and not into every output
        while done < size and (moved := os.splice(fd, 1, size - done)):
            done += moved
    return done


def _refuse_special(path: str, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise Refused(f"{path} is a directory", cause="directory")
    if not stat.S_ISREG(mode):
        raise Refused(f"{path} is no regular file", cause="special_file")


def _write(path: str, mode: int, most: int) -> int:
    parent, name = os.path.split(path)
    if name in ("", ".", ".."):
        raise Refused(f"{path} names a directory", cause="directory")
    _make_folders(parent or ".")
    directory = os.open(parent or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    # what takes a file's place needs only its folder's permission; one that was made read-only is meant to stay
    if not (os.access(name, os.W_OK, dir_fd=directory) or _is_missing_or_link(directory, name)):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return _store(directory, name, _input(path, most), mode)


def _make_folders(path: str) -> None:
    """As os.makedirs, which calls itself for each folder above, and so cannot make all that a path may have."""
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), path)
    missing = [path]
    while (above := os.path.dirname(missing[-1])) not in ("", missing[-1]) and not os.path.exists(above):
        missing.append(above)
    for each in reversed(missing):
        try:
            os.mkdir(each)
        except FileExistsError:
            if not os.path.isdir(each):
                raise


def _is_missing_or_link(directory: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return True


def _input(path: str, most: int) -> Iterator[bytes]:
    while chunk := os.read(0, CHUNK):
        most -= len(chunk)
        if most < 0:
            raise Refused(f"{path}: more bytes than an upload may have", cause="too_large")
        yield chunk


def _store(directory: int, name: str, chunks: Iterator[bytes], mode: int, modified: float | None = None) -> int:
    """Write a file beside its place and move it there, so that no half of it is ever seen; its size."""
    with contextlib.suppress(FileNotFoundError):
        existing = os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode
        if not stat.S_ISLNK(existing):
            _refuse_special(name, existing)
    from gymbox_sandbox.sparse import SparseWriter

    begin = os.fsdecode(os.fsencode(name)[:64])  # a name may have 255 bytes, which are fewer characters
    partial = f".{begin}.{os.urandom(6).hex()}.partial"
    fd = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=directory)
    try:
        with open(fd, "wb", buffering=0, closefd=False) as file:
            writer = SparseWriter(file)
            for chunk in chunks:
                writer.write(chunk)
            writer.finish()
        os.fchmod(fd, mode)
        if modified is not None:
            os.utime(fd, (modified, modified))
        os.rename(partial, name, src_dir_fd=directory, dst_dir_fd=directory)
    except BaseException:
        os.unlink(partial, dir_fd=directory)
        raise
    finally:
        os.close(fd)
    return writer.size


def _unpack(path: str, most_bytes: int, most_files: int) -> int:
    import tarfile

    from gymbox_sandbox.sparse import NO_TAR

    _make_folders(path)
    root = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    files = size = 0
    try:
        with open(0, "rb", closefd=False) as source, tarfile.open(mode="r|", fileobj=source) as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]
                files += 1
                size += max(0, member.size)
                if files > most_files or size > most_bytes:
                    raise Refused(f"more than {most_files} files or {most_bytes} bytes", cause="too_large")
                _extract(archive, member, root)
    except NO_TAR as error:
        raise Refused(f"this is no whole tar archive: {error}", cause="bad_archive") from error
    return files


def _extract(archive: TarFile, member: TarInfo, root: int) -> None:
    """Write one member below `root`, never through a link, so no link of the archive can lead a later member out."""
    *folders, name = _parts(member.name) or [""]
    if member.isdir():
        os.close(_folder(root, [*folders, name] if name else [], member.name))
        return
    if not name or not (member.isreg() or member.issym() or member.islnk()):
        raise Refused(f"{member.name!r} is no file, folder or link", cause="bad_archive")
    folder = _folder(root, folders, member.name)
    try:
        if member.isreg():
            source = archive.extractfile(member)
            assert source is not None
            if not member.mtime <= LATEST:  # or no number at all
                raise Refused(f"{member.name!r} is of no time that a file can have", cause="bad_archive")
            mode = member.mode & 0o755 | 0o600
            _store(folder, name, iter(lambda: source.read(CHUNK), b""), mode, max(0, member.mtime))
        elif member.issym():
            _refuse_leaving(member, len(folders))
            _replace(folder, name, lambda: os.symlink(member.linkname, name, dir_fd=folder))
        elif (target := _parts(member.linkname)) != [*folders, name]:
            _link(root, target, folder, name, member)
    finally:
        os.close(folder)


def _parts(name: str) -> list[str]:
    """The components of a member's name.

    Raises:
        Refused: it leaves the tree, or is longer than any path.
    """
    if len(os.fsencode(name)) > _LONGEST_PATH:
        raise Refused(f"{_shown(name)!r} is too long a name", cause="bad_archive")
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts:
        raise Refused(f"{name!r} leaves the tree", cause="bad_archive")
    return parts


def _folder(root: int, parts: Sequence[str], name: str) -> int:
    """A descriptor of a folder below `root`, made where it is missing."""
    fd = os.dup(root)
    for part in parts:
        try:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=fd)
            below = os.open(part, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=fd)
        except NotADirectoryError:
            raise Refused(f"{name!r} passes through a link or a file", cause="bad_archive") from None
        finally:
            os.close(fd)
        fd = below
    return fd


def _refuse_leaving(member: TarInfo, depth: int) -> None:
    if leaves(member.linkname, depth):
        raise Refused(f"the link {member.name!r} leaves the tree: {member.linkname!r}", cause="bad_archive")


def leaves(link: str, depth: int) -> bool:
    """Whether a link, `depth` folders below the root of a tree, may lead out of it: it may climb to the root, and from
    there only descend."""
    target = [part for part in link.split("/") if part not in ("", ".")]
    climbs = 0
    while climbs < len(target) and target[climbs] == "..":
        climbs += 1
    return link.startswith("/") or climbs > depth or ".." in target[climbs:]


def _link(root: int, target: Sequence[str], folder: int, name: str, member: TarInfo) -> None:
    """Make a hard link to a file that the archive had before."""
    if not target:
        raise Refused(f"{member.name!r} links to nothing", cause="bad_archive")
    source = _folder(root, target[:-1], member.linkname)
    try:
        if not stat.S_ISREG(os.stat(target[-1], dir_fd=source, follow_symlinks=False).st_mode):
            raise Refused(f"{member.name!r} links to what is no regular file", cause="bad_archive")
        _replace(folder, name, lambda: os.link(target[-1], name, src_dir_fd=source, dst_dir_fd=folder))
    finally:
        os.close(source)


def _replace(folder: int, name: str, make: Callable[[], None]) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=folder)
    make()
