"""Plain environment: what a sandbox is made of that has an image and limits, and no environment of anybody's."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from gymbox.environment import Environment, Limits, Manifest, explain
from gymbox.errors import ConfigError

FOLDER = Path(__file__).parent / "plain"
LONGEST_NAME = 40


class PlainEnvironment(Environment):
    """An environment that comes with gymbox, and not with a manifest: that is made of what a caller asks for."""

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over its server and its image. Limits have no part in it, so all share the image."""
        content = (self.folder / self.manifest.server).read_bytes()
        return hashlib.sha256(content + self.manifest.image.model_dump_json().encode()).hexdigest()


def plain_environment(image: str | None, network: Any, limits: Mapping[str, Any]) -> PlainEnvironment:
    """An environment with this image and these limits.

    Args:
        image: None: Debian with Python; of the process provider, this machine.
        network: as `network` of environment.yaml; None: none.

    Raises:
        ConfigError: what is wrong, with the nearest name where one is mistyped.
    """
    fields: dict[str, Any] = {
        "name": _name(image),
        "description": "A workspace, without a task.",
        "image": {"base": image},
        "limits": dict(limits),
    }
    if network is not None:
        fields["network"] = network
    try:
        return PlainEnvironment(FOLDER, Manifest.model_validate(fields))
    except ValidationError as error:
        raise ConfigError(f"this sandbox cannot be made:\n{explain(error, list(Limits.model_fields))}") from error


def _name(image: Any) -> str:
    """What it is called in lists: the image's name, as far as a name may have it."""
    told = str(image).partition("@")[0] if image is not None else "plain"
    return re.sub("[^a-z0-9]+", "-", told.lower())[-LONGEST_NAME:].strip("-") or "plain"
