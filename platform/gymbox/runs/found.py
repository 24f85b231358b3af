"""Found: the run that somebody means, by its folder, its id, or because it is the only one."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gymbox.errors import ConfigError, nearest
from gymbox.results import ROLLOUTS
from gymbox.run_manifest import MANIFEST, RunManifest, manifest_in
from gymbox.runs.register import Entry

RUNS = Path("runs")
"""Where `gymbox run` writes, unless told otherwise."""


@dataclass(frozen=True)
class Found:
    """A run: live, or only its folder, or both."""

    id: str
    folder: Path
    entry: Entry | None


def find_run(wanted: str, entries: Sequence[Entry]) -> Found:
    """
    Args:
        wanted: a folder, an id, the beginning of one, or "" for the only run that is live.
        entries: the runs that are live.

    Raises:
        ConfigError: there is no such run, or several.
    """
    if not wanted:
        return _only(entries)
    path = Path(wanted)
    if (path / MANIFEST).is_file():
        folder = str(path.resolve())
        entry = next((entry for entry in entries if entry.folder == folder), None)
        manifest = manifest_in(path)
        assert manifest is not None
        return Found(entry.id if entry else manifest.run, path, entry)
    live = [entry for entry in entries if entry.id == wanted] or [
        entry for entry in entries if entry.id.startswith(wanted)
    ]
    if len(live) == 1:
        return Found(live[0].id, Path(live[0].folder), live[0])
    ended = {manifest.run: folder for folder, manifest in _below(RUNS)} if not live else {}
    if wanted in ended:
        return Found(wanted, ended[wanted], None)
    if live:
        raise ConfigError(f"several runs begin with {wanted!r}: {', '.join(entry.id for entry in live)}")
    if path.is_dir():
        raise ConfigError(f"{path} holds no run: it has no {MANIFEST}")
    hint = nearest(wanted, [*(entry.id for entry in entries), *ended])
    raise ConfigError(f"there is no run {wanted!r}, neither live nor in ./{RUNS}, and no such folder; {hint}")


def _only(entries: Sequence[Entry]) -> Found:
    if len(entries) == 1:
        return Found(entries[0].id, Path(entries[0].folder), entries[0])
    if not entries:
        raise ConfigError("no run of yours is live on this machine; name the folder of one that has ended")
    raise ConfigError(
        "several runs are live; name one:\n" + "\n".join(f"  {entry.id}  {entry.folder}" for entry in entries)
    )


def _below(parent: Path) -> list[tuple[Path, RunManifest]]:
    found = []
    for path in sorted(parent.glob(f"*/{MANIFEST}")):
        try:
            manifest = manifest_in(path.parent)
        except ConfigError:
            continue
        if manifest is not None:
            found.append((path.parent, manifest))
    return found


def is_held(folder: Path) -> bool:
    """Whether some process, of whichever user, writes to the run in this folder now."""
    try:
        descriptor = os.open(folder / ROLLOUTS, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False
