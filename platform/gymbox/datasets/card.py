"""Card: the README.md of a dataset, whose YAML front matter tells license and splits, as on the Hugging Face Hub."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gymbox.datasets.files import Written
from gymbox.environment import MANIFEST, Environment
from gymbox.errors import ConfigError

CARD = "README.md"


@dataclass(frozen=True, slots=True)
class License:
    """Under which terms rows may be used, and which file says so."""

    name: str
    said_in: Path


def license_of(path: Path) -> License | None:
    """The license of a data file or folder: of the card or the environment's manifest in its folder, or the one above.

    Raises:
        ConfigError: a card or manifest there is wrong.
    """
    folder = path.resolve() if path.is_dir() else path.resolve().parent
    for place in (folder, folder.parent):
        if (place / MANIFEST).is_file():
            return License(Environment.load(place).manifest.license, place / MANIFEST)
        if name := front_matter(place / CARD).get("license"):
            return License(", ".join(name) if isinstance(name, list) else str(name), place / CARD)
    return None


def agreed_license(paths: Iterable[Path], given: str | None) -> str:
    """The one license of several files; `given` goes before what is said beside them.

    Raises:
        ConfigError: none is known, or they differ.
    """
    if given is not None:
        if not given.strip():
            raise ConfigError("the license is empty; name it by its SPDX name, such as --license Apache-2.0")
        return given.strip()
    found = {path: license_of(path) for path in paths}
    if unknown := [path for path, license in found.items() if license is None]:
        raise ConfigError(
            f"{unknown[0]}: its license is not known; name it with --license, or write a {CARD} with `license: …` "
            "between two lines of --- beside it"
        )
    names = {license.name: license.said_in for license in found.values() if license is not None}
    if len(names) > 1:
        said = ", ".join(f"{name} ({path})" for name, path in names.items())
        raise ConfigError(f"the licenses differ: {said}; say with --license under which the whole may be used")
    return next(iter(names))


def front_matter(path: Path) -> dict[str, Any]:
    """What stands between the first two lines of `---`; empty where there is none.

    Raises:
        ConfigError: it is not a YAML mapping.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError):
        return {}
    lines = [line.rstrip("\r") for line in lines]
    if lines[0] != "---" or "---" not in lines[1:]:
        return {}
    try:
        found = yaml.safe_load("\n".join(lines[1 : lines.index("---", 1)]))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: what stands between the lines of --- is not YAML: {error}") from error
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: what stands between the lines of --- must be a mapping, such as `license: mit`")
    return found


def card_text(license: str, splits: Sequence[Written], notes: Sequence[str]) -> str:
    """A card that `datasets.load_dataset` finds the splits by."""
    files = [{"split": written.path.stem, "path": written.path.name} for written in splits]
    about = {"license": license, "configs": [{"config_name": "default", "data_files": files}]}
    rows = [f"| {written.path.stem} | {written.rows} | `{written.sha256}` |" for written in splits]
    table = "\n".join(["| split | rows | sha256 |", "|---|---|---|", *rows])
    front = yaml.safe_dump(about, sort_keys=False, allow_unicode=True)
    return "\n".join([f"---\n{front}---\n", table, *(f"\n{note}" for note in notes), ""])
