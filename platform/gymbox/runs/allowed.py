"""Allowed: what a caller over HTTP may set of a run that a server does.

The server's user has files, environment variables and keys that its callers need not get at. So a caller names shipped
components and environments of the server's catalog, and sets fields; no class, no file outside the folder of runs, no
variable, and no address to which a key of the server's would go.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from gymbox_sandbox.lifecycle import ID_PATTERN
from pydantic import BaseModel, SecretStr

from gymbox.config import Settings, values_in
from gymbox.errors import ConfigError
from gymbox.models.litellm import LiteLLM

_NAME = re.compile(r"(environment|agent|model|judge|runner)((?:\.[A-Za-z_][A-Za-z0-9_-]*)*)")
_CHOICE = re.compile(r"[A-Za-z0-9_-]+")
STARS = "***"
"""Stands for a secret in what is kept."""
OURS = ("runner.output", "runner.resume", "runner.retry_failed")
"""What the server sets itself."""
ADDRESSES = ("base_url", "replicas")
LARGEST_CONCURRENCY = 1024
"""Rollouts that one run of a server may have under way: they share its process."""


def check_overrides(overrides: Sequence[str]) -> None:
    """Refuse what no caller may set, before anything is made of it.

    Raises:
        ConfigError: what, and why.
    """
    for override in overrides:
        name, equals, value = override.partition("=")
        found = _NAME.fullmatch(name)
        if not equals or found is None:
            raise ConfigError(
                f"{name[:80]!r} cannot be set for a run of a server; what can is environment=NAME, agent, model, "
                "judge and runner, and their fields"
            )
        if "${" in override or "_target_" in override:
            raise ConfigError(f"{name}: neither ${{…}} nor _target_ can be used for a run of a server")
        if name in OURS:
            raise ConfigError(f"{name} is set by the server itself")
        if name.startswith("agent.skills"):
            raise ConfigError(f"{name} names a folder of the server's, so no caller may set it")
        if not found[2] and name == "runner":
            raise ConfigError("runner= cannot be set for a run of a server; set its fields: runner.NAME=…")
        if not found[2] and name in ("agent", "model", "judge") and not _CHOICE.fullmatch(value):
            raise ConfigError(
                f"{name}={value[:80]!r} is no choice of this server; see docs/reference/configuration.md"
            )


def check_settings(settings: Settings, overrides: Sequence[str], *, catalog: Sequence[str], files: Path) -> None:
    """Refuse what these settings would let a caller reach.

    Args:
        catalog: names of the environments that there are.
        files: the folder below which files may be named.

    Raises:
        ConfigError: what, and why.
    """
    names = [override.partition("=")[0] for override in overrides]
    for environment in settings.environment:
        if not re.fullmatch(ID_PATTERN, environment) or environment not in catalog:
            raise ConfigError(f"this server has no environment {environment!r}; GET /environments lists them")
    if settings.runner.concurrency > LARGEST_CONCURRENCY:
        raise ConfigError(f"runner.concurrency of a run of a server may be {LARGEST_CONCURRENCY} at most")
    parts: dict[str, BaseModel | None] = {
        "agent": settings.agent,
        "model": settings.model,
        "judge": settings.judge,
        "runner": settings.runner,
    }
    for section, part in parts.items():
        if part is None:
            continue
        given = {name.split(".")[1] for name in names if name.startswith(f"{section}.")}
        for field in sorted(given & set(type(part).model_fields)):
            for path in values_in(getattr(part, field), Path):
                if not path.resolve().is_relative_to(files.resolve()):
                    raise ConfigError(f"{section}.{field}: a caller may name files of runs of this server, no others")
        _check_keys(section, part, given)


def without_secrets(settings: Settings, overrides: Sequence[str]) -> list[str]:
    """The overrides with stars in the place of each value that is, or holds, a secret."""
    found = []
    for override in overrides:
        name = override.partition("=")[0]
        section, _, field = name.partition(".")
        part, field = getattr(settings, section, None), field.partition(".")[0]
        hidden = field and isinstance(part, BaseModel) and any(values_in(getattr(part, field, None), SecretStr))
        found.append(f"{name}={STARS}" if hidden else override)
    return found


def _check_keys(section: str, part: BaseModel, given: set[str]) -> None:
    if isinstance(part, LiteLLM):
        raise ConfigError(f"{section}=litellm takes keys from the server's environment, so no caller may choose it")
    if not given & set(ADDRESSES):
        return
    own = [
        name
        for name in type(part).model_fields
        if name not in given and any(values_in(getattr(part, name), SecretStr))
    ]
    if own:
        raise ConfigError(
            f"{section}.{own[0]} of this server goes to no address of a caller's: with {section}.base_url give "
            f"{section}.{own[0]} too, or {section}.{own[0]}=null for none"
        )
