"""Weights & Biases run: a run of gymbox as one there, by its own client, which knows the key and address.

    id          the run's own, so that a second export, or one after a resume, updates it
    config      settings (secrets as stars), inputs with their digests, versions, images
    tags        `gymbox`, the environments, and what is given
    summary     the figures; `rollouts_table`: the first of the rollouts
    artifact    `rollouts-ID`: rollouts.jsonl, manifest.json, metrics.json; a new version where they have changed

Nothing goes into the history, which can only grow: an export says how things stand.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from gymbox.datasets.sources import needed
from gymbox.errors import ConfigError, Unavailable, first_line
from gymbox.exports.tracked_run import TABLE, TrackedRun

TABLE_KEY = "rollouts_table"
Mode = Literal["online", "offline"]
_LOG_IN = "check the names; log in with `wandb login`, or set WANDB_API_KEY; or write files only: --offline"
_REFUSED = re.compile(r"\berror 40[0-9]\b")
"""In what the client says of an answer that it got."""


@dataclass(frozen=True, slots=True)
class WandbPlace:
    """Where it goes, and what it is called there. None: as the client's own settings say."""

    project: str | None = None
    entity: str | None = None
    name: str | None = None
    """Of the run; None: the folder's."""
    group: str | None = None
    tags: Sequence[str] = ()
    mode: Mode | None = None
    """`offline` writes files, which `wandb sync` uploads later."""
    folder: Path | None = None
    """For the client's files; None: `wandb` in the working directory."""
    timeout: float = 30.0
    """Seconds that the server has to answer."""


def export_wandb(run: TrackedRun, place: WandbPlace | None = None, *, table: int = 1_000, files: bool = True) -> str:
    """Make or update the run there; its address, or the folder that `wandb sync` uploads.

    Args:
        table: the table has at most so many rollouts; 0: there is none.
        files: with the artifact. Rollouts hold what only the verifier may see.

    Raises:
        ConfigError: the client is not installed, has no key, or the server refuses it or a name.
        Unavailable: the server does not answer.
    """
    place = place or WandbPlace()
    wandb = needed("wandb", "wandb")
    if place.folder is not None:
        place.folder.mkdir(parents=True, exist_ok=True)
    with _translated(wandb):
        with wandb.init(
            id=run.id,
            resume="allow",
            project=place.project,
            entity=place.entity,
            name=place.name or run.name,
            group=place.group,
            job_type="rollouts",
            tags=sorted({"gymbox", *run.environments, *place.tags}),
            mode=place.mode,
            dir=place.folder,
            settings=wandb.Settings(
                silent=True, console="off", disable_git=True, save_code=False, init_timeout=place.timeout
            ),
        ) as there:
            there.config.update(run.settings, allow_val_change=True)
            there.summary.update(run.figures)
            if table:
                there.summary[TABLE_KEY] = wandb.Table(columns=list(TABLE), data=run.table(table))
            if files:
                artifact = wandb.Artifact(f"rollouts-{run.id}", type="rollouts", metadata={"run": run.id})
                for file in run.files:
                    artifact.add_file(str(file), skip_cache=True)
                there.log_artifact(artifact)
            return str(Path(there.dir).parent if there.offline else there.url)


@contextmanager
def _translated(wandb: Any) -> Iterator[None]:
    try:
        yield
    except (wandb.errors.AuthenticationError, wandb.errors.UsageError) as error:
        raise ConfigError(f"Weights & Biases refuses this: {first_line(error)}; {_LOG_IN}") from error
    except (wandb.errors.CommError, TimeoutError) as error:
        if _REFUSED.search(str(error)):
            raise ConfigError(f"Weights & Biases refuses this: {first_line(error)}; {_LOG_IN}") from error
        hint = "check the network and WANDB_BASE_URL, or write files only: --offline"
        raise Unavailable(f"Weights & Biases cannot be reached: {first_line(error)}; {hint}") from error
