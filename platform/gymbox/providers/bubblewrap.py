"""Bubblewrap: a view of this machine in which a process provider's sandboxes do little harm."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

import gymbox_sandbox

from gymbox.providers.own_session import in_own_session

SYSTEM = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/opt")
SETTINGS = (
    "/etc/alternatives",
    "/etc/ca-certificates",
    "/etc/group",
    "/etc/ld.so.cache",
    "/etc/ld.so.conf",
    "/etc/ld.so.conf.d",
    "/etc/localtime",
    "/etc/mime.types",
    "/etc/nsswitch.conf",
    "/etc/passwd",
    "/etc/ssl",
)
CAPABILITIES = ("CAP_SETUID", "CAP_SETGID", "CAP_KILL")
"""What the engine of a zygote needs to start and end commands as another user."""


def bubblewrapped(command: list[str], read_only: Iterable[Path], writable: Path | None = None) -> list[str]:
    """`command` in namespaces of its own: no network, no other processes, a private /tmp, a read-only system.

    Only programs, libraries and Python are there, `read_only` beside them, and `writable`. Home directories, /run with
    its sockets, and secrets in /etc are not. It dies with the process that starts it, which is to give it a session of
    its own, away from any terminal.
    """
    arguments = [shutil.which("bwrap") or "bwrap", "--die-with-parent"]
    arguments += ["--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--hostname", "sandbox"]
    arguments += ["--proc", "/proc", "--dev", "/dev", "--perms", "1777", "--tmpfs", "/tmp"]
    if os.getuid() == 0:
        arguments += ["--cap-drop", "ALL", *(word for name in CAPABILITIES for word in ("--cap-add", name))]
    for path in SYSTEM:
        if os.path.islink(path):
            arguments += ["--symlink", os.readlink(path), path]
        else:
            arguments += ["--ro-bind-try", path, path]
    shown = [*map(Path, SETTINGS), *_python(), *read_only]
    # what bubblewrap itself makes of a path that leads to these, only its own user may enter
    for parent in _parents([*shown, *([writable] if writable else [])]):
        arguments += ["--perms", "0755", "--dir", str(parent)]
    for found in shown:
        arguments += ["--ro-bind-try", str(found), str(found)]
    if writable is not None:
        arguments += ["--bind", str(writable), str(writable)]
    return [*arguments, "--remount-ro", "/", "--chdir", "/", "--", *command]


async def why_not(within: float = 10) -> str | None:
    """Why bubblewrap cannot be used here; None if it can. It is tried, for so many seconds at most."""
    if shutil.which("bwrap") is None:
        return "bubblewrap is not installed (apt-get install bubblewrap)"
    command = bubblewrapped([sys.executable, "-IBc", ""], [])
    process = await in_own_session(*command, stderr=asyncio.subprocess.PIPE, env={})
    try:
        async with asyncio.timeout(within):
            _, errors = await process.communicate()
    except TimeoutError:
        return f"bubblewrap does not work here: it did not end within {within:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return None if process.returncode == 0 else f"bubblewrap does not work here: {errors.decode().strip()[-300:]}"


def _parents(paths: Iterable[Path]) -> list[Path]:
    """All folders above these but the root, the upper ones first."""
    return sorted({parent for path in paths for parent in path.parents[:-1]}, key=lambda parent: len(parent.parts))


def _python() -> list[Path]:
    """Where this interpreter and its packages are, under every name that leads there."""
    package = Path(gymbox_sandbox.__file__).parent
    named = [Path(sys.prefix), Path(sys.base_prefix), Path(sys.executable).resolve().parent, package]
    return [path for name in named for path in dict.fromkeys([name, name.resolve()])]
