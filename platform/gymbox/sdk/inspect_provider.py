"""Inspect provider: sandboxes of gymbox for evaluations by Inspect (`inspect_ai`), as its sandbox type `gymbox`.

    Task(..., sandbox="gymbox")                                     # Debian with Python, or what gymbox.yaml says
    Task(..., sandbox=("gymbox", "alpine.yaml"))                    # a file with the fields of GymboxConfig
    Task(..., sandbox=SandboxEnvironmentSpec("gymbox", GymboxConfig(image="debian:trixie-slim")))

Inspect finds this module by the entry point `gymbox` of the group `inspect_ai`.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path
from typing import Any, Literal, overload

import yaml
from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gymbox.environment import explain
from gymbox.errors import ConfigError, Conflict, Forbidden, Invalid, NotFound, Problem, SandboxEnded, TimedOut
from gymbox.sdk.sandbox import Sandbox

LONGEST = 86_400.0
"""Seconds that a command may take for which Inspect gives no time."""
AGENTS = (None, "agent", "10001")
"""The users as whom commands run; a sandbox has no other."""


class GymboxConfig(BaseModel):
    """What the sandboxes of a task or a sample are; the fields are arguments of `gymbox.Sandbox`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    image: str | None = None
    """Any Linux image; None: Debian with Python."""
    environment: str | None = None
    """An environment of gymbox, in the place of an image."""
    provider: str = "auto"
    """`docker`, `process` or `auto`."""
    controller: str | None = None
    """Address of a running controller, which knows `environment`."""
    cwd: str | None = None
    """Where commands run; default: the workspace."""
    env: dict[str, str] = Field(default_factory=dict)
    """Variables of every command."""
    network: Any = None
    """As `network` of environment.yaml; default: none."""
    limits: dict[str, float] = Field(default_factory=dict)
    """As `limits` of environment.yaml: cpus, memory_mb, …"""

    def __hash__(self) -> int:
        return hash(self.model_dump_json())  # Inspect starts a task's sandboxes once for each config

    def sandbox(self) -> Sandbox:
        """
        Raises:
            ConfigError: these make no sandbox.
        """
        fields = self.model_dump()
        return Sandbox(**{**fields.pop("limits"), **fields})


@sandboxenv(name="gymbox")
class GymboxSandboxEnvironment(SandboxEnvironment):  # type: ignore[misc]
    """One sandbox of a sample."""

    _hosts: dict[BaseModel | str | None, list[AbstractAsyncContextManager[Any]]] = {}
    """What keeps a controller for samples, by their config: the names of a start and of its end differ."""

    def __init__(self, box: Sandbox) -> None:
        super().__init__()
        self.box = box

    @classmethod
    async def task_init(cls, task_name: str, config: BaseModel | str | None) -> None:
        """Start the controller that the samples share, so that what is wrong with it is said before the first."""
        chosen = _config(config)
        chosen.sandbox()
        if chosen.controller is None:
            host = Sandbox.host(chosen.provider)
            await host.__aenter__()
            cls._hosts.setdefault(config, []).append(host)

    @classmethod
    async def task_cleanup(cls, task_name: str, config: BaseModel | str | None, cleanup: bool) -> None:
        """End it. Its sandboxes end with it also where Inspect was told to keep them: they never outlive a process."""
        if hosts := cls._hosts.get(config):
            await hosts.pop().__aexit__(None, None, None)

    @classmethod
    async def sample_init(
        cls, task_name: str, config: BaseModel | str | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        """A sandbox for a sample, by the name `default`."""
        box = _config(config).sandbox()
        return {"default": cls(await box.__aenter__())}

    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: BaseModel | str | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        """Remove it."""
        for environment in environments.values():
            await environment.as_type(cls).box.__aexit__()

    @classmethod
    def config_files(cls) -> list[str]:
        """What is taken from a task's folder where nothing else is said."""
        return ["gymbox.yaml"]

    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        """A GymboxConfig that was written to a log."""
        return GymboxConfig(**config)

    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """See SandboxEnvironment. Nothing is tried again: no command is lost on its way, and whether it may run twice
        only its author knows.

        Raises:
            SandboxUserUnsupportedError: the user is not the agent's.
            TimeoutError: it did not end within `timeout` seconds, or the sandbox does not answer in time.
            PermissionError: the program may not be run.
            OutputLimitExceededError: it printed more than Inspect takes; has what was kept of its output.
            SandboxUnavailableError: the sandbox has ended.
            Problem: the command is none, or the sandbox cannot be reached.
        """
        if user not in AGENTS:
            raise SandboxUserUnsupportedError(f"commands run as the user agent only, not as {user!r}")
        most = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        with _told(cmd[0] if cmd else ""):
            result = await self.box.exec(
                cmd, stdin=input, cwd=cwd, env=env, timeout=LONGEST if timeout is None else timeout, output_limit=most
            )
        if result.timed_out:
            raise TimeoutError(f"the command did not end within {timeout} s")
        if result.exit_code == 126 and "permission denied" in result.stderr.lower():
            raise PermissionError(errno.EACCES, result.stderr.strip())
        if result.truncated:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.stdout)
        code = result.exit_code if result.exit_code is not None else 128 + (result.signal or 0)
        return ExecResult(success=code == 0, returncode=code, stdout=result.stdout, stderr=result.stderr)

    async def write_file(self, file: str, contents: str | bytes) -> None:
        """See SandboxEnvironment."""
        with _told(file):
            await self.box.write_file(file, contents)

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        """See SandboxEnvironment."""
        with _told(file):
            content = await self.box.read_file(file, most=SandboxEnvironmentLimits.MAX_READ_FILE_SIZE)
        return content.decode() if text else content

    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """How to open a shell in it, while it lives.

        Raises:
            SandboxUserUnsupportedError: the user is not the agent's.
        """
        if user not in AGENTS:
            raise SandboxUserUnsupportedError(f"a sandbox of gymbox has no shell for {user!r}")
        command = f"gymbox sandbox shell {self.box.id} --controller {self.box.controller_url}"
        return SandboxConnection(type="gymbox", command=command)

    def default_polling_interval(self) -> float:
        """Seconds between looks at a service in the sandbox, which cost milliseconds."""
        return 0.2


def _config(given: BaseModel | str | None) -> GymboxConfig:
    """What Inspect hands on: a config of ours, the path of a file with one, or nothing.

    Raises:
        ConfigError: it is none of these.
    """
    if isinstance(given, GymboxConfig):
        return given
    if isinstance(given, BaseModel):
        raise ConfigError(
            f"the sandbox type gymbox takes a GymboxConfig or a file with one, no {type(given).__name__}"
        )
    if given is None:
        return GymboxConfig()
    try:
        return GymboxConfig.model_validate(yaml.safe_load(Path(given).read_text()) or {})
    except FileNotFoundError:
        raise ConfigError(
            f'there is no file {given}: the text beside "gymbox" names one with the fields of GymboxConfig; '
            'an image is named by SandboxEnvironmentSpec("gymbox", GymboxConfig(image="…"))'
        ) from None
    except ValidationError as error:
        raise ConfigError(f"{given} is wrong:\n{explain(error, list(GymboxConfig.model_fields))}") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{given} cannot be read: {error}") from error


@contextmanager
def _told(what: str) -> Iterator[None]:
    """What went wrong, as Inspect's own exceptions.

    Args:
        what: the file or program that it is about.
    """
    try:
        yield
    except SandboxEnded as error:
        raise SandboxUnavailableError(str(error)) from error
    except TimedOut as error:
        raise TimeoutError(str(error)) from error
    except NotFound as error:
        raise FileNotFoundError(errno.ENOENT, error.detail, what) from error
    except Forbidden as error:
        raise PermissionError(errno.EACCES, error.detail, what) from error
    except Invalid as error:
        if error.extra.get("cause") == "directory":
            raise IsADirectoryError(errno.EISDIR, "it is a directory", what) from error
        if error.extra.get("cause") == "too_large":
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
        raise
    except Conflict as error:
        if error.extra.get("cause") == "disk_full":
            raise OSError(errno.ENOSPC, error.detail, what) from error
        raise
    except Problem as error:
        raise SandboxUnavailableError(str(error)) from error
