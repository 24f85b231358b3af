"""Probe: a look into an image, by a container of it that is never started."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import tarfile
from collections.abc import Iterator, Sequence
from typing import Any, Self

from gymbox.providers.builds import LABEL

MOST = 1 << 20
"""Bytes of a file that is read."""
_FOLDER = 1 << 31
"""Bit of a mode by which the engine tells a folder (Go's os.ModeDir)."""


class Probe:
    """One such container."""

    def __init__(self, engine: Any, id: str) -> None:
        self._engine = engine
        self._id = id

    @classmethod
    @contextlib.contextmanager
    def of(cls, engine: Any, image: str, mounts: Sequence[dict[str, Any]] = ()) -> Iterator[Self]:
        """Create it, with some mounts; it is removed afterwards, with the volumes that were made for it alone."""
        config = {
            "Image": image,
            "Entrypoint": ["never started"],
            "Labels": {LABEL: "probe"},
            "HostConfig": {"NetworkMode": "none", "Mounts": list(mounts)},
        }
        id = engine.create_container_from_config(config)["Id"]
        try:
            yield cls(engine, id)
        finally:
            engine.remove_container(id, v=True, force=True)

    def has(self, path: str) -> bool:
        """Whether there is something of that name."""
        return self._stat(path) is not None

    def link_at(self, path: str) -> str | None:
        """Where a symbolic link leads in the end; None if there is none."""
        stat = self._stat(path)
        return str(stat["linkTarget"]) or None if stat else None

    def read(self, path: str) -> bytes | None:
        """A small file; None if there is none, or it is something else."""
        stat = self._stat(path)
        # a folder's size says nothing of what is in it
        if stat is None or stat["linkTarget"] or stat["mode"] & _FOLDER or stat["size"] > MOST:
            return None
        chunks, _ = self._engine.get_archive(self._id, path)
        with tarfile.open(fileobj=io.BytesIO(b"".join(chunks)), mode="r:") as tar:
            member = tar.next()
            file = tar.extractfile(member) if member and member.isfile() else None
            return file.read() if file else None

    def write(self, folder: str, tar: bytes) -> None:
        """Unpack a tar into a folder."""
        self._engine.put_archive(self._id, folder, tar)

    def _stat(self, path: str) -> dict[str, Any] | None:
        url = self._engine._url("/containers/{0}/archive", self._id)  # the SDK tells it only with the whole content
        answer = self._engine.head(url, params={"path": path})
        if answer.status_code == 404:
            return None
        self._engine._raise_for_status(answer)
        found: dict[str, Any] = json.loads(base64.b64decode(answer.headers["X-Docker-Container-Path-Stat"]))
        return found
