"""Own metrics: what an environment's `metrics.py` makes of a run's rollouts, and what its manifest wants to be seen
first. `metrics.py` is the environment's code, and runs in this process, outside any sandbox: load it only where you
trust it."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from gymbox.environment import Environment
from gymbox.errors import ConfigError
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.summary import Figures

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
        plain = json.loads(json.dumps(found, allow_nan=False))  # names that are numbers are texts in JSON
    except ConfigError:
        raise
    except Exception as error:  # it is other people's code
        raise ConfigError(f"{path}: {FUNCTION} failed: {type(error).__name__}: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: {FUNCTION} returned {type(found).__name__}, not a dict")
    return cast(dict[str, Any], plain)


def having_own_metrics(environments: Mapping[str, Environment]) -> dict[str, Environment]:
    """Those of these environments that have a `metrics.py`."""
    return {name: each for name, each in environments.items() if (each.folder / FILE).is_file()}


def key_metrics(environment: Environment, figures: Figures, own: Mapping[str, dict[str, Any]]) -> dict[str, Any]:
    """What its manifest wants to be seen first, of `figures` and of the own metrics by environment; None is what
    these rollouts do not tell."""
    spreads = {**figures.metrics, **figures.components}
    known = {"reward": figures.mean, **{name: each.mean for name, each in spreads.items()}}
    known |= own.get(environment.name, {})
    return {name: known.get(name) for name in environment.manifest.key_metrics}


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
