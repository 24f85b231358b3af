"""Foreign base: what is looked at in any Linux image before an environment's image is made on it."""

from __future__ import annotations

from typing import Any

from gymbox.errors import ImageBuildFailed
from gymbox.providers.builds import below
from gymbox.providers.foreign import ACCOUNTS, OURS, VARIABLES, fault_of, is_in_the_way, packed, with_accounts
from gymbox.providers.probe import Probe


def what_follows(engine: Any, image: str) -> dict[str, bytes]:
    """What foreign.Dockerfile wants to know of its base, by path in the context.

    Raises:
        ImageBuildFailed: no sandbox can have this image; it says why.
    """
    inspected = engine.inspect_image(image)
    config = inspected["Config"] or {}
    fault = fault_of(inspected, engine.version()["Arch"])
    if fault is None:
        with Probe.of(engine, image) as probe:
            fault = _fault_inside(probe, list(config.get("Volumes") or ()))
            follows = {f"etc/{name}": _accounts(probe, name) for name in ACCOUNTS if not probe.link_at(f"/etc/{name}")}
    if fault is not None:
        raise ImageBuildFailed(f"{image} cannot be the image of a sandbox: {fault}")
    return below("follows", {**follows, VARIABLES.lstrip("/"): packed(config.get("Env") or ())})


def refuse_without_apt(engine: Any, image: str) -> None:
    """
    Raises:
        ImageBuildFailed: an image has no apt to install packages by.
    """
    with Probe.of(engine, image) as probe:
        if not probe.has("/usr/bin/apt-get"):
            raise ImageBuildFailed(
                f"image.packages are installed by apt-get, which {image} does not have: install them in a Dockerfile "
                "(image.dockerfile), by what that image has"
            )


def _accounts(probe: Probe, name: str) -> bytes:
    path = f"/etc/{name}"
    return with_accounts(name, probe.read(path) or b"")


def _fault_inside(probe: Probe, volumes: list[str]) -> str | None:
    """Whether the server's folder, or a link that leads there, comes with the image: what is mounted over it could
    then replace the server."""
    for volume in volumes:
        parts = volume.strip("/").split("/")
        for length in range(1, len(parts) + 1):
            target = probe.link_at("/" + "/".join(parts[:length]))
            if target and is_in_the_way("/".join([target, *parts[length:]])):
                return f"its VOLUME {volume} leads to {target}"
    if probe.link_at("/opt"):
        return "its /opt is a link"
    return f"it has a {OURS} of its own" if probe.has(OURS) else None
