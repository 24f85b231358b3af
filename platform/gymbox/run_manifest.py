"""Run manifest: what went into a run, when, and how it ended."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gymbox.budget import Reached, Used
from gymbox.errors import ConfigError

MANIFEST = "manifest.json"
"""Its file in the run's folder."""
Status = Literal["running", "finished", "interrupted", "stopped", "failed"]
"""How a run ended; `stopped`: its budget was used up."""


class RunManifest(BaseModel):
    """`manifest.json`."""

    model_config = ConfigDict(extra="forbid")

    run: str
    """Random, or given by whoever had a controller start it; the rollout ids begin with it."""
    status: Status = "running"
    starts: int = 1
    """1, and one more for each resume."""
    inputs: dict[str, Any]
    """What the results depend on: digests of environments and datasets, settings of agent, model and plan. A resume
    with other inputs is refused; a field that another version of gymbox has more is none, while it has its default."""
    settings: dict[str, Any]
    """All settings of the last start, secrets replaced by stars."""
    provider: str | None = None
    """What held the sandboxes of the last start, and how isolated they were."""
    images: dict[str, str | None] = Field(default_factory=dict)
    """Content-addressed image of each environment, where the provider has images."""
    bases: dict[str, str | None] = Field(default_factory=dict)
    """What each of these images is based on: `name@sha256:…`, or the engine's id of an image of no registry."""
    versions: dict[str, str]
    """Of the last start: Python, packages, and of what held the sandboxes (`docker` is the engine's)."""
    planned: int
    done: int = 0
    scored: int = 0
    used: Used = Field(default_factory=Used)
    """What the calls of all models have used, in all starts; while the run goes on, a few seconds old."""
    stopped_by: Reached | None = None
    """The limit of the budget that ended the last start."""
    shards: list[str] = Field(default_factory=list)
    """The runs that this one was put together from."""
    started_at: datetime
    ended_at: datetime | None = None


def manifest_in(path: Path) -> RunManifest | None:
    """The manifest of the run in a folder; None where there is none.

    Raises:
        ConfigError: it is damaged, or cannot be read.
    """
    try:
        return RunManifest.model_validate_json((path / MANIFEST).read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise ConfigError(f"cannot read {path / MANIFEST}: {error.strerror}") from error
    except ValidationError as error:
        raise ConfigError(f"{path / MANIFEST} is damaged or of another version of gymbox: {error}") from error
