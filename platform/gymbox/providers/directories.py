"""Directories: where a sandbox's sockets are, made so that none but those who should can reach them."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gymbox_sandbox.options import User


def make_directory(directory: Path, server: User | None) -> None:
    """Make a sandbox's directory; it may be there already. None: it is for our own user alone.

    Else it belongs to the server's user and the proxy's group, which takes root. What is made in it inherits the
    group, so the proxy may connect and the agent may not even look.
    """
    directory.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    directory.mkdir(mode=0o700, exist_ok=True)
    if server is not None:
        os.chown(directory, *server)
        directory.chmod(0o2770)


def remove_directory(directory: Path) -> None:
    """Remove it with all that is in it, also what an agent of our own user has closed to us; it may be gone.

    Raises:
        OSError: something in it cannot be removed.
    """

    def permit(function: Callable[..., Any], path: str, error: BaseException) -> None:
        if isinstance(error, FileNotFoundError):
            return  # someone else is removing it too
        if not isinstance(error, PermissionError):
            raise error
        for closed in {Path(path), Path(path).parent} - {directory.parent}:
            if closed.is_dir() and not closed.is_symlink():
                closed.chmod(stat.S_IRWXU)
        if function is os.unlink or function is os.rmdir:
            function(path)
        else:
            remove_directory(Path(path))

    shutil.rmtree(directory, onexc=permit)
