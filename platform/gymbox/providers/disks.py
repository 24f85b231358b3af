"""Disks: a workspace on disk that cannot outgrow its size, on any file system below and without quotas.

It is an ext4 file system in a sparse file behind a loop device. The file has no name any more by the time the engine
mounts the device, and the device lets go of it with the last who uses it: so it is gone with its container, or with
this process where that ends before, and there is nothing to sweep. It is not for `verify: fresh` or a crash of the
machine to find again, so it has no journal.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gymbox_sandbox.options import User

from gymbox.errors import Unavailable

_CONTROL = "/dev/loop-control"
_LOOP_CONFIGURE, _LOOP_CTL_GET_FREE, _AUTOCLEAR = 0x4C0A, 0x4C82, 4
_CONFIG = struct.Struct("=II 40x 12x I 64x 64x 32x 16x 64x")
"""`struct loop_config` of the kernel's interface, of which we set the file, the block size and the flags."""
_TRIES = 16
"""A free device may be taken by others between the two calls."""
_BLOCK = 4096
_TIMEOUT = 60


def make_file_system(file: Path, megabytes: int, inodes: int, owner: User) -> None:
    """Write an empty ext4 file system into a sparse file; its root belongs to `owner`.

    Raises:
        Unavailable: it cannot be made; the text says why and what to do.
    """
    file.touch(mode=0o600)
    os.truncate(file, megabytes << 20)
    options = f"nodiscard,lazy_itable_init=1,root_owner={owner}"
    commands = [
        ["mke2fs", "-q", "-F", "-t", "ext4", "-O", "^has_journal", "-m", "0", "-b", str(_BLOCK), "-N", str(inodes)],
        ["debugfs", "-w", "-R", "rmdir lost+found", str(file)],  # it is no file of the task's
    ]
    commands[0] += ["-E", options, str(file)]
    for command in commands:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT, env=_environment())
        except FileNotFoundError:
            raise Unavailable(f"limits.workspace: disk needs {command[0]}: apt-get install e2fsprogs") from None
        except (OSError, subprocess.TimeoutExpired) as error:
            raise Unavailable(f"no file system could be made for limits.workspace: disk: {error}") from error
        if done.returncode != 0:
            said = " ".join(done.stderr.split())[-300:]
            raise Unavailable(f"{command[0]} made no file system for limits.workspace: disk: {said}")


@contextmanager
def disk(folder: Path, megabytes: int, inodes: int, owner: User) -> Iterator[str]:
    """The path of a block device with an empty file system; it lives on beyond the block if it is mounted by then.

    Args:
        folder: whose file system has the file.

    Raises:
        Unavailable: this machine or this user cannot have one; the text says what to do.
    """
    folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".disk-") as made:
        file = Path(made) / "workspace"
        make_file_system(file, megabytes, inodes, owner)
        backing = os.open(file, os.O_RDWR | os.O_CLOEXEC)
    try:
        device, path = _attached(backing)
    finally:
        os.close(backing)
    try:
        yield path
    finally:
        os.close(device)


def _attached(backing: int) -> tuple[int, str]:
    """A loop device on an open file: its descriptor, which holds it, and its path."""
    try:
        control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
        try:
            for _ in range(_TRIES):
                path = f"/dev/loop{fcntl.ioctl(control, _LOOP_CTL_GET_FREE)}"
                device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
                try:
                    fcntl.ioctl(device, _LOOP_CONFIGURE, _CONFIG.pack(backing, _BLOCK, _AUTOCLEAR))
                except OSError as error:
                    os.close(device)
                    if error.errno != errno.EBUSY:
                        raise
                else:
                    return device, path
        finally:
            os.close(control)
    except OSError as error:
        raise Unavailable(
            f"limits.workspace: disk needs loop devices, which are not to be had here ({error.filename or _CONTROL}: "
            f"{error.strerror}): run the controller as root beside the engine, on Linux 5.8 or newer, "
            "or use limits.workspace: memory"
        ) from error
    raise Unavailable("others take every free loop device; try again", retry_after=1)


def _environment() -> dict[str, str]:
    return {"PATH": f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"}
