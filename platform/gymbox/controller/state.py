"""State: what a controller keeps on disk: its id, its key, its lock, intents to delete, the sandboxes' sockets, claims
of pools' containers, and what pools and groups were asked for.

Sandboxes themselves are recorded by the provider (labels), not here. Below one parent folder there is `main` for the
controller that stays, and `run-<id>` for each that lives inside a `gymbox run`.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import NamedTuple, Self

from gymbox_sandbox.lifecycle import CreateGroup, PoolSettings

from gymbox.controller.records import Claimed, Claims, Records
from gymbox.errors import ConfigError

log = logging.getLogger(__name__)

MAIN = "main"
APPEARS = 600.0
"""Seconds for which something may still appear that a killed controller had asked an engine for."""
_LOCK, _KEY, _ID, _DELETES, _SOCKETS, _ADDRESS = "lock", "key", "id", "deletes", "s", "address.json"
_SWEPT, _PROVIDER = "swept", "provider"
_CLAIMS, _GROUPS, _POOLS = "claims", "groups", "pools"


class Address(NamedTuple):
    """Where a running controller answers."""

    controller: str
    proxy: str
    pid: int


class StateDirectory:
    """The folder of one controller, locked for as long as this object lives.

    Raises:
        ConfigError: another controller holds it, or it cannot be written.
    """

    def __init__(self, path: Path, *, ephemeral: bool = False) -> None:
        self.path = path
        self.ephemeral = ephemeral
        try:
            _make(path.parent)
            _make(path)
            self._lock = _locked(path / _LOCK)
            _make(path / _DELETES)
            _make(path / _SOCKETS)
            self.id = _read_or_write(path / _ID, secrets.token_hex(4).encode()).decode()
            self.key = _read_or_write(path / _KEY, secrets.token_bytes(32))
            for folder in (_CLAIMS, _GROUPS, _POOLS):
                (path / folder).mkdir(mode=0o700, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"cannot keep the controller's state in {path}: {error.strerror}") from error

    @classmethod
    def main(cls, parent: Path) -> Self:
        """That of the controller that stays."""
        return cls(parent / MAIN)

    @classmethod
    def of_run(cls, parent: Path) -> Self:
        """A new one, for a controller that ends with its run."""
        name = f"run-{secrets.token_hex(4)}"
        made = cls(parent / f".{name}", ephemeral=True)
        made.path = made.path.rename(parent / name)  # seen by others only now that it is locked
        return made

    @classmethod
    def abandoned(cls, parent: Path) -> Iterator[Self]:
        """Those of runs that ended without removing theirs, for a while also those that were swept; locked now, so
        that only one controller sweeps each."""
        for path in sorted(parent.glob("run-*")):
            try:
                yield cls(path, ephemeral=True)
            except ConfigError:
                continue  # its run lives, or another sweeps it

    @cached_property
    def claims(self) -> Claims:
        """Which containers of pools, and of those that sandboxes share, are whose."""
        return Claims(Records(self.path / _CLAIMS, Claimed), succeeded=not self.ephemeral)

    @cached_property
    def groups(self) -> Records[CreateGroup]:
        """The groups that are complete."""
        return Records(self.path / _GROUPS, CreateGroup)

    @cached_property
    def pools(self) -> Records[PoolSettings]:
        """What pools were set to while a controller ran."""
        return Records(self.path / _POOLS, PoolSettings)

    def directory_of(self, container: str) -> Path:
        """Where the sockets of a container go; short, as a socket's path may have 107 bytes."""
        return self.path / _SOCKETS / hashlib.sha256(container.encode()).hexdigest()[:12]

    def intend_delete(self, container: str) -> None:
        """Remember, also beyond a crash, that this container has to go. Never raises: on a full disk, too, what can be
        removed now shall be."""
        try:
            (self.path / _DELETES / container).touch()
        except OSError as error:
            log.warning("cannot note that container %s has to go: %s", container, error)

    def deleted(self, container: str) -> None:
        """It has gone. Never raises: to remove it once more does no harm."""
        try:
            (self.path / _DELETES / container).unlink(missing_ok=True)
        except OSError as error:
            log.warning("cannot note that container %s has gone: %s", container, error)

    def intended_deletes(self) -> set[str]:
        """Containers that have to go and may still be there."""
        return set(os.listdir(self.path / _DELETES))

    @property
    def provider(self) -> str | None:
        """The name of the provider whose sandboxes are recorded here; None where none has been noted."""
        try:
            return (self.path / _PROVIDER).read_text()
        except FileNotFoundError:
            return None

    def of_provider(self, name: str) -> None:
        """Note whose the sandboxes will be, for no other to sweep them.

        Raises:
            ConfigError: it cannot be written.
        """
        try:
            _read_or_write(self.path / _PROVIDER, name.encode())
        except OSError as error:
            raise ConfigError(f"cannot keep the controller's state in {self.path}: {error.strerror}") from error

    def clear_sockets(self) -> None:
        """Remove the sandboxes' folders, which nobody serves any more, and what is beside them. Never raises."""
        for entry in (self.path / _SOCKETS).iterdir():
            _remove(entry)

    def clear_sockets_but(self, kept: Iterable[str]) -> None:
        """Remove the folders that a crash has left of containers other than these. Never raises."""
        folders = {self.directory_of(container) for container in kept}
        for entry in (self.path / _SOCKETS).iterdir():
            if entry.is_dir() and entry not in folders:
                _remove(entry)

    def swept(self) -> bool:
        """Note that what its killed run had left was removed; whether that was done before. From the first time on it
        is kept for a while, for other sweeps to look again. Never raises."""
        try:
            (self.path / _SWEPT).touch(exist_ok=False)
        except FileExistsError:
            return True
        except OSError as error:
            log.warning("cannot note that %s was swept: %s", self.path, error)
        return False

    def announce(self, controller: str, proxy: str) -> None:
        """Let clients on this machine find the running controller."""
        content = json.dumps(Address(controller, proxy, os.getpid())._asdict())
        temporary = self.path / f"{_ADDRESS}.new"
        temporary.write_text(content)
        temporary.replace(self.path / _ADDRESS)

    def close(self) -> None:
        """Give the lock back. The state of a run goes with it, unless something is still to be deleted, or may yet
        appear. Safe to call twice."""
        if self._lock < 0:
            return
        (self.path / _ADDRESS).unlink(missing_ok=True)
        if self.ephemeral and not self.intended_deletes() and not self._may_appear():
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)
        self._lock = -1

    def _may_appear(self) -> bool:
        try:
            return 0 <= time.time() - (self.path / _SWEPT).stat().st_mtime < APPEARS
        except FileNotFoundError:
            return False  # it was not killed


def find_controller(parent: Path) -> Address | None:
    """Where a controller on this machine answers: the one that stays, else that of a run; None if none is running."""
    for path in [parent / MAIN, *sorted(parent.glob("run-*"))]:
        try:
            found = Address(**json.loads((path / _ADDRESS).read_text()))
            os.close(_locked(path / _LOCK))
        except ConfigError:
            return found  # locked: it lives
        except (OSError, ValueError, TypeError):
            continue
    return None


def _remove(entry: Path) -> None:
    try:
        shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
    except OSError as error:
        log.warning("cannot remove %s: %s", entry, error)


def _make(path: Path) -> None:
    try:
        path.mkdir(parents=True)
    except FileExistsError:
        return  # its owner has decided who gets in
    # others may pass through to a socket's folder (the proxy has a user of its own) but not look around
    path.chmod(0o711 if os.geteuid() == 0 else 0o700)


def _locked(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise ConfigError(f"another controller is running with {path.parent}") from None
    return descriptor


def _read_or_write(path: Path, content: bytes) -> bytes:
    if not path.exists():
        temporary = path.with_suffix(".new")
        temporary.write_bytes(b"")
        temporary.chmod(0o600)
        temporary.write_bytes(content)
        temporary.replace(path)
    return path.read_bytes()
