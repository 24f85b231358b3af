"""Records: small files in a controller's state, one for each id, each written whole or not at all."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from gymbox_sandbox.lifecycle import CreateSandbox
from gymbox_sandbox.wire import Strict
from pydantic import BaseModel, ValidationError

log = logging.getLogger(__name__)


class Records[Kind: BaseModel]:
    """Models in a folder. They outlive the controller's process. The containers of which they tell do not outlive
    the machine, so nothing is flushed to the disk.
    """

    def __init__(self, folder: Path, kind: type[Kind]) -> None:
        self._folder = folder
        self._kind = kind
        self.unreadable: set[str] = set()
        """Ids of those that `read` has left out."""

    def write(self, id: str, content: Kind) -> None:
        """
        Raises:
            OSError: it could not be written; what was there stays.
        """
        temporary, path = f"{self._folder}/.{id}", f"{self._folder}/{id}"  # no id begins like that
        with open(temporary, "wb") as file:  # a hot path: each sandbox that shares a container comes by
            file.write(content.model_dump_json().encode())
        os.replace(temporary, path)

    def drop(self, id: str) -> None:
        """Forget it; what is not there is fine. Never raises."""
        path = f"{self._folder}/{id}"
        try:
            os.unlink(path)
        except FileNotFoundError:
            pass
        except OSError as error:
            log.warning("cannot forget %s: %s", path, error)

    def read(self) -> dict[str, Kind]:
        """All of them; one that cannot be read is told of and left out."""
        found = {}
        for path in self._folder.glob("[!.]*"):
            try:
                found[path.name] = self._kind.model_validate_json(path.read_bytes())
            except (OSError, ValidationError) as error:
                log.warning("%s is left out: %s", path, error)
                self.unreadable.add(path.name)
        return found


class Claimed(Strict):
    """Which container a sandbox was given, where the container's labels, made before, cannot tell."""

    container: str
    request: CreateSandbox


class Claims:
    """What sandboxes have claimed. It is written before the claim is answered, and stays until the container is gone
    (or, where several share it, the sandbox), so no successor of this controller gives it to a second task.

    Args:
        succeeded: this controller may have a successor that goes on with its sandboxes; else nothing is written.
    """

    def __init__(self, records: Records[Claimed], *, succeeded: bool) -> None:
        self._records = records
        self._succeeded = succeeded
        self._container_of: dict[str, str] = {}

    def record(self, sandbox: str, container: str, request: CreateSandbox) -> None:
        """
        Raises:
            OSError: it could not be written, so the container must not be given to it.
        """
        if self._succeeded:
            self._records.write(sandbox, Claimed(container=container, request=request))
        self._container_of[sandbox] = container

    def drop(self, sandbox: str) -> None:
        """It has no container any more."""
        if self._container_of.pop(sandbox, None) is not None and self._succeeded:
            self._records.drop(sandbox)

    def container_gone(self, container: str) -> None:
        """Nobody has claimed it any more."""
        for sandbox in [each for each, claimed in self._container_of.items() if claimed == container]:
            self.drop(sandbox)

    def read(self) -> dict[str, list[CreateSandbox]]:
        """By container, what an earlier controller had noted."""
        found: dict[str, list[CreateSandbox]] = {}
        for sandbox, claim in self._records.read().items():
            self._container_of[sandbox] = claim.container
            found.setdefault(claim.container, []).append(claim.request)
        return found

    @property
    def unreadable(self) -> set[str]:
        """The sandboxes that have claimed a container of which `read` could not tell."""
        return self._records.unreadable

    def drop_unreadable(self) -> None:
        """Forget those, once no container is left that one of them may have claimed."""
        while self._records.unreadable:
            self._records.drop(self._records.unreadable.pop())
