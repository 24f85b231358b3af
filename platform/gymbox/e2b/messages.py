"""Messages: what E2B's SDK sends, as far as it is read here; fields that are not known are left alone.

RPCs have the JSON of protocol buffers: names in camelCase, bytes in base64, and a field left out where it has its
default. Their schemas are `process.Process` and `filesystem.Filesystem`.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any

from gymbox_sandbox.problems import faults
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from gymbox.errors import Invalid

LONGEST_LIFE = 86_400
"""Seconds that a sandbox may be given at once."""
Seconds = Annotated[int, Field(ge=0, le=LONGEST_LIFE)]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, alias_generator=to_camel)


# --- REST


class NewSandbox(_Message):
    """`POST /v2/sandboxes`."""

    template_id: Annotated[str, Field(alias="templateID", max_length=200)]
    timeout: Annotated[int, Field(ge=1, le=LONGEST_LIFE)] = 300
    metadata: dict[str, str] = {}
    env_vars: dict[str, str] = {}
    allow_internet_access: Annotated[bool | None, Field(alias="allow_internet_access")] = None
    auto_pause: bool = False
    auto_resume: dict[str, Any] = {}
    network: dict[str, Any] | None = None
    mcp: dict[str, Any] | None = None
    iam: dict[str, Any] | None = None
    volume_mounts: list[Any] = []


class Life(_Message):
    """`POST /sandboxes/{id}/timeout`."""

    timeout: Seconds


class Refresh(_Message):
    """`POST /sandboxes/{id}/refreshes`."""

    duration: Seconds = 15


class Connection(_Message):
    """`POST /v2/sandboxes/{id}/connect`."""

    timeout: Seconds | None = None
    memory: bool = True


class Pausing(_Message):
    """`POST /sandboxes/{id}/pause`."""

    memory: bool = True


class Snapshotting(_Message):
    """`POST /sandboxes/{id}/snapshots`."""

    name: str | None = None
    memory: bool | None = None


class Forking(_Message):
    """`POST /sandboxes/{id}/fork`."""

    timeout: Annotated[int, Field(ge=1, le=LONGEST_LIFE)] = 300
    count: Annotated[int, Field(ge=1, le=64)] = 1


# --- process.Process


class Size(_Message):
    cols: Annotated[int, Field(ge=1, le=1000)]
    rows: Annotated[int, Field(ge=1, le=1000)]


class Terminal(_Message):
    size: Size


class ProcessConfig(_Message):
    cmd: Annotated[str, Field(min_length=1)]
    args: list[str] = []
    envs: dict[str, str] = {}
    cwd: str | None = None


class StartRequest(_Message):
    process: ProcessConfig
    pty: Terminal | None = None
    tag: str | None = None
    stdin: bool = True


class Selector(_Message):
    """Which process: one of the two."""

    pid: int | None = None
    tag: str | None = None


class Selected(_Message):
    """`Connect` and `CloseStdin`."""

    process: Selector


def _decoded(value: Any) -> Any:
    return base64.b64decode(value, validate=True) if isinstance(value, str) else value


Bytes = Annotated[bytes, BeforeValidator(_decoded)]


class Input(_Message):
    """One of the two."""

    stdin: Bytes | None = None
    pty: Bytes | None = None


class SendInputRequest(Selected):
    input: Input


class SendSignalRequest(Selected):
    signal: str | int = "SIGNAL_UNSPECIFIED"


class UpdateRequest(Selected):
    pty: Terminal | None = None


class InputData(_Message):
    input: Input


class StreamInputRequest(_Message):
    """One of the three."""

    start: Selected | None = None
    data: InputData | None = None
    keepalive: dict[str, Any] | None = None


# --- filesystem.Filesystem


class PathRequest(_Message):
    """`Stat`, `MakeDir`, `Remove`."""

    path: str = ""


class ListDirRequest(PathRequest):
    depth: Annotated[int, Field(ge=0)] = 0


class MoveRequest(_Message):
    source: str = ""
    destination: str = ""


class WatchRequest(PathRequest):
    """`WatchDir` and `CreateWatcher`."""

    recursive: bool = False
    include_entry: bool = False


class WatcherRequest(_Message):
    """`GetWatcherEvents` and `RemoveWatcher`."""

    watcher_id: str = ""


def read[Message: BaseModel](kind: type[Message], body: bytes) -> Message:
    """The message, of an RPC or a REST call.

    Raises:
        Invalid: it is none.
    """
    try:
        return kind.model_validate_json(body or b"{}")
    except ValidationError as error:
        raise Invalid(f"the message is wrong: {faults(error)}") from error
