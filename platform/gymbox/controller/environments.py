"""Environments: those of a catalog, read again only when their files change."""

from __future__ import annotations

from gymbox.environment import Catalog, Environment, EnvironmentView
from gymbox.providers import SandboxProvider, base_of, isolation_of, versions_of

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
            if environment.folder.is_dir() and signature == _signature(environment):
                return environment
        environment = self._catalog[name]
        self._loaded[name] = _signature(environment), environment
        return environment


async def environment_view(environment: Environment, provider: SandboxProvider, *, prepare: bool) -> EnvironmentView:
    """An environment, and what its sandboxes are made with.

    Args:
        prepare: make its image now, where it is missing, and tell which it is.

    Raises:
        ImageBuildFailed: with the failing step's log.
        Unavailable: the provider cannot hold it, or does not answer.
    """
    prepared = await provider.prepare(environment) if prepare else None
    return EnvironmentView(
        **environment.manifest.model_dump(),
        provider=isolation_of(provider),
        versions=versions_of(provider),
        prepared=prepared,
        base=base_of(provider, environment) if prepare else None,
    )


def _signature(environment: Environment) -> _Signature:
    stats = ((str(path), path.stat()) for path in environment.files())
    return tuple((path, stat.st_mtime_ns, stat.st_size) for path, stat in stats)
