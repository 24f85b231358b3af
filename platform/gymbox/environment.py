"""Environment: a folder with a manifest, a resources server, and the tasks beside it."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import yaml
from gymbox_sandbox.lifecycle import ID_PATTERN
from gymbox_sandbox.tasks import HIDDEN
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from gymbox.errors import ConfigError, nearest
from gymbox.network import Network
from gymbox.requests import SHAPES as REQUEST_SHAPES
from gymbox.services import SERVICE_PATTERN, Service, of_compose

MANIFEST = "environment.yaml"
IMAGE_PATTERN = (
    r"^(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]{1,5})?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*"
    r"(?::[A-Za-z0-9_][A-Za-z0-9_.-]{0,127})?(?:@sha256:[0-9a-f]{64})?$"
)
"""What an image is named by: `[registry[:port]/]name[:tag][@sha256:…]`."""
SHAPES = REQUEST_SHAPES | {
    IMAGE_PATTERN: "the name of an image: [HOST/]NAME[:TAG][@sha256:DIGEST], such as debian:trixie-slim, with small "
    "letters in NAME"
}
"""What patterns mean, in words."""
SERVICES = "services"
"""Folder below which services are built; it is no part of the sandbox's own image."""
NOT_IN_IMAGE = frozenset({"data", "tests", "README.md", "generate.py", "__pycache__", ".pytest_cache"})


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Limits(_Strict):
    """What one sandbox may use."""

    cpus: float = Field(1.0, gt=0, le=64)
    """Processors, in parts of one: 0.5 is half of one."""
    memory_mb: int = Field(1024, ge=64, le=262_144)
    """Memory; swap is not allowed on top."""
    pids: int = Field(256, ge=16, le=32_768)
    """Processes and threads at once, the server's own included."""
    workspace: Literal["memory", "disk"] = "memory"
    """Where /workspace is. `memory`: a tmpfs, whose files count towards `memory_mb`. `disk`: an ext4 file system of
    its own, in a file on the controller's disk; it needs a controller that runs as root beside the engine."""
    workspace_mb: int = Field(256, ge=1, le=65_536)
    """Size of /workspace; on `disk`, its file system's own tables included, and at least 8."""
    tmp_mb: int = Field(256, ge=1, le=65_536)
    """Size of /tmp, and of the agent's home; in memory."""
    inodes: int | None = Field(None, ge=16, le=16_777_216)
    """Files, folders and links that /workspace may hold, and as many each /tmp and the agent's home; on `disk` rounded
    up a little. Default: 64 for each megabyte."""
    open_files: int = Field(4096, ge=64, le=20_000)
    """Files that one process may have open."""
    log_mb: int = Field(20, ge=1, le=1024)
    """Of what the server prints, so much is kept; the oldest goes first."""

    @model_validator(mode="after")
    def _room_for_tables(self) -> Self:
        if self.workspace == "disk" and self.workspace_mb < 8:
            raise ValueError("workspace: disk needs workspace_mb: 8 or more, for the file system's own tables")
        return self


class Timeouts(_Strict):
    """Seconds."""

    start: float = Field(120, gt=0)
    """From the moment it leaves the queue until its server answers."""
    reset: float = Field(60, gt=0)
    """One `reset`."""
    tool: float = Field(60, gt=0)
    """One call of a tool; it then answers the model with an error."""
    verify: float = Field(120, gt=0)
    """Ending the agent's processes and `verify` together."""
    rollout: float = Field(1800, gt=0)
    """A whole rollout, model calls included."""
    task: float | None = Field(None, gt=0)
    """A sandbox's life from the moment it is ready, however often its lease is renewed; then it ends with the cause
    `timeout`. Default: no limit but the lease."""


class ArtifactLimits(_Strict):
    """What the artifacts of one rollout may be together."""

    megabytes: int = Field(64, ge=1, le=8192)
    """Their size, not compressed; holes in files count as if they were none."""
    files: int = Field(10_000, ge=1, le=200_000)
    """Their number, folders and links among them."""


class JudgeLimits(_Strict):
    """What one verify may ask of its judge."""

    calls: int = Field(64, ge=1, le=10_000)
    """Questions, with each vote and each repeat of one that was answered with garbage."""
    tokens: int = Field(200_000, ge=1)
    """Tokens of the model, in and out; once they are used up, nothing more is asked. A question waits while those
    under way may need what is left: by their `max_output_tokens`, else as much as the longest answer so far."""
    kilobytes: int = Field(1024, ge=1, le=65_536)
    """Size of all questions together, and of an answer."""
    timeout: float = Field(60, gt=0)
    """Seconds for one question, repeats and the wait for tokens included."""


class Image(_Strict):
    """What the environment's image holds beyond the sandbox runtime. Nothing here can make it privileged."""

    base: str | None = Field(None, pattern=IMAGE_PATTERN)
    """Any Linux image, with Python or without, such as `alpine:3.22` or `name@sha256:…`; it is pulled where it is
    missing. None: Debian with Python."""
    packages: list[str] = Field(default_factory=list)
    """Debian packages; of another base, its own, where it has apt."""
    pip: list[str] = Field(default_factory=list)
    """Pinned requirements for the server (`name==version`)."""
    dockerfile: str | None = None
    """A Dockerfile in the folder, on which the rest is built. `ARG BASE_IMAGE` / `FROM ${BASE_IMAGE}` starts from
    `base`; one that starts from anything else makes any Linux image, and goes without `base`."""


def _in_workspace(path: str) -> str:
    parts = path.split("/")
    if not all(parts) or {".", ".."} & set(parts):
        raise ValueError(f"{path!r} is no path in the workspace: write it as folder/file or folder/**/*.py")
    return path


class Manifest(_Strict):
    """`environment.yaml`."""

    name: str = Field(pattern=ID_PATTERN)
    """May be left out; where it stands, it must be the folder's name."""
    description: str
    """One line on what the agent must do."""
    server: str = Field("server.py", pattern=r"^[A-Za-z0-9_./-]+\.py(:[A-Za-z_][A-Za-z0-9_]*)?$")
    """`file.py:Class`; the class may be left out where the file defines one ResourcesServer."""
    domain: str = "other"
    """What kind of task it is, for readers and lists: `coding`, `tool use`, `math`, …"""
    license: str = "Apache-2.0"
    """Of server and rows, by its SPDX name."""
    verified: bool = False
    """Whether a person has checked that its rewards are right; new environments start with false."""
    dataset: str = "data/example.jsonl"
    """The tasks: a JSONL file in the folder, or below it."""
    hidden_fields: list[str] = Field(default_factory=list)
    """Top-level row fields that only `verify` may see, beside `verifier_metadata`."""
    sessions: int = Field(1, ge=1, le=4096)
    """Tasks that may share one sandbox at once, each with an instance of its own."""
    verify: Literal["shared", "fresh"] = "shared"
    """`fresh` scores in a second, clean sandbox to which only `artifacts` are copied."""
    artifacts: list[Annotated[str, AfterValidator(_in_workspace)]] = Field(default_factory=list)
    """What of the workspace a fresh verify gets, and what `reverify: artifacts` keeps: paths of files and folders, or
    patterns such as `src/**/*.py`. What is missing, or closed to the agent's user, stays missing."""
    artifact_limits: ArtifactLimits = ArtifactLimits()
    network: Network = "none"
    """`none`: no interface but loopback, and with `services` one to these. `internal`: a network of its own, with
    nobody else in it, leading nowhere. `models`: the rollout's model or the proxy's, and nothing else. `{allow:
    [example.org, …]}`: these hosts, through an egress proxy. `open`: every public host, through the same. See
    docs/network.md."""
    services: dict[Annotated[str, Field(pattern=SERVICE_PATTERN)], Service] = Field(default_factory=dict, max_length=8)
    """Containers beside the sandbox, by the name that it reaches them by; or the name of a compose file in the folder,
    of whose services a part is taken. Started in this order, each once the one before is healthy, and gone with the
    sandbox. See docs/services.md."""
    reverify: Literal["no", "stateless", "artifacts"] = "no"
    """`stateless`: `verify` looks at nothing but the row and the response, so that `gymbox eval reverify` may score
    what is stored anew, in a sandbox in which no agent has been. `artifacts`: at nothing but these and `artifacts`,
    which are therefore kept in the run's folder."""
    key_metrics: list[str] = Field(default_factory=list)
    """What `gymbox eval metrics` shows first: names of rewards' components, of metrics, or of what the folder's own
    `metrics.py` computes."""
    judge: JudgeLimits | None = None
    """`true`, or its limits: `verify` asks a model (`self.judge`), which whoever runs the environment chooses."""
    image: Image = Image()
    limits: Limits = Limits()
    timeouts: Timeouts = Timeouts()

    @model_validator(mode="after")
    def _kept_of_one_task(self) -> Self:
        if self.reverify == "artifacts" and not self.artifacts:
            raise ValueError("reverify: artifacts needs to know which: add artifacts: [path, …]")
        if self.reverify == "artifacts" and self.sessions > 1:
            raise ValueError("reverify: artifacts needs sessions: 1: tasks that share a sandbox share its workspace")
        return self

    @model_validator(mode="after")
    def _services_have_one_network(self) -> Self:
        if self.services and self.network == "internal":
            raise ValueError("services bring an internal network of their own: leave network: internal out")
        return self

    @field_validator("judge", mode="before")
    @classmethod
    def _judge_or_not(cls, value: Any) -> Any:
        return {True: {}, False: None}[value] if isinstance(value, bool) else value


class EnvironmentView(Manifest):
    """An environment as a controller shows it: its manifest, and what its sandboxes are made with there."""

    provider: str
    """What holds them, and how isolated they are."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Of what holds them: `docker` is the engine's."""
    prepared: str | None = None
    """Its content-addressed image, where that was asked for and the provider has images."""
    base: str | None = None
    """Which image that is based on, by digest."""


@dataclass(frozen=True)
class Environment:
    """A folder with its manifest; `digest` changes when anything that goes into its image does."""

    folder: Path
    manifest: Manifest

    @property
    def name(self) -> str:
        return self.manifest.name

    @property
    def dataset(self) -> Path:
        """Where its tasks are."""
        return self.folder / self.manifest.dataset

    def files(self) -> list[Path]:
        """What goes into the image: everything but data, tests, services and README, in a fixed order."""
        folder = self.folder / SERVICES if self.manifest.services else None
        return [path for path in self._all_files() if folder is None or not path.is_relative_to(folder)]

    def service_files(self, service: Service) -> list[Path]:
        """What a service that is built is built from, in a fixed order."""
        folder = self.folder / service.build if service.build else None
        return [path for path in self._all_files() if folder is not None and path.is_relative_to(folder)]

    def _all_files(self) -> list[Path]:
        found = (path for path in self.folder.rglob("*") if path.is_file())
        return sorted(path for path in found if not NOT_IN_IMAGE & set(path.relative_to(self.folder).parts))

    @cached_property
    def digest(self) -> str:
        """SHA-256 (hex) over names and bytes of all that goes into its images."""
        sha = hashlib.sha256()
        for path in self._all_files():
            content = path.read_bytes()
            sha.update(f"{path.relative_to(self.folder)}\0{len(content)}\0".encode())
            sha.update(content)
        return sha.hexdigest()

    def public(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row without what only `verify` may see."""
        hidden = {*HIDDEN, *self.manifest.hidden_fields}
        return {name: value for name, value in row.items() if name not in hidden}

    def for_verify(self, row: dict[str, Any]) -> dict[str, Any]:
        """The row as `verify` gets it: all but the gold replies; `SandboxClient.verify` keeps the gold judgements."""
        return {name: value for name, value in row.items() if name != "gold_replies"}

    @classmethod
    def load(cls, folder: Path) -> Environment:
        """The environment in `folder`.

        Raises:
            ConfigError: no manifest, or one that is wrong (each faulty field is named).
        """
        path = folder / MANIFEST
        try:
            content = yaml.safe_load(path.read_text())
        except FileNotFoundError:
            raise ConfigError(f"{folder} is no environment: it has no {MANIFEST}") from None
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{path} is not YAML: {error}") from error
        if not isinstance(content, dict):
            raise ConfigError(f"{path} must be a mapping")
        try:
            if isinstance(named := content.get("services"), str):
                content = {**content, "services": of_compose(_inside(folder, named))}
            manifest = Manifest.model_validate({"name": folder.name, **content})
            for name, service in manifest.services.items():
                if service.build and not (folder / service.build / "Dockerfile").is_file():
                    raise ConfigError(f"{path}: service {name}: there is no {service.build}/Dockerfile")
        except ValidationError as error:
            raise ConfigError(f"{path} is wrong:\n{explain(error, list(Manifest.model_fields))}") from error
        except ValueError as error:
            raise ConfigError(f"{path}: {error}") from error
        if manifest.name != folder.name:
            raise ConfigError(f"{path}: name is {manifest.name!r} but the folder is {folder.name!r}; make them equal")
        return cls(folder.resolve(), manifest)


def _inside(folder: Path, name: str) -> Path:
    """A file of an environment's folder by its name.

    Raises:
        ValueError: it would be elsewhere.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-][A-Za-z0-9._-]*", name):
        raise ValueError(f"services: {name!r} is no name of a compose file in this folder")
    return folder / name


def explain(error: ValidationError, known: list[str]) -> str:
    """One line for each faulty field of a pydantic error, with the nearest name for a typo."""
    found = [(_place(fault["loc"]), fault) for fault in error.errors(include_url=False)]
    # of a field that takes one of several types, what is wrong with the value tells more than the types it is not
    told = {where for where, fault in found if not fault["type"].endswith("_type")}
    lines = []
    for where, fault in found:
        if where in told and fault["type"].endswith("_type"):
            continue
        hint = f" ({nearest(str(fault['loc'][-1]), known)})" if fault["type"] == "extra_forbidden" else ""
        text = fault["msg"].removeprefix("Value error, ")
        if shape := SHAPES.get(str(fault.get("ctx", {}).get("pattern"))):
            text = f"{fault['input']!r:.200} is not {shape}"
        lines.append(f"  {where}: {text}{hint}" if where else f"  {text}{hint}")
    return "\n".join(lines)


def _place(loc: tuple[int | str, ...]) -> str:
    """Where a fault is, without the names that pydantic has for a union's alternatives (`list[…]`)."""
    return ".".join(str(part) for part in loc if part != "_default" and "[" not in str(part))


class Catalog:
    """The environments found in some folders, by name; an earlier folder wins over a later one."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders = [Path(folder) for folder in folders]

    def names(self) -> list[str]:
        """All names, sorted."""
        found = {path.parent.name for folder in self.folders for path in folder.glob(f"*/{MANIFEST}")}
        return sorted(found)

    def find(self, name: str) -> Environment:
        """The environment of this name, or the one in the folder of this path: `counter`, `./mine`, `.`.

        Raises:
            ConfigError: there is none (the nearest is named), or its manifest is wrong.
        """
        is_path = "/" in name or name in (".", "..") or (Path(name) / MANIFEST).is_file()
        return Environment.load(Path(name).resolve()) if is_path else self[name]

    def __getitem__(self, name: str) -> Environment:
        """
        Raises:
            ConfigError: there is none of that name (the nearest is named), or its manifest is wrong.
        """
        for folder in self.folders if _is_folder_name(name) else ():
            if (folder / name / MANIFEST).is_file():
                return Environment.load(folder / name)
        raise ConfigError(f"there is no environment {name!r:.200}; {nearest(name, self.names())}")


def _is_folder_name(name: str) -> bool:
    """Whether it can name a folder, and is no path to one elsewhere: it may have come over HTTP."""
    fits = 0 < len(name.encode(errors="replace")) < 256 and name not in (".", "..")
    return fits and not set("/\0") & set(name)
