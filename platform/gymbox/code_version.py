"""Code version: which code made a run."""

from __future__ import annotations

import re
from pathlib import Path

from gymbox_sandbox import __version__

_COMMIT = re.compile(r"[0-9a-f]{40,64}")


def code_version(root: Path | None = None) -> str:
    """gymbox's version; of a checkout with the commit, as `0.1.0+g0123456789ab` (PEP 440's local version).

    Args:
        root: of the checkout; default: where this package is.
    """
    # read by hand: git may be missing, or refuse a folder of another user
    commit = _commit(root or Path(__file__).resolve().parents[2])
    return f"{__version__}+g{commit[:12]}" if commit else __version__


def _commit(root: Path) -> str | None:
    try:
        git = root / ".git"
        if git.is_file():  # of a second working tree: "gitdir: PATH"
            git = root / git.read_text().partition(":")[2].strip()
        head = (git / "HEAD").read_text().strip()
        name = head.removeprefix("ref: ")
        found = head if name == head else _named(git, name)
    except (OSError, UnicodeDecodeError):
        return None
    return found if _COMMIT.fullmatch(found) else None


def _named(git: Path, name: str) -> str:
    """The commit of a branch, which stands in a file of its own or among the packed ones."""
    shared = git / "commondir"
    places = [git, git / shared.read_text().strip()] if shared.is_file() else [git]
    for place in places:
        if (place / name).is_file():
            return (place / name).read_text().strip()
        packed = place / "packed-refs"
        for line in packed.read_text().splitlines() if packed.is_file() else ():
            if line.endswith(f" {name}"):
                return line.partition(" ")[0]
    return ""
