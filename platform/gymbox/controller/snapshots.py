"""Snapshots: what sandboxes were at one moment, kept on disk for others to begin with.

Each is a tar and a record beside it, in a folder of the controller's state; the record comes last, so what has none is
what a crash left. The image is no part of it: a sandbox's root cannot be written to, and its image is found again by
the environment's content.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

from gymbox_sandbox.lifecycle import SnapshotSandbox, SnapshotView
from gymbox_sandbox.saved import Instance, LoadRequest, Saved, SaveRequest
from pydantic import BaseModel, ValidationError

from gymbox.controller.container import DIGEST_LABEL, Container
from gymbox.controller.handover import below, in_thread, keep_copy, lend, made_for
from gymbox.environment import Environment, Limits
from gymbox.errors import AtCapacity, Conflict, Invalid, NotFound, Unavailable
from gymbox.http import HttpClient
from gymbox.providers import Started

log = logging.getLogger(__name__)

MEGABYTE = 1 << 20
TRANSFER = 1800.0
"""Seconds that a sandbox's files may take to be saved, or to be put in place."""
MOST_TOLD = 16 * MEGABYTE
"""Bytes that a server may answer, with what its instance knows."""
LOOK = 600.0
"""Seconds between looks for what is too old."""


class Record(SnapshotView):
    """A snapshot as it is remembered."""

    instance: Instance | None = None
    passing: bool = False
    """Made for one fork only, and gone with it."""
    made: str = ""
    """Which container it was taken of (`Container.made`): a sandbox's id may be another's later on."""


class Snapshots:
    """All snapshots of a controller.

    Args:
        folder: where they are; made when the first is.
        directory_of: where a container's sockets are.
        in_use: ids of the snapshots that living sandboxes began with, each with those sandboxes' ids.
    """

    def __init__(
        self,
        folder: Path,
        http: HttpClient,
        directory_of: Callable[[str], Path],
        in_use: Callable[[], dict[str, list[str]]],
        *,
        megabytes: int,
        age: float,
    ) -> None:
        self._folder = folder
        self._http = http
        self._directory_of = directory_of
        self._in_use = in_use
        self._most = megabytes * MEGABYTE
        self._age = age
        self._records: dict[str, Record] = {}
        self._saving: dict[str, int] = {}
        """Being taken, each with the bytes that are kept free for it."""
        self._less_saving = asyncio.Condition()
        self._loading: dict[str, int] = {}
        self._collector: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Find what is there, and remove what a crash left half done; from now on what is too old goes."""
        for path in sorted(self._folder.glob("*.json")) if self._folder.is_dir() else ():
            try:
                record = Record.model_validate_json(path.read_bytes())
            except (OSError, ValidationError) as error:
                log.warning("snapshot %s is left out, since its record cannot be read: %s", path.stem, error)
                continue
            self._records[record.id] = record
        for path in list(self._folder.glob("*.tar")) if self._folder.is_dir() else ():
            if path.with_suffix(".json").exists():
                continue
            path.unlink(missing_ok=True)
        for record in [record for record in self._records.values() if record.passing]:
            self._remove(record.id)
        self._collector = asyncio.create_task(self._collect_forever(), name="snapshots")

    async def close(self) -> None:
        """Look no more; they stay. Safe to call twice, and without `open`."""
        if self._collector is not None:
            self._collector.cancel()
            await asyncio.wait({self._collector})

    # --- what there is

    def all(self) -> list[SnapshotView]:
        """All of them, oldest first."""
        records = sorted(self._records.values(), key=lambda record: record.created_at)
        return [self.view(record.id) for record in records]

    def view(self, id: str) -> SnapshotView:
        """
        Raises:
            NotFound: there is none of that id.
        """
        shown = self._record(id).model_dump(include=set(SnapshotView.model_fields))
        return SnapshotView.model_validate({**shown, "used_by": self._in_use().get(id, [])})

    def check(self, id: str | None, environment: Environment) -> None:
        """
        Raises:
            NotFound: there is no such snapshot.
            Invalid: it is another environment's, or the environment's tasks share sandboxes.
            Conflict: it is of another version of the environment.
        """
        if id is None:
            return
        record = self._record(id)
        if record.environment != environment.name:
            raise Invalid(f"snapshot {record.id} is one of {record.environment}, not of {environment.name}")
        if environment.manifest.sessions > 1:
            raise Invalid(f"tasks of {environment.name} share sandboxes, which cannot begin with a snapshot")
        if record.digest != environment.digest:
            raise Conflict(f"{environment.name} has changed since snapshot {record.id}: take it anew")

    def delete(self, id: str) -> None:
        """
        Raises:
            NotFound: there is none of that id.
            Conflict: a sandbox is beginning with it right now.
        """
        self._record(id)
        if self._loading.get(id):
            raise Conflict(f"a sandbox is beginning with snapshot {id} right now; try again when it is ready")
        self._remove(id)

    def _record(self, id: str) -> Record:
        if id not in self._records:
            raise NotFound(f"there is no snapshot {id!r}")
        return self._records[id]

    # --- save and load

    async def save(
        self, sandbox: str, container: Container, provider: str, request: SnapshotSandbox, *, passing: bool = False
    ) -> SnapshotView:
        """Take a snapshot of a running sandbox that has its container for itself.

        Raises:
            Conflict: the id is another's, or the sandbox cannot be saved now.
            AtCapacity: there is no room for it.
            Unavailable: it cannot be written.
            Problem: the sandbox does not answer, or the author's `snapshot` failed.
        """
        id = request.id or f"{sandbox[:80]}.{secrets.token_hex(4)}"
        known = self._records.get(id)
        if known is not None and (known.sandbox, known.made) == (sandbox, container.made):
            return self.view(id)
        if known is not None or id in self._saving:
            raise Conflict(f"there is a snapshot {id} already, or it is being taken")
        self._saving[id] = 0
        try:
            await self._reserve(id, container.environment.manifest.limits)
            saved, size = await self._written(id, container, request)
            assert container.started is not None
            now = time.time()
            self._keep(
                Record(
                    id=id,
                    environment=container.environment.name,
                    # of when it was made; its folder may have changed since
                    digest=container.labels.get(DIGEST_LABEL, container.environment.digest),
                    provider=provider,
                    image=container.started.image,
                    sandbox=sandbox,
                    created_at=now,
                    used_at=now,
                    size=size,
                    files=saved.files,
                    left_out=saved.left_out,
                    state="not_reset" if not saved.was_reset else "saved" if saved.instance else "left_out",
                    labels=request.labels,
                    instance=saved.instance,
                    passing=passing,
                    made=container.made,
                )
            )
        except OSError as error:
            self._remove(id)
            raise Unavailable(f"snapshot {id} cannot be written: {error}") from error
        except BaseException:
            self._remove(id)
            raise
        finally:
            del self._saving[id]
            async with self._less_saving:
                self._less_saving.notify_all()
        self.collect(spare=id)
        if self._total() > self._most:
            self._remove(id)
            raise AtCapacity(
                f"snapshots may take {self._most // MEGABYTE} MB (snapshot_mb), and living sandboxes began with those "
                "that are there: delete some, or end those sandboxes"
            )
        log.info("snapshot %s of sandbox %s: %d files, %d bytes", id, sandbox, saved.files, size)
        return self.view(id)

    async def _reserve(self, id: str, limits: Limits) -> None:
        """Wait until those that are being taken leave room for this one too: all together they take no more than is
        kept.

        Raises:
            AtCapacity: they do not.
        """
        # a tar of all that may be written to: its headers take some 4 KB for a file, of which 64 are in a megabyte
        megabytes = limits.workspace_mb + 2 * limits.tmp_mb
        size = min(self._most, megabytes * MEGABYTE * 5 // 4 + 3 * (limits.inodes or 0) * 4096)
        try:
            async with asyncio.timeout(TRANSFER), self._less_saving:
                await self._less_saving.wait_for(lambda: sum(self._saving.values()) + size <= self._most)
                self._saving[id] = size
        except TimeoutError:
            raise AtCapacity("other snapshots that are being taken leave no room for this one") from None

    async def _written(self, id: str, container: Container, request: SnapshotSandbox) -> tuple[Saved, int]:
        """Have the sandbox write its files beside it, and keep a copy; what it says of them, and the copy's size."""
        directory, name, most = self._directory_of(container.id), f"save-{secrets.token_hex(8)}", self._saving[id]
        self._folder.mkdir(mode=0o700, exist_ok=True)
        with below(directory, name) as path, made_for(directory.stat(), path) as file:
            ask = SaveRequest(file=name, bytes=most, files_only=request.files_only)
            saved = Saved.model_validate(await self._ask(container, container.started, "save", ask))
            return saved, await in_thread(keep_copy, file, self._tar(id), most)

    async def load(self, container: Container, started: Started) -> None:
        """Put in place what a container begins with, before anyone uses it.

        Raises:
            NotFound: the snapshot is gone.
            Unavailable: it cannot be lent.
            Problem: it does not fit in there, or the author's `restore` failed.
        """
        assert container.snapshot is not None
        record = self._record(container.snapshot)
        self._loading[record.id] = self._loading.get(record.id, 0) + 1
        try:
            name = f"load-{secrets.token_hex(8)}"
            with below(self._directory_of(container.id), name) as path:
                try:
                    await in_thread(lend, self._tar(record.id), path)
                except OSError as error:
                    raise Unavailable(f"snapshot {record.id} cannot be lent: {error}") from error
                ask = LoadRequest(id=record.id, file=name, instance=record.instance)
                await self._ask(container, started, "load", ask)
        finally:
            self._loading[record.id] -= 1
            if not self._loading[record.id]:
                del self._loading[record.id]
        if record.id in self._records:
            self._keep(record.model_copy(update={"used_at": time.time()}))

    async def _ask(self, container: Container, started: Started | None, what: str, request: BaseModel) -> object:
        assert started is not None
        base = f"http://{started.address or 'sandbox'}"
        return await self._http.json(
            "POST",
            f"{base}/snapshot/{what}",
            data=request.model_dump_json().encode(),
            headers={"Content-Type": "application/json"},
            timeout=TRANSFER,
            retry=False,
            socket=started.socket,
            most=MOST_TOLD,
        )

    # --- keep and collect

    def collect(self, spare: str = "") -> None:
        """Remove what is too old, and while they are too large together the longest unused; never `spare`, nor one
        that a living sandbox began with."""
        in_use, now = self._in_use(), time.time()
        for record in sorted(self._records.values(), key=lambda record: record.used_at):
            if record.id == spare or record.id in in_use or record.id in self._loading:
                continue
            if record.used_at + self._age < now:
                log.info("snapshot %s was not used for %g s and is removed", record.id, self._age)
            elif self._total() > self._most:
                log.warning("snapshot %s, the longest unused, is removed: all may take snapshot_mb", record.id)
            else:
                continue
            self._remove(record.id)

    async def _collect_forever(self) -> None:
        while True:
            self.collect()
            await asyncio.sleep(min(LOOK, self._age))

    def _total(self) -> int:
        return sum(record.size for record in self._records.values())

    def _keep(self, record: Record) -> None:
        path = self._tar(record.id).with_name(f"{record.id}.json")
        temporary = path.with_name(f"{record.id}.new")
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "w") as file:
            file.write(record.model_dump_json())
        temporary.replace(path)
        self._records[record.id] = record

    def _remove(self, id: str) -> None:
        self._records.pop(id, None)
        for ending in ("json", "new", "tar"):  # the record first: a tar without one is swept
            try:
                (self._folder / f"{id}.{ending}").unlink(missing_ok=True)
            except OSError as error:
                log.warning("%s of snapshot %s cannot be removed: %s", ending, id, error)

    def _tar(self, id: str) -> Path:
        return self._folder / f"{id}.tar"
