"""Own metrics: what an environment's `metrics.py` makes of a run's rollouts. It is the environment's code, and runs in
this process, outside any sandbox: load it only where you trust it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.evaluation.rollouts import RunReader

FILE = "metrics.py"
FUNCTION = "compute_metrics"


def own_metrics(environment: Environment, reader: RunReader) -> dict[str, Any]:
    """What `compute_metrics(rollouts)` returns: `rollouts` iterates over the environment's lines of the run, whole.

    Raises:
        ConfigError: the environment has no such function, it raised, or it returned no JSON object.
    """
    path = environment.folder / FILE

    def lines() -> Iterator[dict[str, Any]]:
        return (rollout.line for rollout in reader if rollout.environment == environment.name)

    compute = _function(path)
    try:
        found = compute(lines())
        json.dumps(found, allow_nan=False)
    except ConfigError:
        raise
    except Exception as error:  # it is other people's code
        raise ConfigError(f"{path}: {FUNCTION} failed: {type(error).__name__}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: {FUNCTION} returned {type(found).__name__}, not a dict")
    return found


def _function(path: Path) -> Callable[[Iterator[dict[str, Any]]], Any]:
    if not path.is_file():
        raise ConfigError(f"{path.parent} has no {FILE}, so there are no metrics of its own")
    spec = importlib.util.spec_from_file_location(f"gymbox_metrics_{path.parent.name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    function = getattr(module, FUNCTION, None)
    if not callable(function):
        raise ConfigError(f"{path} has no function {FUNCTION}(rollouts)")
    return function  # type: ignore[no-any-return]
