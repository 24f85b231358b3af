"""Results: the folder of one run, written so that what was acknowledged survives whatever happens next.

rollouts.jsonl   one line a rollout, on disk before the rollout counts as done
failures.jsonl   lines that were taken out of it, because their rollouts are done again
manifest.json    what went in (digests, settings without secrets, versions), when, how it ended
metrics.json     the scores, written at the end
run.log          what the run logged, a JSON object a line
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import json
import logging
import os
import platform
import secrets
from contextlib import suppress
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from gymbox.budget import Used
from gymbox.code_version import code_version
from gymbox.errors import ConfigError
from gymbox.inputs import changes, levelled
from gymbox.run_manifest import MANIFEST, RunManifest, Status, manifest_in
from gymbox.scores import Score, Scores

ROLLOUTS, FAILURES, METRICS = "rollouts.jsonl", "failures.jsonl", "metrics.json"
LOG = "run.log"
"""What the run logged, in its folder."""
log = logging.getLogger(__name__)


class WriteFailed(Exception):
    """A result could not be put on disk; those acknowledged before are safe, and the run can be resumed."""


class RunFolder:
    """The folder of one run, held by one process at a time. `open` it, `add` records, `close` it."""

    def __init__(self, path: Path, manifest: RunManifest) -> None:
        self.path = path
        self.manifest = manifest
        self.done: set[str] = set()
        """Rollout ids that have their line."""
        self._scores = Scores(manifest.inputs)
        self._file = os.open(path / ROLLOUTS, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._place = (path / ROLLOUTS).absolute()
        self._size = 0
        self._waiting: list[tuple[dict[str, Any], bytes]] = []
        self._next: asyncio.Task[None] | None = None
        """Will put on disk what is waiting."""
        self._turn = asyncio.Lock()
        self._failure: OSError | None = None

    @staticmethod
    def check(path: Path, *, inputs: dict[str, Any], resume: bool) -> RunManifest | None:
        """The manifest of the run to go on with; None for a new one. Writes nothing.

        Raises:
            ConfigError: it holds a run and `resume` is off; the inputs have changed (each change is named).
        """
        before = manifest_in(path)
        if before is None or not resume:
            _refuse_to_overwrite(path)
            return None
        if before.shards:
            raise ConfigError(f"{path} was merged from shards; go on with those, and merge them again")
        _refuse_changes(path, before.inputs, json.loads(json.dumps(inputs)))
        return before

    @classmethod
    def open(
        cls,
        path: Path,
        *,
        inputs: dict[str, Any],
        settings: dict[str, Any],
        planned: int,
        resume: bool,
        retry_failed: bool = False,
        run: str | None = None,
        provider: str | None = None,
        images: dict[str, str | None] | None = None,
        bases: dict[str, str | None] | None = None,
        versions: dict[str, str] | None = None,
    ) -> RunFolder:
        """A new run in `path`, or with `resume` the one that is there (a new one if there is none).

        Args:
            run: id of a new run; default: a random one.
            retry_failed: move the lines with an error to `failures.jsonl`, so that their rollouts are still to do.

        Raises:
            ConfigError: see `check`; or another process writes to it, a line other than a torn last one is damaged,
                or it cannot be written.
        """
        try:
            before = cls.check(path, inputs=inputs, resume=resume)
            path.mkdir(parents=True, exist_ok=True)
            now, versions = datetime.now(UTC), {**_versions(), **(versions or {})}
            manifest = RunManifest(
                run=before.run if before else run or secrets.token_hex(4),
                starts=before.starts + 1 if before else 1,
                started_at=before.started_at if before else now,
                inputs=inputs,
                settings=settings,
                provider=provider,
                images=images or {},
                bases=bases or {},
                versions=versions,
                planned=planned,
                used=before.used if before else Used(),
            )
            folder = cls(path, manifest)
        except OSError as error:
            raise ConfigError(f"cannot write the run to {path}: {error.strerror}; set runner.output=DIR") from error
        if before and (before.versions, before.images) != (versions, manifest.images):
            old, new = before.versions | before.images, versions | manifest.images
            log.warning("going on with the run in %s, though some versions are new:\n%s", path, changes(old, new))
        try:
            folder._take(retry_failed)
        except BaseException:
            folder._release()
            raise
        return folder

    def _take(self, retry_failed: bool) -> None:
        """Lock the folder, read what is done, and write down that the run is on."""
        taken = ConfigError(f"another process is writing to {self.path}; set another runner.output=DIR")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise taken from None
        if not os.path.samestat(os.fstat(self._file), (self.path / ROLLOUTS).stat()):
            raise taken  # who held the lock until now has replaced the file
        self._read()
        if retry_failed and self.total.errors:
            try:
                self._set_failed_aside()
            except OSError as error:
                raise ConfigError(f"cannot rewrite {self.path / ROLLOUTS}: {error.strerror}") from error
        self._save()

    def _set_failed_aside(self) -> None:
        """Replace the file, whole or not at all, by one without its failed lines; before that, they are kept elsewhere
        (twice, if this process dies between the two)."""
        path, new = self.path / ROLLOUTS, self.path / f"{ROLLOUTS}.new"
        with path.open("rb") as old, new.open("wb") as scored, (self.path / FAILURES).open("ab") as failed:
            for line in old:
                (failed if json.loads(line)["error"] else scored).write(line)
            for file in (failed, scored):
                file.flush()
                os.fsync(file.fileno())
        before, self._file = self._file, os.open(new, os.O_RDWR | os.O_CLOEXEC)
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX)
            new.replace(path)
            sync(self.path)
        finally:
            os.close(before)
        self.done, self._scores, self._size = set(), Scores(self.manifest.inputs), 0
        self._read()

    def _read(self) -> None:
        """Count every whole line; a torn last one is cut off, since its rollout was never acknowledged."""
        path = self.path / ROLLOUTS
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    log.warning("%s ended in the middle of a line: cut off its last %d bytes", path, len(line))
                    os.ftruncate(self._file, self._size)
                    return
                try:
                    record = json.loads(line)
                    if record["rollout_id"] in self.done:
                        raise ValueError(f"rollout {record['rollout_id']} stands there twice")
                    self._count(record)
                except (ValueError, KeyError, TypeError, AttributeError) as error:
                    raise ConfigError(
                        f"{path}:{number} is damaged ({type(error).__name__}: {error}); mend or remove it, then resume"
                    ) from error
                self._size += len(line)

    @property
    def size(self) -> int:
        """Bytes of `rollouts.jsonl` that are on disk to stay."""
        return self._size

    @property
    def total(self) -> Score:
        return self._scores.total

    @property
    def scores(self) -> dict[str, Score]:
        """By environment."""
        return self._scores.environments

    @property
    def agents(self) -> dict[str, dict[str, Score]]:
        """By environment and agent, where the run has several."""
        return self._scores.agents

    async def add(self, record: dict[str, Any]) -> None:
        """Append the line of one rollout; when this returns it is on disk.

        Raises:
            WriteFailed: it could not be written, or a line before it; no part of it is in the file.
        """
        # ASCII: also a reader that takes U+2028 for a line end reads it right
        self._waiting.append((record, json.dumps(record, allow_nan=False).encode() + b"\n"))
        if self._next is None:
            self._next = asyncio.create_task(self._flush())
            # whoever waits is told; where all were cancelled, the next add is
            self._next.add_done_callback(lambda flush: flush.cancelled() or flush.exception())
        try:
            # shielded: being cancelled must not part a line from its count
            await asyncio.shield(self._next)
        except OSError as error:
            raise WriteFailed(
                f"cannot write to {self.path / ROLLOUTS}: {error.strerror}. {self._safe} results are safe; "
                f"mend that, then go on with runner.output={self.path} runner.resume=true"
            ) from error

    async def _flush(self) -> None:
        """Put all waiting lines on disk and count them; whatever comes in before its turn shares the fsync."""
        async with self._turn:
            batch, self._waiting, self._next = self._waiting, [], None
            await asyncio.to_thread(self._append, b"".join(line for _, line in batch))
            for record, _ in batch:
                self._count(record)

    def _count(self, record: dict[str, Any]) -> None:
        self._scores.add(record)
        self.done.add(record["rollout_id"])

    def _append(self, lines: bytes) -> None:
        """In a thread, one at a time: all of it or nothing."""
        if self._failure is not None:
            raise self._failure
        try:
            self._check_there()
            rest = memoryview(lines)
            while rest:
                rest = rest[os.pwrite(self._file, rest, self._size + len(lines) - len(rest)) :]
            os.fsync(self._file)
        except OSError as error:
            self._failure = error
            os.ftruncate(self._file, self._size)
            raise
        self._size += len(lines)

    def _check_there(self) -> None:
        """
        Raises:
            OSError: the file is no longer where everybody looks for it, so a line in it would be lost.
        """
        try:
            there = os.path.samestat(os.fstat(self._file), self._place.stat())
        except (FileNotFoundError, NotADirectoryError):
            there = False
        if not there:
            raise OSError(errno.ESTALE, "it was moved or removed while the run wrote to it")

    @property
    def _safe(self) -> int:
        """Lines that are on disk; of a file that was removed, none."""
        return len(self.done) if os.fstat(self._file).st_nlink else 0

    async def save(self) -> None:
        """Write the manifest as it is now; what cannot be written is logged, and will be at the end."""
        async with self._turn:
            self.manifest.done, self.manifest.scored = self.total.rollouts, self.total.scored
            content = self.manifest.model_dump(mode="json")
            try:
                await asyncio.to_thread(written, self.path / MANIFEST, content)
            except OSError as error:
                log.warning("could not write the manifest of %s: %s", self.path, error.strerror)

    async def close(self, status: Status) -> None:
        """Write manifest and metrics, when every line is on disk, and let go of the folder."""
        if self._next is not None:
            await asyncio.wait({self._next})
        async with self._turn:
            await asyncio.to_thread(self._finish, status)

    def _finish(self, status: Status) -> None:
        self.manifest.status, self.manifest.ended_at = status, datetime.now(UTC)
        try:
            self._save()
            written(self.path / METRICS, self._scores.metrics())
        except OSError as error:
            log.warning("could not write manifest and metrics of %s: %s", self.path, error.strerror)
        self._release()

    def _save(self) -> None:
        self.manifest.done, self.manifest.scored = self.total.rollouts, self.total.scored
        written(self.path / MANIFEST, self.manifest.model_dump(mode="json"))

    def _release(self) -> None:
        os.close(self._file)


def _refuse_to_overwrite(path: Path) -> None:
    if (path / MANIFEST).exists():
        raise ConfigError(
            f"{path} holds a run already: runner.resume=true goes on with it, runner.output=DIR writes elsewhere"
        )
    if path.exists() and any(entry.name != ROLLOUTS or entry.stat().st_size for entry in path.iterdir()):
        raise ConfigError(f"{path} is not empty and holds no run; set runner.output=DIR to a new folder")


def _refuse_changes(path: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    old, new = levelled(before, now)
    if old != new:
        raise ConfigError(
            f"cannot go on with the run in {path}, because its inputs have changed:\n{changes(old, new)}\n"
            "put them back, or start a new run with another runner.output=DIR"
        )


def written(path: Path, content: dict[str, Any]) -> None:
    """Replace `path` by `content` as JSON, whole or not at all."""
    new = path.with_suffix(".new")
    try:
        with new.open("w") as file:
            file.write(json.dumps(content, indent=2) + "\n")
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        sync(path.parent)
    except OSError:
        with suppress(OSError):
            new.unlink()
        raise


def sync(folder: Path) -> None:
    """Put a folder on disk: only then is a new name in it sure to survive a crash."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _versions() -> dict[str, str]:
    # gymbox by its own word: it may be on the path without having been installed
    packages = {package: version(package) for package in ("pydantic", "aiohttp")}
    return {"python": platform.python_version(), "gymbox": code_version(), **packages}
