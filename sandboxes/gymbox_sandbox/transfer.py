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

_CHUNK = 1 << 18
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
            _say(f"{_write(path, int(mode, 8), int(most))}\n".encode())
        case ["pack", path, *only]:
            _pack(path, only)
        case ["watch", path, recursive]:
            from gymbox_sandbox.watching import watch

            watch(path, recursive == "1", _say)
        case ["unpack", path, most_bytes, most_files]:
            _say(f"{_unpack(path, int(most_bytes), int(most_files))}\n".encode())


def guarded(work: Callable[[], None]) -> int:
    """Do it, and tell as above what fails; the exit code."""
    signal.signal(signal.SIGTERM, _cut_off)
    try:
        work()
    except Refused as error:
        return _fail(error.kind, error.cause, str(error))
    except OSError as error:
        kind, cause = _KINDS.get(error.errno or 0, ("internal", "-"))
        return _fail(kind, cause, f"{error.filename or 'transfer'}: {error.strerror or error}")
    except SystemExit:
        return 1
    return 0


def load(verb: str) -> None:
    """Import what a transfer needs, which whoever it will be may not be allowed to read."""
    if verb in ("pack", "unpack", "write"):
        from gymbox_sandbox import sparse  # noqa: F401
    elif verb == "watch":
        from gymbox_sandbox import watching  # noqa: F401


def _fail(kind: str, cause: str, text: str) -> int:
    os.write(2, f"{kind} {cause} {text}".encode(errors="replace"))
    return 1


def _cut_off(number: int, frame: object) -> NoReturn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # one more must not cut off the clean-up
    raise SystemExit(1)


def _say(data: bytes) -> None:
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
    _say(f"{left}\n".encode())
    if left > 0:
        left -= _splice(fd, left)
    while left and (chunk := os.read(fd, min(_CHUNK, left) if left > 0 else _CHUNK)):
        _say(chunk)
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
    os.makedirs(parent or ".", exist_ok=True)
    directory = os.open(parent or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    # what takes a file's place needs only its folder's permission; one that was made read-only is meant to stay
    if not (os.access(name, os.W_OK, dir_fd=directory) or _is_missing_or_link(directory, name)):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return _store(directory, name, _input(path, most), mode)


def _is_missing_or_link(directory: int, name: str) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=directory, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return True


def _input(path: str, most: int) -> Iterator[bytes]:
    while chunk := os.read(0, _CHUNK):
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

    partial = f".{name[:64]}.{os.urandom(6).hex()}.partial"
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


def _pack(path: str, only: Sequence[str]) -> None:
    from tarfile import PAX_FORMAT

    from gymbox_sandbox.sparse import SparseTarFile

    os.close(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NONBLOCK | os.O_CLOEXEC))
    _say(b"-1\n")
    patterns = [pattern.split("/") for pattern in only]
    with (
        open(1, "wb", closefd=False) as output,
        SparseTarFile.open(mode="w|", fileobj=output, bufsize=_CHUNK, format=PAX_FORMAT) as archive,
    ):
        for folder, folders, files in os.walk(path, onerror=_raise):
            folders.sort()
            inside = os.path.relpath(folder, path)
            if not patterns or _chosen(inside, patterns):
                _add(archive, folder, inside)
            for name in sorted(files + [each for each in folders if os.path.islink(os.path.join(folder, each))]):
                member = os.path.normpath(os.path.join(inside, name))
                if not patterns or (_chosen(member, patterns) and not _leads_out(os.path.join(folder, name), member)):
                    _add(archive, os.path.join(folder, name), member)


def _chosen(member: str, patterns: Sequence[list[str]]) -> bool:
    """Whether a pattern matches the member, or a folder that it is in. `*`, `?` and `[…]` stay within a name, `**` is
    any number of folders."""
    parts = member.split("/")
    return member != "." and any(
        _matches(parts[:length], pattern) for pattern in patterns for length in range(1, len(parts) + 1)
    )


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    from fnmatch import fnmatchcase

    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1))
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _leads_out(path: str, member: str) -> bool:
    """Whether it is a link that `unpack` would refuse, and the rest of the archive with it."""
    try:
        target = os.readlink(path)
    except OSError:
        return False
    return _leaves(target, member.count("/"))


def _raise(error: OSError) -> NoReturn:
    raise error


def _add(archive: TarFile, path: str, name: str) -> None:
    """Add a file, folder or link; sockets, FIFOs and devices are left out, and what has gone meanwhile."""
    with contextlib.suppress(FileNotFoundError):
        mode = os.lstat(path).st_mode
        if stat.S_ISREG(mode):
            fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
            with open(fd, "rb") as file:
                _add_as(archive, archive.gettarinfo(arcname=name, fileobj=file), file)
        elif stat.S_ISDIR(mode) or stat.S_ISLNK(mode):
            _add_as(archive, archive.gettarinfo(path, arcname=name))


def _add_as(archive: TarFile, info: TarInfo, file: object = None) -> None:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    archive.addfile(info, file if info.isreg() else None)  # type: ignore[arg-type]
    archive.members.clear()  # type: ignore[attr-defined]  # else it remembers every member


def _unpack(path: str, most_bytes: int, most_files: int) -> int:
    import tarfile

    os.makedirs(path, exist_ok=True)
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
    except tarfile.TarError as error:
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
            mode = member.mode & 0o755 | 0o600
            _store(folder, name, iter(lambda: source.read(_CHUNK), b""), mode, max(0, member.mtime))
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
        Refused: it leaves the tree.
    """
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
    if _leaves(member.linkname, depth):
        raise Refused(f"the link {member.name!r} leaves the tree: {member.linkname!r}", cause="bad_archive")


def _leaves(link: str, depth: int) -> bool:
    """Whether a link may lead out of the tree: it may climb to the root, and from there only descend."""
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
