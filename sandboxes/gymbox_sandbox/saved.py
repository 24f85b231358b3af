"""Saved: the requests and answers by which a controller saves a sandbox and makes another one of it.

Apart from `wire`, because few sandboxes need them: each model costs memory in every one.
"""

from __future__ import annotations

from typing import Any

from pydantic import Field

from gymbox_sandbox.wire import Strict


class Instance(Strict):
    """What it takes to make a session's instance again, after its `reset`."""

    task: dict[str, Any]
    """As `reset` got it."""
    state: Any
    """What its `snapshot` told."""


class SaveRequest(Strict):
    """`POST /snapshot/save`."""

    file: str = Field(pattern=r"^[a-z0-9-]{1,80}$")
    """Name of an empty file in the sandbox's directory, into which its files are written as a tar. Whoever asks makes
    it first, so only who is beside the sandbox can ask."""
    bytes: int = Field(ge=0)
    """The most that may be written."""
    files_only: bool = False
    """Without what the instance knows."""


class Saved(Strict):
    """What was saved."""

    files: int
    left_out: int
    """Sockets and devices."""
    was_reset: bool
    instance: Instance | None
    """None: there was no reset, or only the files were asked for."""


class LoadRequest(Strict):
    """`POST /snapshot/load`, into a sandbox that nobody has used yet."""

    id: str
    """Of the snapshot."""
    file: str = Field(pattern=r"^[a-z0-9-]{1,80}$")
    """Name of the tar in the sandbox's directory."""
    instance: Instance | None = None
