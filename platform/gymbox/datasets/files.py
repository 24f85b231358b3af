"""Files: what is written, which appears whole under its name or not at all, with its digest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gymbox.errors import ConfigError

_CUTS_LINES = {"\u2028": "\\u2028", "\u2029": "\\u2029", "\u0085": "\\u0085"}
"""Characters at which careless readers cut a line; in JSON they may be written as escapes."""


@dataclass(frozen=True, slots=True)
class Written:
    """A file that was written."""

    path: Path
    rows: int
    sha256: str
    """Hex digest of its bytes."""

    def __str__(self) -> str:
        return f"{self.path}: {self.rows} {'row' if self.rows == 1 else 'rows'}, sha256 {self.sha256}"


def json_line(fields: dict[str, Any]) -> bytes:
    """A row as one line of JSONL: UTF-8, fields in their order, no spaces, nothing at which a reader could cut it.

    Raises:
        ValueError: it holds NaN, an infinity, or half a surrogate pair.
    """
    text = json.dumps(fields, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character, escape in _CUTS_LINES.items():
        text = text.replace(character, escape)
    return text.encode() + b"\n"


def digest_of(path: Path) -> str:
    """Hex SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def new_file(path: Path, *, force: bool = False) -> Iterator[Path]:
    """A path beside `path` to write to; it takes the name `path` once the body has ended without an error.

    Raises:
        ConfigError: there is such a file already and `force` is not given, or the folder cannot be written to.
    """
    _refuse_existing(path, force)
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield beside
        _to_disk(beside)
        _refuse_existing(path, force)
        beside.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            beside.unlink()


@contextmanager
def new_folder(path: Path) -> Iterator[Path]:
    """A folder beside `path` to fill; it takes the name `path` once the body has ended without an error.

    Raises:
        ConfigError: there is something of that name already (an empty folder is none), or it cannot be written.
    """
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise ConfigError(f"{path} is there already; choose another name, or remove it")
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        beside.mkdir()
        yield beside
        for file in beside.rglob("*"):
            if file.is_file():
                _to_disk(file)
        beside.rename(path)  # an empty folder gives way
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _refuse_existing(path: Path, force: bool) -> None:
    if path.exists() and not force:
        raise ConfigError(f"{path} is there already; choose another name, or replace it with --force")


def _to_disk(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
