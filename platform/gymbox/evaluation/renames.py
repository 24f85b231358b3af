"""Renames: what a manifest tells of a run's environments, by the names that a reader calls them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymbox.runner_settings import BY_ENVIRONMENT


def with_names(inputs: dict[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """The inputs of a run (`RunManifest.inputs`), where an environment has the name that `names` has for its own.

    Raises:
        ValueError: two environments would have one name.
    """
    if not names:
        return inputs
    environments = inputs.get("environments") or {}
    runner = dict(inputs.get("runner") or {})
    named = {names.get(name, name): told for name, told in environments.items()}
    if len(named) < len(environments):
        raise ValueError(f"of {', '.join(environments)}, two would have one name; give each its own")
    for field in BY_ENVIRONMENT:
        if isinstance(runner.get(field), dict):
            runner[field] = {names.get(name, name): value for name, value in runner[field].items()}
    return {**inputs, "environments": named, "runner": runner}
