"""Environments: those of a catalog, read again only when their files change."""

from __future__ import annotations

import os

from gymbox.environment import NOT_IN_IMAGE, Catalog, Environment, EnvironmentView
from gymbox.providers import SandboxProvider, isolation_of, versions_of

_Signature = tuple[tuple[str, int, int], ...]


class LoadedEnvironments:
    """Environments by name. To load one costs milliseconds and hashes all its files, so it is kept while its folder
    stays as it is."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._loaded: dict[str, tuple[_Signature, Environment]] = {}

    def __call__(self, name: str) -> Environment:
        """
        Raises:
            ConfigError: there is none of that name, or its manifest is wrong.
        """
        if name in self._loaded:
            signature, environment = self._loaded[name]
            if signature == _signature(environment.folder):
                return environment
        environment = self._catalog[name]
        self._loaded[name] = _signature(environment.folder), environment
        return environment


async def environment_view(environment: Environment, provider: SandboxProvider, *, prepare: bool) -> EnvironmentView:
    """An environment, and what its sandboxes are made with.

    Args:
        prepare: make its image now, where it is missing, and tell which it is.

    Raises:
        ImageBuildFailed: with the failing step's log.
        Unavailable: the provider cannot hold it, or does not answer.
    """
    return EnvironmentView(
        **environment.manifest.model_dump(),
        provider=isolation_of(provider),
        versions=versions_of(provider),
        prepared=await provider.prepare(environment) if prepare else None,
    )


def _signature(folder: str | os.PathLike[str]) -> _Signature:
    """What tells that its files have changed; empty where there is none. Looked at for each sandbox, so without the
    help of pathlib, which takes ten times as long."""
    found: list[tuple[str, int, int]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name in NOT_IN_IMAGE:
                    continue
                if entry.is_dir(follow_symlinks=False):
                    found += _signature(entry.path)
                elif entry.is_file():
                    stat = entry.stat()
                    found.append((entry.path, stat.st_mtime_ns, stat.st_size))
    except FileNotFoundError:
        return ()
    return tuple(sorted(found))
