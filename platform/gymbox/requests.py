"""Requests: what callers give for one, checked before anything is sent: ids and names in its path, and its fields."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote, urlsplit

from gymbox_sandbox.background import ID_PATTERN as COMMAND_PATTERN
from gymbox_sandbox.lifecycle import ID_PATTERN
from pydantic import BaseModel, ValidationError

from gymbox.errors import ConfigError, Invalid

__all__ = ["COMMAND_PATTERN", "SHAPES", "TOOL_PATTERN", "URL_PATTERN", "address", "in_path", "request_of"]

TOOL_PATTERN = r"(?!\.\.?$)[^/]{1,200}"
"""Of tools, which an environment names: whatever a path can have as one part."""
URL_PATTERN = r"^https?://"
_LETTERS = "up to {} letters, digits, '.', '_' and '-', beginning with a letter or digit"
SHAPES = {
    ID_PATTERN: _LETTERS.format(100),
    COMMAND_PATTERN: _LETTERS.format(64),
    TOOL_PATTERN: "up to 200 characters, none of which is '/'",
    URL_PATTERN: "an address that begins with http:// or https://",
}
"""What people are told of a pattern, in its place."""


def in_path(id: str, of: str, pattern: str = ID_PATTERN) -> str:
    """An id or a name as one part of a path, which leads nowhere else.

    Args:
        of: what it names, for the error.

    Raises:
        Invalid: it is none; the text says what one looks like.
    """
    if not isinstance(id, str) or not re.fullmatch(pattern, id):
        raise Invalid(f"{of} {id!r:.200} is no id: {SHAPES[pattern]}")
    return quote(id, safe="")


def request_of[Request: BaseModel](kind: type[Request], /, **fields: Any) -> Request:
    """A request with these fields.

    Raises:
        Invalid: which of them are wrong, and how, with the nearest name for a typo.
    """
    try:
        return kind(**fields)
    except ValidationError as error:
        from gymbox.environment import explain  # late: what manifests are made of is much to load for a command

        raise Invalid(f"this cannot be asked for:\n{explain(error, list(kind.model_fields))}") from error


def address(url: str, of: str) -> str:
    """An address to ask, without a slash at its end.

    Args:
        of: what is there, for the error.

    Raises:
        ConfigError: it is none; the text says what is missing.
    """
    try:
        parts = urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except (ValueError, TypeError, AttributeError):
        good = False
    if not good:
        hint = f"; is it http://{url}?" if isinstance(url, str) and url and "://" not in url else ""
        raise ConfigError(
            f"{url!r:.200} is no address of a {of}: it begins with http:// or https://, then a host{hint}"
        )
    return url.rstrip("/")
