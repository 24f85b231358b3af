"""Services: containers beside a sandbox, such as a database, as its environment's manifest names them.

They are a mapping of the manifest, or the services of a compose file, of which what has a counterpart here is taken
and the rest is refused by name.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

SERVICE_PATTERN = r"^[a-z][a-z0-9-]{0,30}$"


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServiceLimits(_Strict):
    """What one service may use."""

    cpus: float = Field(1.0, gt=0, le=64)
    """Processors, in parts of one."""
    memory_mb: int = Field(512, ge=16, le=262_144)
    """Memory, what it keeps in `tmpfs` included; swap is not allowed on top."""
    pids: int = Field(256, ge=8, le=32_768)
    """Processes and threads at once."""
    tmpfs_mb: int = Field(256, ge=1, le=65_536)
    """Size of each writable folder, which is in memory."""
    open_files: int = Field(4096, ge=64, le=20_000)
    """Files that one process may have open."""


class HealthCheck(_Strict):
    """How it is known that a service can be used."""

    test: list[str] = Field(min_length=1)
    """A command that runs in its container, and exits with 0 once it can."""
    timeout: float = Field(5, gt=0, le=600)
    """Seconds for one try."""
    within: float = Field(60, gt=0, le=3600)
    """Seconds, from its start, in which one must succeed; else the sandbox's start has failed."""


def _folder(path: str) -> str:
    if not re.fullmatch(r"/[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)*", path) or {".", ".."} & set(path.split("/")):
        raise ValueError(f"{path!r} is no absolute path of a folder")
    if re.match(r"/(?:proc|sys|dev)(?:/|$)", path):
        raise ValueError(f"{path!r} is the kernel's: nothing may be put over it")
    return path


def _below(path: str) -> str:
    if not re.fullmatch(r"services(/[A-Za-z0-9._-]+)+", path) or {".", ".."} & set(path.split("/")):
        raise ValueError(f"{path!r} is no folder below services/: write it as services/NAME")
    return path


class Service(_Strict):
    """One container beside the sandbox. Nothing here can make it privileged, mount a folder of the host or publish a
    port."""

    image: str | None = Field(None, pattern=r"^[a-z0-9][A-Za-z0-9./:@_-]{0,254}$")
    """An image; it is pulled where it is missing."""
    build: Annotated[str, AfterValidator(_below)] | None = None
    """Or a folder with a Dockerfile, below the environment's `services/`; `ARG BASE_IMAGE` / `FROM ${BASE_IMAGE}`
    makes it start from the same base as the sandbox runtime."""
    command: list[str] = Field(default_factory=list)
    """Instead of the image's."""
    env: dict[Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")], str] = Field(default_factory=dict)
    """Environment variables. They are no place for secrets."""
    user: str | None = Field(None, pattern=r"^[A-Za-z0-9_.:-]{1,64}$")
    """Who runs it, instead of the image's."""
    ports: list[Annotated[int, Field(ge=1, le=65_535)]] = Field(default_factory=list)
    """Ports that it listens on, for readers: the sandbox reaches all of them, and nobody else any."""
    tmpfs: list[Annotated[str, AfterValidator(_folder)]] = Field(default_factory=list)
    """Folders that it may write to, beside /tmp, /run and the volumes that its image declares; empty at each start.
    The rest of its file system is read-only."""
    health: HealthCheck | None = None
    """Without one, it can be used as soon as it runs."""
    limits: ServiceLimits = ServiceLimits()

    @model_validator(mode="after")
    def _has_one_image(self) -> Service:
        if (self.image is None) == (self.build is None):
            raise ValueError("a service has an image or a build, and one of them")
        return self


# --- compose files

_TAKEN = (
    *("image", "build", "command", "environment", "user", "expose", "tmpfs", "healthcheck", "depends_on"),
    *("cpus", "mem_limit", "pids_limit"),
)
_CHECKS = ("test", "interval", "timeout", "retries", "start_period")
_UNITS = {"b": 1 / 1024**2, "k": 1 / 1024, "kb": 1 / 1024, "m": 1, "mb": 1, "g": 1024, "gb": 1024}
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1, "m": 60, "h": 3600}


def of_compose(path: Path) -> dict[str, dict[str, Any]]:
    """The services of a compose file, as a manifest would have them, in the order in which they depend on one another.

    Raises:
        ValueError: it is none, or asks for what a service here cannot have; the text names it.
    """
    try:
        content = yaml.safe_load(path.read_text())
    except FileNotFoundError:
        raise ValueError(f"there is no file {path.name}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ValueError(f"{path.name} is no compose file: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("services"), dict):
        raise ValueError(f"{path.name} has no services")
    if others := sorted(set(content) - {"services", "name", "version"}):
        raise ValueError(f"{path.name}: {', '.join(others)}: only services are taken")
    services: dict[str, Any] = content["services"]
    return {name: _translated(name, services[name]) for name in _in_order(services)}


def _translated(name: str, found: Any) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise ValueError(f"service {name} must be a mapping")
    if others := sorted(str(key) for key in found if key not in _TAKEN):
        raise ValueError(f"service {name}: {', '.join(others)}: not taken; what is: {', '.join(_TAKEN)}")
    made: dict[str, Any] = {key: found[key] for key in ("image", "user") if key in found}
    if "build" in found:
        build = found["build"]
        if isinstance(build, dict) and set(build) != {"context"}:
            raise ValueError(f"service {name}: build: only context is taken, a folder with a Dockerfile")
        made["build"] = str(build["context"] if isinstance(build, dict) else build).removeprefix("./").rstrip("/")
    if "command" in found:
        made["command"] = _words(found["command"])
    if "environment" in found:
        made["env"] = _variables(name, found["environment"])
    if "expose" in found:
        made["ports"] = [int(str(port).removesuffix("/tcp")) for port in found["expose"]]
    if "tmpfs" in found:
        made["tmpfs"] = [found["tmpfs"]] if isinstance(found["tmpfs"], str) else found["tmpfs"]
    if "healthcheck" in found:
        made["health"] = _health(name, found["healthcheck"])
    limits = {"cpus": float(found["cpus"])} if "cpus" in found else {}
    limits |= {"memory_mb": _megabytes(found["mem_limit"])} if "mem_limit" in found else {}
    limits |= {"pids": int(found["pids_limit"])} if "pids_limit" in found else {}
    return made | ({"limits": limits} if limits else {})


def _in_order(services: Mapping[str, Any]) -> list[str]:
    """Names, each after those that it depends on."""
    order: list[str] = []

    def visit(name: str, above: tuple[str, ...]) -> None:
        if name in above:
            raise ValueError(f"services depend on each other in a circle: {' → '.join([*above, name])}")
        if name not in services:
            raise ValueError(f"service {above[-1]} depends on {name}, which there is not")
        if name not in order:
            body = services[name]
            for other in (body.get("depends_on") or ()) if isinstance(body, dict) else ():
                visit(other, (*above, name))
            order.append(name)

    for name in services:
        visit(name, ())
    return order


def _words(command: Any) -> list[str]:
    return shlex.split(command) if isinstance(command, str) else [str(word) for word in command or ()]


def _variables(name: str, found: Any) -> dict[str, str]:
    pairs = found.items() if isinstance(found, dict) else (str(each).partition("=")[::2] for each in found)
    made = {str(key): "" if value is None else str(value) for key, value in pairs}
    if borrowed := [key for key, value in made.items() if "${" in value or value == ""]:
        raise ValueError(
            f"service {name}: {', '.join(borrowed)}: variables of the caller's are not taken; write a value"
        )
    return made


def _health(name: str, found: Mapping[str, Any]) -> dict[str, Any]:
    if others := sorted(str(key) for key in found if key not in _CHECKS):
        raise ValueError(f"service {name}: healthcheck: {', '.join(others)}: not taken; what is: {', '.join(_CHECKS)}")
    test = found.get("test", [])
    if isinstance(test, str):
        test = ["CMD-SHELL", test]
    match [str(word) for word in test]:
        case ["CMD", *words] if words:
            command = words
        case ["CMD-SHELL", line]:
            command = ["/bin/sh", "-c", line]
        case _:
            raise ValueError(f"service {name}: healthcheck: test is [CMD, …], [CMD-SHELL, …] or a line")
    timeout = _seconds(found.get("timeout", "5s"))
    interval = _seconds(found.get("interval", "30s"))
    # compose gives up after so many failed checks; here what counts is the time that these take
    within = _seconds(found.get("start_period", "0s")) + int(found.get("retries", 3)) * (interval + timeout)
    return {"test": command, "timeout": timeout, "within": within}


def _seconds(text: Any) -> float:
    parts = re.findall(r"([0-9.]+)(us|ms|s|m|h)", str(text))
    if not parts or "".join(f"{number}{unit}" for number, unit in parts) != str(text):
        raise ValueError(f"{text!r} is no duration: write 5s or 1m30s")
    return sum(float(number) * _SECONDS[unit] for number, unit in parts)


def _megabytes(text: Any) -> int:
    found = re.fullmatch(r"([0-9]+)([a-z]*)", str(text).lower())
    if found is None or (found[2] or "b") not in _UNITS:
        raise ValueError(f"{text!r} is no size: write 512m or 1g")
    return max(1, round(int(found[1]) * _UNITS[found[2] or "b"]))
