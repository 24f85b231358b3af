"""Background: the requests and answers of jobs and shells; apart from `wire`, which every sandbox loads."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from gymbox_sandbox.wire import ExecRequest, ExecResult, Strict

ID_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
"""Of jobs and shells, which callers name."""


class JobRequest(ExecRequest):
    """As for an exec, but that the command outlives the request, and of its output the end is kept."""

    timeout: float = Field(86_400, gt=0, le=86_400)
    """Seconds; then the whole process tree is killed."""
    output_limit: int = Field(1_000_000, ge=0, le=8_000_000)
    """Bytes kept of stdout and stderr together: the last ones. What is dropped is counted. It waits for no reader."""


class JobView(Strict):
    """A command in the background."""

    id: str
    command: str | list[str]
    pid: int
    """0 where it was killed before it ran."""
    status: Literal["running", "ended"]
    started_at: float
    """Unix seconds."""
    terminal: bool
    """It runs on one."""
    output_bytes: int
    """Printed so far: the offset at which output goes on."""
    dropped_bytes: int
    """No longer kept: the offset at which what is kept begins."""
    result: ExecResult | None = None
    """Once it has ended, without its output."""
    problem: dict[str, Any] | None = None
    """Why it could not be followed to its end: its supervisor was killed, by lack of memory for instance."""


class JobOutput(Strict):
    """What a job printed from an offset on, as far as it is kept."""

    offset: int
    """Where this begins: later than was asked for where `dropped_bytes` were dropped in between."""
    next_offset: int
    """Ask for this next."""
    dropped_bytes: int
    stdout: str
    stderr: str
    ended: bool
    """Nothing comes after this."""


class ShellRequest(Strict):
    """A shell to be kept between commands."""

    cwd: str | None = None
    """Default: the workspace."""
    env: dict[str, str] = Field(default_factory=dict)


class ShellView(Strict):
    """A shell; where `ended` says why it is no more, its state is lost."""

    id: str
    pid: int
    busy: bool
    ended: str | None = None


class ShellRun(Strict):
    """A command for a shell. Its input is empty; what it changes in the shell (folder, variables, functions) stays."""

    command: str = Field(max_length=1_000_000)
    timeout: float = Field(60, gt=0, le=86_400)
    """Seconds; then it is interrupted, as by Ctrl-C. If that does not end it, the shell is killed with it."""
    output_limit: int = Field(1_000_000, ge=0, le=8_000_000)
    """As for an exec."""
    encoding: Literal["text", "base64"] = "text"
    request_id: str | None = Field(None, pattern=ID_PATTERN)
    """As for an exec."""


class ShellResult(ExecResult):
    """How a command in a shell ended."""

    state_lost: bool = False
    """The shell has ended with it (`exit`, `exec`, a kill, a timeout that could not be met otherwise)."""
