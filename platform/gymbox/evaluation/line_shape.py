"""Line shape: what the parts of a line of rollouts are, so that whatever reads it further need not ask."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SHARED = ("response", "responses_create_params", "agent_ref")
"""Objects in every line, NeMo Gym's too."""
OWN = ("error", "calls", "usage", "timings", "metrics", "reward_components", "kept_artifacts", "skills_ref")
"""Objects in a line of ours. In NeMo Gym's a verifier may call whatever it likes so."""
NUMBERS = ("_ng_task_index", "_ng_rollout_index")
LARGEST_NUMBER = 2**53
"""What JSON's readers hold exactly, whatever they are written in."""


def check_shape(line: Any) -> None:
    """
    Raises:
        ValueError: a part of it is not of its type; says which, and what it is.
    """
    if not isinstance(line, dict):
        raise ValueError(f"it is {_kind(line)}, not an object")
    ours = "rollout_id" in line
    for name in (*SHARED, *(OWN if ours else ())):
        _check_object(line, name)
    if (error := object_in(line, "error")) and not isinstance(error.get("kind"), str):
        raise ValueError("its error has no kind")
    _check_objects(object_in(line, "response"), "output", "its response's output")
    if ours:
        _check_objects(line, "failed_attempts", "its failed_attempts")
        for attempt in line.get("failed_attempts") or ():
            _check_object(attempt, "error", "of an attempt before it the error")
    for name in NUMBERS:
        number = line.get(name)
        if number is not None and (type(number) is not int or not 0 <= number < LARGEST_NUMBER):
            raise ValueError(f"its {name} is {number!r:.40}, not a whole number from 0 on")


def object_in(line: Mapping[str, Any], name: str) -> dict[str, Any]:
    """The object of this name; empty where there is none, or something else that has its name."""
    value = line.get(name)
    return value if isinstance(value, dict) else {}


def _check_object(line: Mapping[str, Any], name: str, called: str = "") -> None:
    if not isinstance(value := line.get(name), dict | None):
        raise ValueError(f"{called or f'its {name}'} is {_kind(value)}, not an object")


def _check_objects(line: Mapping[str, Any], name: str, called: str) -> None:
    value = line.get(name)
    if not isinstance(value, list | None):
        raise ValueError(f"{called} is {_kind(value)}, not a list")
    if wrong := [item for item in value or () if not isinstance(item, dict)]:
        raise ValueError(f"{called} has {_kind(wrong[0])} in it, not only objects")


def _kind(value: Any) -> str:
    names = {
        bool: "true or false",
        str: "a text",
        int: "a number",
        float: "a number",
        list: "a list",
        dict: "an object",
    }
    return "null" if value is None else names[type(value)]
