"""Sandbox: what its arguments mean, and which are refused before anything starts."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gymbox import Sandbox, SyncSandbox
from gymbox.environment import Environment
from gymbox.errors import ConfigError, Invalid
from gymbox.providers.process import ProcessProvider
from gymbox.runs.places import Places
from gymbox.sdk.plain_environment import plain_environment

PLACES = Places((), Path("/nowhere"), Path("/nowhere"), "token")


def box(*arguments: Any, **settings: Any) -> Sandbox:
    return Sandbox(*arguments, places=PLACES, **settings)


def test_an_image_is_refused_with_a_controller_and_told_why() -> None:
    with pytest.raises(ConfigError, match="image=, cpus= cannot be given.*only of environments that it knows"):
        box("debian:trixie-slim", controller="http://127.0.0.1:1", environment="counter", cpus=2)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"controller": "http://127.0.0.1:1"}, "controller= needs environment=NAME"),
        ({"controller": "http://127.0.0.1:1", "environment": Path("counter")}, "controller= needs environment=NAME"),
        ({"controller": "localhost:8710", "environment": "counter"}, r"is it http://localhost:8710\?"),
        ({"token": "x"}, "token= is for a controller"),
        ({"environment": "counter", "network": "internal"}, "network= cannot be given with environment="),
        ({"environment": "counter"}, "there is no environment 'counter'"),
        ({"memory": 2}, r"limits.memory: .*did you mean 'memory_mb'"),
        ({"cpus": 0}, "limits.cpus: .*greater than 0"),
        ({"network": "everything"}, "network"),
        ({"image": "Debian Trixie"}, "image.base: "),
        ({"image": 3}, "image.base: "),
    ],
)
def test_what_makes_no_sandbox_is_told_at_once(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        box(**settings)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"provider": "proces"}, "there is no provider 'proces'; did you mean 'process'"),
        ({"provider": None}, "provider"),
        ({"provider": "proces", "controller": "http://127.0.0.1:1", "environment": "counter"}, "no provider"),
        ({"image": "debian:trixie-slim", "provider": "process"}, "debian:trixie-slim: use provider=docker, or leave"),
        ({"network": "models", "provider": "process"}, r"network \(models\), which needs provider=docker, or leave"),
        ({"network": "open", "provider": ProcessProvider()}, "needs provider=docker"),
    ],
)
def test_a_provider_that_can_make_no_such_sandbox_is_told_at_once(settings: dict[str, Any], told: str) -> None:
    for make in (Sandbox, SyncSandbox, partial(Sandbox.pool, size=1), partial(SyncSandbox.pool, size=1)):
        if "controller" not in settings or make in (Sandbox, SyncSandbox):
            with pytest.raises(ConfigError, match=told):
                make(places=PLACES, **settings)


def test_a_provider_to_keep_a_controller_of_is_checked_at_once() -> None:
    for host in (Sandbox.host, SyncSandbox.host):
        with pytest.raises(ConfigError, match="did you mean 'docker'"):
            host("dokcer", places=PLACES)


def test_an_environment_that_needs_containers_is_refused_as_a_process(tmp_path: Path) -> None:
    (tmp_path / "environment.yaml").write_text("description: x\nnetwork: internal\n")
    (tmp_path / "server.py").write_text("")
    with pytest.raises(ConfigError, match=r"asks for a network \(internal\), which needs provider=docker$"):
        box(environment=tmp_path, provider="process")


def test_defaults_for_commands_are_checked_at_once() -> None:
    with pytest.raises(ConfigError, match="timeout: "):
        box(timeout=-1)
    with pytest.raises(ConfigError, match="env"):
        box(env={"A": 1})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"env": [1]}, "env: "),
        ({"env": "A=1"}, "env: "),
        ({"env": {"A=": "x"}}, "'A=' cannot be the name of an environment variable"),
        ({"env": {"": "x"}}, "'' cannot be the name"),
        ({"env": {"A": "x\0"}}, "nul byte"),
        ({"cwd": "a\0"}, "nul byte"),
        ({"cwd": 5}, "cwd: "),
        ({"timeout": "soon"}, "timeout: "),
    ],
)
async def test_what_no_command_can_have_is_told_at_once_and_of_a_command_too(
    settings: dict[str, Any], told: str
) -> None:
    with pytest.raises(ConfigError, match=f"the defaults of commands are wrong: .*\n.*{told}"):
        box(**settings)
    with pytest.raises(Invalid, match=f"the command cannot be run:\n.*{told}"):
        await box().exec("true", **settings)
    with pytest.raises(Invalid, match=f"the command cannot be run:\n.*{told}"):
        box().exec_stream("true", **settings)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"output_limit": -1}, "output_limit: .*greater than or equal to 0"),
        ({"output_limit": -1, "stdin": b"x" * (2 << 20)}, "output_limit: "),
        ({"output_limit": "all"}, "output_limit: "),
        ({"stdin": 5}, "text or bytes, not as int"),
        ({"command": "a\0"}, "nul byte"),
        ({"command": 5}, "command"),
    ],
)
async def test_a_command_that_cannot_be_run_is_invalid(options: dict[str, Any], told: str) -> None:
    with pytest.raises(Invalid, match=told):
        await box().exec(**{"command": "true", **options})


def test_a_wrong_name_of_an_image_is_told_in_words() -> None:
    with pytest.raises(ConfigError) as error:
        box("Debian Trixie")
    assert str(error.value).endswith(
        "image.base: 'Debian Trixie' is not the name of an image: [HOST/]NAME[:TAG][@sha256:DIGEST], such as "
        "debian:trixie-slim, with small letters in NAME"
    )


async def test_a_sandbox_is_used_in_its_block_only() -> None:
    with pytest.raises(RuntimeError, match="inside `async with"):
        await box().exec("true")
    with pytest.raises(RuntimeError, match="inside `with SyncSandbox"):
        SyncSandbox(places=PLACES).exec("true")


@pytest.mark.parametrize(
    ("image", "name"),
    [
        (None, "plain"),
        ("debian:trixie-slim", "debian-trixie-slim"),
        ("host:5000/Team_x/tool:1".lower(), "host-5000-team-x-tool-1"),
        ("busybox@sha256:" + "0" * 64, "busybox"),
        ("a" * 90, "a" * 40),
    ],
)
def test_an_environment_is_named_as_its_image(image: str | None, name: str) -> None:
    assert plain_environment(image, None, {}).name == name


def test_limits_share_an_image_and_images_share_nothing() -> None:
    small, large = (plain_environment("debian:trixie-slim", None, {"cpus": cpus}) for cpus in (1, 2))
    assert small.digest == large.digest and small.manifest.limits.cpus == 1
    assert small.digest != plain_environment("debian:12", None, {}).digest
    assert isinstance(small, Environment) and [path.name for path in small.files()] == ["server.py"]
