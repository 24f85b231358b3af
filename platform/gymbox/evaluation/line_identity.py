"""Line identity: of which environment, agent and task a line of rollouts is."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from gymbox.evaluation.nemo_layout import OWN, TASK
from gymbox.rollout import RolloutResult

OURS = frozenset(
    {
        *RolloutResult.model_fields,
        *("agent_ref", "skills_ref", "usage", "calls", "attempts", "failed_attempts", "reverified", "kept_artifacts"),
        OWN,
    }
)
"""Keys of a line that are no part of its row, beside those that begin with `_ng_` or `ng_`."""


def environment_of(line: dict[str, Any]) -> str:
    """The environment's name; NeMo Gym knows it by its agent's."""
    told = line.get("environment") or (line.get(OWN) or {}).get("environment")
    return str(told or (line.get("agent_ref") or {}).get("name") or "unknown")


def agent_of(line: dict[str, Any]) -> str | None:
    """The name of the agent, or of its class."""
    name = (line.get("agent_ref") or {}).get("name")
    return name if isinstance(name, str) else None


def row_of(line: dict[str, Any]) -> dict[str, Any]:
    """The row that a line was made from; a field of the row that has the name of one of ours is lost."""
    return {name: value for name, value in line.items() if name not in OURS and not name.startswith(("_ng_", "ng_"))}


def task_key(line: dict[str, Any]) -> str:
    """The task's id, or else a digest of its row without what a run may set: sampling parameters, seeds.

    A line of NeMo Gym's without an id has the number of its row: the fields beside it are in part the verifier's.
    """
    for own in (line.get("task_id"), line.get("id")):
        if own is not None and own != "":
            return str(own)
    if "rollout_id" not in line and line.get(TASK) is not None:
        return f"row-{line[TASK]}"
    row = row_of(line)
    params = row.pop("responses_create_params", None) or {}
    kept = {name: params[name] for name in ("input", "instructions") if params.get(name) is not None}
    told = json.dumps([row, kept], sort_keys=True, separators=(",", ":"))
    return f"row-{hashlib.sha256(told.encode()).hexdigest()[:16]}"
