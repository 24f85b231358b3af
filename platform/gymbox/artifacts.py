"""Artifacts: what agents left in their workspaces, kept in the run's folder so that it can be scored again.

    artifacts/<first two digits>/<SHA-256 of the tar>.tar.gz

Equal ones are kept once. They are as untrusted as whatever made them: nothing here unpacks one, a sandbox does.
"""

from __future__ import annotations

import asyncio
import gzip
import logging
import mmap
import os
import secrets
import shutil
import tarfile
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from hashlib import file_digest, sha256
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, NamedTuple

from gymbox_sandbox.sparse import NO_TAR
from pydantic import BaseModel, ConfigDict, Field

from gymbox.errors import ErrorKind, RolloutFailure
from gymbox.results import sync

ARTIFACTS = "artifacts"
"""Folder of the artifacts in a run's."""
Keep = Callable[[IO[bytes]], Awaitable[None]]
"""Is handed the artifacts of a rollout, a tar that is closed afterwards."""
SHORTEST_SECRET = 8
"""Characters of what counts as a secret when it is looked for in files."""
_CHUNK = 1 << 20
log = logging.getLogger(__name__)


class KeptArtifacts(BaseModel):
    """As a rollout's line has it, in `kept_artifacts`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Of the tar, not compressed."""
    bytes: int = Field(ge=0)
    """Of the tar."""
    files: int = Field(ge=0)
    """Its members."""


class ArtifactStore:
    """The artifacts of a run."""

    def __init__(self, folder: Path, *, secrets: Collection[str] = ()) -> None:
        """
        Args:
            folder: the run's.
            secrets: what must not get on disk.
        """
        self.folder = folder / ARTIFACTS
        self._secrets = [secret.encode() for secret in secrets if len(secret) >= SHORTEST_SECRET]

    def path(self, digest: str) -> Path:
        """Where the artifacts with this digest are."""
        return self.folder / digest[:2] / f"{digest}.tar.gz"

    async def keep(self, file: IO[bytes]) -> KeptArtifacts | None:
        """Put a tar on disk, which it is when this returns. None: it has a secret in it, and is left out.

        Raises:
            OSError: it cannot be written.
        """
        return await asyncio.to_thread(self._keep, file)

    def _keep(self, file: IO[bytes]) -> KeptArtifacts | None:
        if self._has_secret(file):
            log.warning("artifacts with a secret of this run in them are not kept")
            return None
        file.seek(0)
        digest = file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
        kept = KeptArtifacts(sha256=digest, bytes=file.tell(), files=contents_of(file).files)
        path = self.path(digest)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            new = path.with_name(f".{secrets.token_hex(8)}.new")
            try:
                with new.open("wb") as raw:
                    file.seek(0)
                    with gzip.GzipFile("", "wb", compresslevel=6, fileobj=raw, mtime=0) as packed:
                        shutil.copyfileobj(file, packed, _CHUNK)
                    raw.flush()
                    os.fsync(raw.fileno())
                new.replace(path)
            finally:
                new.unlink(missing_ok=True)
            sync(path.parent)
        return kept

    def _has_secret(self, file: IO[bytes]) -> bool:
        if not self._secrets:
            return False
        file.flush()
        if not os.fstat(file.fileno()).st_size:
            return False  # nothing that could be mapped, nor be a secret
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return any(content.find(secret) >= 0 for secret in self._secrets)

    @asynccontextmanager
    async def opened(self, kept: KeptArtifacts) -> AsyncIterator[IO[bytes]]:
        """The tar, checked to be the one that was kept.

        Raises:
            RolloutFailure: it is gone, or another one.
        """
        with TemporaryFile() as file:
            await asyncio.to_thread(self._read, kept, file)
            yield file

    def _read(self, kept: KeptArtifacts, file: IO[bytes]) -> None:
        path, digest, left = self.path(kept.sha256), sha256(), kept.bytes
        try:
            with gzip.open(path) as packed:
                while left >= 0 and (chunk := packed.read(_CHUNK)):
                    left -= len(chunk)
                    digest.update(chunk)
                    file.write(chunk)
        except (OSError, EOFError, zlib.error) as error:
            raise _gone(f"{path} cannot be read: {error}") from error
        if left or digest.hexdigest() != kept.sha256:
            raise _gone(f"{path} is not what was kept there")
        file.seek(0)

    def take(self, other: ArtifactStore, digest: str) -> None:
        """Have what another run has: the same file on disk, or a copy. What it has lost is not missed here."""
        source, path = other.path(digest), self.path(digest)
        if path.exists() or not source.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(source, path)
        except OSError:  # another disk, or one without links
            new = path.with_name(f".{secrets.token_hex(8)}.new")
            shutil.copyfile(source, new)
            new.replace(path)


class Contents(NamedTuple):
    """What a tar has in it."""

    files: int
    """Its members: files, folders and links."""
    bytes: int
    """Of its files together, once they are unpacked: holes, which a tar does not store, count."""


def contents_of(file: IO[bytes]) -> Contents:
    """What is in a tar; it is at its beginning afterwards.

    Raises:
        RolloutFailure: it is no whole tar.
    """
    file.seek(0)
    files = size = 0
    try:
        with tarfile.open(fileobj=file, mode="r|") as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]
                files += 1
                size += max(0, member.size)
    except NO_TAR as error:
        raise _gone(f"the artifacts are no whole tar: {error}") from error
    file.seek(0)
    return Contents(files, size)


def _gone(text: str) -> RolloutFailure:
    return RolloutFailure(ErrorKind.VERIFY_FAILED, text)
