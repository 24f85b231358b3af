"""Readers: the runs that a command line names."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gymbox.errors import ConfigError

if TYPE_CHECKING:
    from gymbox.environment import Environment
    from gymbox.evaluation.rollouts import RunReader


def reader_of(run: Path, rename: Sequence[str] = ()) -> RunReader:
    """
    Raises:
        ConfigError: it holds no rollouts, it has no such agent, or a new name is not written OLD=NEW.
    """
    from gymbox.evaluation.rollouts import RunReader

    pairs = [text.partition("=") for text in rename]
    if wrong := [text for text, (old, _, new) in zip(rename, pairs, strict=True) if not old or not new]:
        raise ConfigError(f"--rename {wrong[0]}: write OLD=NEW, as simple_agent=counter")
    names = {old: new for old, _, new in pairs}
    path, colon, agent = str(run).rpartition(":")
    one = colon and path and not run.exists()
    return RunReader(Path(path), agent, names=names) if one else RunReader(run, names=names)


def environments_named(
    names: Iterable[str], folders: list[Path], *, needed: bool = False, own: bool = False
) -> dict[str, Environment]:
    """Those of these names that are here.

    Args:
        own: their own metrics are wanted, so all are needed and one has to have some.

    Raises:
        ConfigError: one is not here, and it is needed; or none has metrics of its own.
    """
    from gymbox.cli.places import environment_folders
    from gymbox.environment import Catalog

    catalog, found = Catalog(folders or environment_folders()), {}
    known = catalog.names()
    for name in names:
        if name in known or needed or own:
            found[name] = catalog[name]
    if own:
        from gymbox.evaluation.own_metrics import FILE, having_own_metrics

        if not having_own_metrics(found):
            raise ConfigError(f"--own: none of {', '.join(found) or 'its environments'} has a {FILE}")
    return found
