"""View: what is told of a run, while it goes on and ever after."""

from __future__ import annotations

import json
import time
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import BaseModel, Field, ValidationError

from gymbox.errors import Stage
from gymbox.results import METRICS, ROLLOUTS
from gymbox.run_manifest import RunManifest
from gymbox.scores import Score

State = Literal["starting", "running", "paused", "stopping", "finished", "stopped", "interrupted", "failed"]


class EnvironmentView(BaseModel):
    """One environment of a run."""

    done: int
    scored: int
    reward: float | None
    """Mean over the scored rollouts."""


class RunView(BaseModel):
    """A run, as `gymbox run status` and `/v1/runs` tell of it."""

    id: str
    status: State
    """`starting`: images are made and the model is opened; `stopping`: what is under way may end; `interrupted`: it
    can be gone on with."""
    folder: str
    live: bool
    """Whether a process does it now."""
    environments: dict[str, EnvironmentView] = Field(default_factory=dict)
    planned: int = 0
    done: int = 0
    scored: int = 0
    """Of those done; the others have an error."""
    reward: float | None = None
    """Mean over the scored rollouts so far; None: there is none."""
    errors: dict[str, int] = Field(default_factory=dict)
    """How often each kind occurred."""
    examples: dict[str, str] = Field(default_factory=dict)
    """The first task of each kind of error, with its detail."""
    input_tokens: int = 0
    output_tokens: int = 0
    running: int = 0
    """Rollouts under way."""
    stages: dict[Stage, int] = Field(default_factory=dict)
    """In which stage they are; one in `provision` waits for its sandbox."""
    rate: float | None = None
    """Rollouts a second, lately; None: not known, or not live."""
    eta: float | None = None
    """Seconds to the end at that rate."""
    priority: str | None = None
    share: float | None = None
    starts: int = 1
    """1, and one more for each time it was gone on with."""
    started_at: datetime | None = None
    ended_at: datetime | None = None
    told_at: float = Field(default_factory=time.time)
    """Unix seconds."""
    detail: str = ""
    """Why it stopped of its own accord, or did not start."""

    @property
    def over(self) -> bool:
        return self.status in ("finished", "stopped", "interrupted", "failed")

    @classmethod
    def of(
        cls,
        manifest: RunManifest,
        folder: Path,
        total: Score,
        scores: dict[str, Score],
        *,
        id: str | None = None,
        **more: Any,
    ) -> Self:
        """Of a run's manifest and scores; `more` has the fields that only its process knows."""
        runner = manifest.settings.get("runner") or {}
        fields: dict[str, Any] = {
            "status": "interrupted" if manifest.status == "running" else manifest.status,
            "live": False,
            "priority": runner.get("priority"),
            "share": runner.get("share"),
            "started_at": manifest.started_at,
            "ended_at": manifest.ended_at,
            **more,
        }
        fields["detail"] = fields.get("detail") or str(manifest.stopped_by or "")
        return cls(
            id=id or manifest.run,
            folder=str(folder),
            environments={
                name: EnvironmentView(done=score.rollouts, scored=score.scored, reward=score.mean_reward)
                for name, score in scores.items()
            },
            planned=manifest.planned,
            done=total.rollouts,
            scored=total.scored,
            reward=total.mean_reward,
            errors=dict(total.errors),
            examples=dict(total.examples),
            input_tokens=total.input_tokens,
            output_tokens=total.output_tokens,
            starts=manifest.starts,
            **fields,
        )


def view_of_folder(path: Path, manifest: RunManifest, *, id: str | None = None, detail: str = "") -> RunView:
    """Of a run that no process does now: from its metrics where it has ended, else from its rollouts, line by line."""
    total, scores = _kept(path, manifest) or scores_in(path / ROLLOUTS)
    return RunView.of(manifest, path, total, scores, id=id, detail=detail)


def scores_in(path: Path) -> tuple[Score, dict[str, Score]]:
    """The totals of a file of rollouts, and those of each environment. A torn last line does not count, nor a damaged
    one: whoever goes on with the run is told of that."""
    total, scores = Score(), dict[str, Score]()
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    record = json.loads(line) if line.endswith(b"\n") else None
                    if record is not None:
                        scores.setdefault(record["environment"], Score()).add(record)
                        total.add(record)
                except (ValueError, KeyError, TypeError, AttributeError):
                    continue
    except OSError:
        pass  # none has ended yet
    return total, scores


def _kept(path: Path, manifest: RunManifest) -> tuple[Score, dict[str, Score]] | None:
    """What an earlier end has written, where it is of the last end; else None."""
    if manifest.status == "running" or manifest.ended_at is None:
        return None
    try:
        content = json.loads((path / METRICS).read_bytes())
        total = _score(content["total"])
        scores = {name: _score(each) for name, each in content["environments"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ValidationError):
        return None
    return (total, scores) if (total.rollouts, total.scored) == (manifest.done, manifest.scored) else None


def _score(metrics: dict[str, Any]) -> Score:
    fields = {name: metrics[name] for name in Score.model_fields if name in metrics}
    fields["errors"] = Counter(fields.get("errors") or {})
    score = Score.model_validate(fields)
    score.reward_sum = (metrics["mean/reward"] or 0.0) * score.scored
    return score
