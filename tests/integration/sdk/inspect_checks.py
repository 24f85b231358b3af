"""Inspect's own checks of a provider of sandboxes, and ours; PROVIDER and IMAGE say which. Run by Inspect's tests."""

from __future__ import annotations

import errno
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from gymbox.cli.places import here
from gymbox.client import ControllerClient
from gymbox.errors import ConfigError
from gymbox.http import HttpClient
from gymbox.sdk.inspect_provider import GymboxConfig, GymboxSandboxEnvironment, _config
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
)
from inspect_ai.util._sandbox.limits import override_max_exec_output_size
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

CONFIG = GymboxConfig(
    image=os.environ.get("IMAGE") or None, provider=os.environ["PROVIDER"], limits={"workspace_mb": 90}
)
IMPOSSIBLE = {"test_exec_as_user"}
"""Nothing in a sandbox of gymbox is ever root's to run."""
Box = GymboxSandboxEnvironment


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def environment() -> AsyncIterator[Any]:
    await Box.task_init("startup", CONFIG)
    found = await Box.sample_init("checks", CONFIG, {})
    yield found["default"]
    await Box.sample_cleanup("checks", CONFIG, found, False)
    await Box.task_cleanup("shutdown", CONFIG, True)
    await Box.task_cleanup("shutdown", CONFIG, True)  # a second time is fine
    assert not Box._hosts[CONFIG]


@pytest.fixture
def sandbox_env(environment: Any, request: pytest.FixtureRequest) -> Any:
    if request.node.originalname in IMPOSSIBLE:
        request.node.add_marker(pytest.mark.xfail(strict=True, raises=SandboxUserUnsupportedError))
    return environment


async def test_output_beyond_the_limit_is_told(sandbox_env: Any) -> None:
    with override_max_exec_output_size(1000), pytest.raises(OutputLimitExceededError):
        await sandbox_env.exec(["head", "-c", "2000", "/dev/zero"])
    assert len((await sandbox_env.exec(["head", "-c", "9000000", "/dev/zero"])).stdout) == 9_000_000


async def test_what_the_agent_may_not_be_is_refused(sandbox_env: Any) -> None:
    assert (await sandbox_env.exec(["true"], user="agent")).success
    with pytest.raises(SandboxUserUnsupportedError):
        await sandbox_env.connection(user="root")


async def test_a_command_that_cannot_be_started_is_told(sandbox_env: Any) -> None:
    assert (await sandbox_env.exec(["no-such-program"])).returncode == 127
    with pytest.raises(Exception, match="nowhere"):
        await sandbox_env.exec(["true"], cwd="nowhere")


async def test_a_sandbox_that_has_ended_is_unavailable(environment: Any) -> None:
    found = await Box.sample_init("checks", CONFIG, {})
    box = found["default"].box
    async with HttpClient() as http:
        await ControllerClient(box.controller_url, here().token, http).delete(box.id)
    with pytest.raises(SandboxUnavailableError):
        await found["default"].exec(["true"])
    await Box.sample_cleanup("checks", CONFIG, found, True)


async def test_a_full_disk_is_told(sandbox_env: Any) -> None:
    if CONFIG.provider == "docker":
        with pytest.raises(OSError, match="No space left") as full:
            await sandbox_env.write_file("large", b"x" * (100 << 20))
        assert full.value.errno == errno.ENOSPC


def test_a_config_is_a_model_or_a_file(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text("image: debian:trixie-slim\nlimits: {cpus: 2}\n")
    assert _config(str(tmp_path / "own.yaml")).limits == {"cpus": 2}
    assert Box.config_files() == ["gymbox.yaml"] and Box.config_deserialize({"image": "a"}) == GymboxConfig(image="a")
    for text, told in (("imag: x", "did you mean 'image'"), ("{", "cannot be read")):
        (tmp_path / "own.yaml").write_text(text)
        with pytest.raises(ConfigError, match=told):
            _config(str(tmp_path / "own.yaml"))
    with pytest.raises(ConfigError, match="an image is named by"):
        _config("debian:trixie-slim")
    with pytest.raises(ConfigError, match="takes a GymboxConfig"):
        _config(SandboxEnvironmentSpec("local"))
