"""Trees: files and folders of this machine as they travel into a sandbox and out of one."""

from __future__ import annotations

import shutil
import stat
import tarfile
from pathlib import Path
from typing import IO, Literal

from gymbox_sandbox.sparse import BLOCK, SparseTarFile, SparseWriter

from gymbox.errors import ConfigError


def pack(source: Path, packed: IO[bytes]) -> int | None:
    """Write a file, or the tar of a tree, into `packed`; returns the mode of a file, None for a tree.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        mode = source.stat().st_mode
        if stat.S_ISDIR(mode):
            with SparseTarFile.open(fileobj=packed, mode="w") as tar:
                tar.add(source, arcname=".")
        else:
            with source.open("rb") as file:
                shutil.copyfileobj(file, packed)
    except OSError as error:
        raise ConfigError(f"cannot read {source}: {error.strerror}") from error
    packed.seek(0)
    return None if stat.S_ISDIR(mode) else mode & 0o777


def unpack(kind: Literal["tree", "file"], packed: IO[bytes], target: Path) -> None:
    """Write what came from a sandbox to `target`; nothing in it can get outside of that.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        if kind == "tree":
            # never packed: a few megabytes of xz could fill the disk
            with tarfile.open(fileobj=packed, mode="r:") as tar:
                tar.extractall(target, filter="data")
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("wb") as file:
                writer = SparseWriter(file)
                shutil.copyfileobj(packed, writer, BLOCK)
                writer.finish()
    except (OSError, ValueError, tarfile.TarError) as error:  # ValueError: of a sparse file's map
        raise ConfigError(f"cannot write {target}: {error}") from error
