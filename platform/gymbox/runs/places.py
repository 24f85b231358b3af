"""Places: what a run needs to know of where it is, told by whoever starts it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

TOKEN_VARIABLE = "GYMBOX_TOKEN"
"""The environment variable that may hold the admin token."""


@dataclass(frozen=True)
class Places:
    """Folders of this user, and the admin token of their controllers."""

    environments: tuple[Path, ...]
    """Where environments are looked for by name, the first that has it first."""
    state: Path
    """Where controllers keep their state, the sandboxes' sockets with it; must be short."""
    cache: Path
    """For what can be made again."""
    token: str
