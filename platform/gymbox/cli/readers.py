"""Readers: the runs that a command line names."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gymbox.errors import ConfigError

if TYPE_CHECKING:
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
