"""Runtime: Python and the in-sandbox server in a volume, which is mounted read-only into any Linux image.

A volume, since engines know how to mount an image only from version 28 on, and know from the first how to fill an
empty volume from one: when a container that mounts it is created, before it is started. All sandboxes share the
volume's files on disk and in memory, and no image is changed by it.
"""

from __future__ import annotations

import contextlib
import io
import tarfile
import threading
from collections.abc import Iterator, Mapping
from typing import Any

from docker.errors import APIError, NotFound

from gymbox.errors import Unavailable
from gymbox.providers.builds import LABEL, Build, recipe, sandbox_side
from gymbox.providers.probe import Probe

RUNTIME = "/opt/gymbox/rt"
"""Where it is mounted. Its loader names files there in place of such in /etc, so the name has the length that fits."""
INTERPRETER = f"{RUNTIME}/bin/python3"
NAME = "gymbox-runtime"
FILLED = "filled"
"""A file in the volume that says that nothing is missing from it."""


def portable_build(base: str, base_id: str, arguments: Mapping[str, str]) -> Build:
    """The image that volumes are filled from: Debian or Ubuntu, and in RUNTIME what needs nothing else of it."""
    dockerfile = f"{recipe('runtime.Dockerfile').read_text()}\n# base: {base_id}\n"
    files = {**sandbox_side(), "self_contained.py": recipe("self_contained.py").read_bytes()}
    return Build(NAME, dockerfile, files, {"BASE_IMAGE": base, **arguments})


def runtime_volume(image: str) -> str:
    """The name of the volume that is filled from an image of the runtime."""
    return image.replace(":", "-")


class Runtimes:
    """The runtime's volumes on one engine; `ensure` blocks."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self._filled: set[str] = set()
        self._turn = threading.Lock()

    def ensure(self, image: str) -> None:
        """See to it that the volume of a runtime's image is there, and whole.

        Raises:
            Unavailable: it is not, and cannot be filled now.
            NotFound: there is no such image.
        """
        with self._turn:
            if image in self._filled:
                return
            # twice: a volume that was left half filled goes first
            if not (self._fill(image) or self._fill(image)):
                raise Unavailable(f"the volume {runtime_volume(image)} cannot be filled from {image}")
            self._filled.add(image)

    def doubt(self, image: str) -> None:
        """A sandbox did not start: look at the volume again before the next one, since someone may have removed it."""
        self._filled.discard(image)

    def _fill(self, image: str) -> bool:
        """Whether the volume is whole; if it is not, it is removed."""
        volume = runtime_volume(image)
        is_new = not self._has(volume)
        with self._mounted(image, volume) as probe:  # which fills it, if it is new
            if is_new:
                probe.write(RUNTIME, _marker())
            if probe.has(f"{RUNTIME}/{FILLED}"):
                return True
        with contextlib.suppress(APIError):  # a container of another process has it
            self._engine.remove_volume(volume)
        return False

    def _has(self, volume: str) -> bool:
        try:
            self._engine.inspect_volume(volume)
        except NotFound:
            return False
        return True

    @contextlib.contextmanager
    def _mounted(self, image: str, volume: str) -> Iterator[Probe]:
        options = {"Labels": {LABEL: NAME}}
        mount = {"Type": "volume", "Source": volume, "Target": RUNTIME, "VolumeOptions": options}
        with Probe.of(self._engine, image, [mount]) as probe:
            yield probe


def _marker() -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.addfile(tarfile.TarInfo(FILLED), io.BytesIO())
    return packed.getvalue()
