"""Register: which runs are live on this machine for this user, and where they can be asked.

One file a run in the user's state folder, locked by the process that does it for as long as it lives, so that what a
killed process left is known by the lock that nobody holds.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from socket import AF_UNIX, SOCK_STREAM, socket

from gymbox.errors import ConfigError, Unavailable
from gymbox.sockets import PinnedSocket

HOST = "run"
"""What callers name as host: there is one behind each socket."""
_LOCK, _ENTRY, _SOCKET = "lock", ".json", ".sock"


@dataclass(frozen=True, slots=True)
class Entry:
    """A live run."""

    id: str
    folder: str
    """Absolute."""
    socket: str
    """Where its process answers `/v1/runs`."""
    pid: int


class Register:
    """The live runs below one state folder.

    Raises:
        ConfigError: the folder cannot be made or read.
    """

    def __init__(self, state: Path) -> None:
        self.folder = state / "runs"

    def new_socket(self) -> Path:
        """A path for a socket of this process, in the folder that only this user can enter."""
        self._make()
        return self.folder / f"{secrets.token_hex(4)}{_SOCKET}"

    @contextmanager
    def entered(self, id: str, folder: Path, socket: Path) -> Iterator[None]:
        """The run stands in the register within the block."""
        self._make()
        entry = Entry(id, str(folder.resolve()), str(socket), os.getpid())
        path, new = self.folder / f"{id}{_ENTRY}", self.folder / f".{id}.{secrets.token_hex(4)}"
        descriptor = os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # held by nobody else: the file is new
            os.write(descriptor, json.dumps(asdict(entry)).encode())
            with self._alone():
                new.replace(path)
            yield
        finally:
            with self._alone():
                new.unlink(missing_ok=True)
                with suppress(FileNotFoundError):
                    if os.path.samestat(path.stat(), os.fstat(descriptor)):
                        path.unlink()
            os.close(descriptor)

    def live(self) -> list[Entry]:
        """The runs whose process lives, by id; what the others left is removed."""
        if not self.folder.is_dir():
            return []
        with self._alone():
            entries = [entry for path in sorted(self.folder.glob(f"*{_ENTRY}")) if (entry := _live(path)) is not None]
            kept = {entry.socket for entry in entries}
            for path in self.folder.glob(f"*{_SOCKET}"):
                if str(path) not in kept and not _answers(path):
                    path.unlink(missing_ok=True)
        return entries

    def _make(self) -> None:
        try:
            if not self.folder.parent.exists():
                # as a controller makes it: others may pass through to a socket's folder, but not look around
                self.folder.parent.mkdir(parents=True, exist_ok=True)
                self.folder.parent.chmod(0o711 if os.geteuid() == 0 else 0o700)
            self.folder.mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot keep a register of runs in {self.folder}: {error.strerror}") from error

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """One process at a time changes the register, so that nobody removes what another has just put there."""
        descriptor = os.open(self.folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


def _live(path: Path) -> Entry | None:
    """The entry of a process that lives; one that nobody holds is removed, its socket with it."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        try:
            content = os.read(descriptor, 65_536)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                return Entry(**json.loads(content))
            except (ValueError, TypeError):
                return None
        path.unlink(missing_ok=True)
        return None
    finally:
        os.close(descriptor)


def _answers(path: Path) -> bool:
    """Whether somebody listens there: a process has its socket before it has a run."""
    with socket(AF_UNIX, SOCK_STREAM) as probe:
        probe.settimeout(1)
        try:
            with PinnedSocket(path) as pinned:
                probe.connect(pinned.address)
        except (OSError, Unavailable):
            return False
        return True
