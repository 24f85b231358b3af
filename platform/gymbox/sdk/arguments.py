"""Arguments: what a Sandbox and its commands are given, checked before anything starts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gymbox_sandbox.spawn import Spawn
from gymbox_sandbox.wire import ExecRequest

from gymbox.errors import ConfigError, Invalid

Content = str | bytes


def as_bytes(content: Content | None) -> bytes:
    """
    Raises:
        Invalid: it is neither text nor bytes.
    """
    if isinstance(content, str):
        return content.encode()
    if content is not None and not isinstance(content, bytes | bytearray | memoryview):
        raise Invalid(f"content is given as text or bytes, not as {type(content).__name__}")
    return bytes(content or b"")


def unfit(request: ExecRequest) -> str:
    """Why no process can be started like that."""
    words = [request.command] if isinstance(request.command, str) else request.command
    try:
        Spawn(words, cwd=request.cwd or "", env=request.env, timeout=request.timeout).to_bytes()
    except ValueError as error:
        return str(error)
    return ""


def given_of(image: str | None, network: Any, limits: Mapping[str, Any]) -> str:
    """Names of the arguments that say how a sandbox is made."""
    named = {"image": image, "network": network, **limits}
    return ", ".join(f"{name}=" for name, value in named.items() if value is not None)


def known_to_controller(image: Any, environment: Any, network: Any, limits: Mapping[str, Any]) -> str:
    """The name of the environment to ask a controller for.

    Raises:
        ConfigError: it is asked for what it takes from nobody.
    """
    if given := given_of(image, network, limits):
        raise ConfigError(
            f"{given} cannot be given with controller=: a controller makes sandboxes only of environments that it "
            "knows, so that no caller chooses what runs on its machine. Give environment=NAME, or leave controller= "
            "out to have one in this process"
        )
    if not isinstance(environment, str):
        raise ConfigError("controller= needs environment=NAME, the name of an environment that the controller knows")
    return environment
