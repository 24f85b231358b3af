"""Token files: how servers that start beside one another get each other's tokens."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from gymbox import logs
from gymbox.errors import ConfigError


def token_in(path: Path | None) -> str | None:
    """The token in a file, hidden from the logs; None without a file.

    Raises:
        ConfigError: it cannot be read.
    """
    if path is None:
        return None
    try:
        token = path.read_text().strip()
        logs.hide(token)
        return token
    except OSError as error:
        raise ConfigError(f"cannot read the token in {path}: {error.strerror}") from error


def write_tokens(folder: Path, admin: str) -> None:
    """Write the tokens of the servers beside this one, each into a folder that its readers' group owns (setgid): the
    admin token into `agent`, and one for models and agents, made anew, into `upstream`.

    Raises:
        ConfigError: one cannot be written.
    """
    shared = {"agent": admin, "upstream": f"gbx_key_{secrets.token_urlsafe(32)}"}
    try:
        for name, token in shared.items():
            path = folder / name / "token"
            if name == "upstream" and path.exists():
                continue  # its readers have read it
            fresh = path.with_suffix(".new")
            fresh.unlink(missing_ok=True)
            with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o640), "w") as file:
                file.write(f"{token}\n")
            fresh.replace(path)
    except OSError as error:
        raise ConfigError(f"cannot share tokens in {folder}: {error.strerror}") from error
