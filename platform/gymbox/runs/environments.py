"""Environments: those of a run, by name, by folder, or as they are."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gymbox.environment import Catalog, Environment
from gymbox.errors import ConfigError

EnvironmentChoice = str | Path | Environment


def environments_of(choices: Sequence[EnvironmentChoice], folders: Sequence[Path]) -> list[Environment]:
    """The environments that these choices mean.

    Args:
        folders: where they are looked for by name.

    Raises:
        ConfigError: there is none of a name, its manifest is wrong, none is given, or two have the same name.
    """
    catalog, found = Catalog(folders), dict[str, Environment]()
    for choice in choices:
        environment = _chosen(choice, catalog)
        if environment.name in found:
            raise ConfigError(f"environment {environment.name!r} is named twice; a run has each once")
        found[environment.name] = environment
    if not found:
        raise ConfigError("environment: none is given")
    return list(found.values())


def _chosen(choice: EnvironmentChoice, catalog: Catalog) -> Environment:
    if isinstance(choice, str):
        return catalog.find(choice)
    if isinstance(choice, Path):
        return Environment.load(choice.resolve())
    if isinstance(choice, Environment):
        return choice
    raise ConfigError(f"environment: {choice!r} is no name, folder or Environment")
