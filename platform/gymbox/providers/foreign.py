"""Foreign: sandboxes from any Linux image, one that knows nothing of us and may have neither Python nor a shell.

The image is what the agent's commands see: its programs, its variables. The server comes in a volume with all that it
runs on (see `runtime`), mounted read-only, and nothing of the image has a say in how it runs: not the entry point, the
user, the variables, the health check. What the image calls a VOLUME is an empty folder in memory, as /tmp is.
"""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gymbox.environment import Environment
from gymbox.errors import ImageBuildFailed
from gymbox.providers.builds import (
    BASE_ARGUMENT,
    LABEL,
    Build,
    bases_of,
    below,
    files_of,
    image_name,
    own_dockerfile,
    recipe,
    requirements,
    starts_from,
)
from gymbox.providers.container import AGENT_UID, DIRECTORY, PROXY_GID, SERVER_UID, WORKSPACE
from gymbox.providers.runtime import INTERPRETER, RUNTIME, runtime_volume

RUNTIME_LABEL = "gymbox.runtime"
"""On the image of an environment: the image of the runtime that its sandboxes have mounted."""
OWN_LABELS = (LABEL, RUNTIME_LABEL, "gymbox.base-recipe")
"""Labels of ours that an image may have. The others are read on containers, which inherit an image's labels."""
BASE_ARGUMENT_ONLY = f"FROM {BASE_ARGUMENT[0]}"
OURS = "/opt/gymbox"
VARIABLES = f"{OURS}/variables"
"""The image's variables, as its commands get them: NAME=VALUE, each ended by a nul byte."""
SERVER_VARIABLES = (
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LC_ALL=C",  # for Python that is UTF-8, too, and no locale of the image is read
    "OPENSSL_CONF=/dev/null",  # it can name libraries to load
)
ACCOUNTS = {
    "passwd": (
        f"agent:x:{AGENT_UID}:{AGENT_UID}::/home/agent:/bin/sh",
        f"gymbox-server:x:{SERVER_UID}:{SERVER_UID}::/nonexistent:/sbin/nologin",
    ),
    "group": (f"agent:x:{AGENT_UID}:", f"gymbox-server:x:{SERVER_UID}:", f"gymbox-proxy:x:{PROXY_GID}:"),
}
"""Lines for /etc, for programs that want a name of who runs them."""


@dataclass(frozen=True, slots=True)
class Foreign:
    """What a container of an image needs that is not built on our own runtime's image."""

    runtime: str
    """The runtime's image."""
    variables: tuple[str, ...]
    """Names of the image's own."""
    volumes: tuple[str, ...]
    """Paths that the image declares as such."""

    @classmethod
    def of(cls, inspected: Mapping[str, Any]) -> Foreign | None:
        """Of an image as the engine tells of it; None if it is built on our runtime's image."""
        config = inspected["Config"] or {}
        runtime = (config.get("Labels") or {}).get(RUNTIME_LABEL)
        if runtime is None:
            return None
        names = tuple(variable.partition("=")[0] for variable in config.get("Env") or ())
        return cls(runtime, names, tuple(config.get("Volumes") or ()))

    def fitted(self, config: dict[str, Any]) -> dict[str, Any]:
        """The body of `POST /containers/create`, made for our own image, for one of this image."""
        host = config["HostConfig"]
        mounted = {mount["Target"] for mount in host.get("Mounts", ())}
        volumes = [path for path in map(_plain, self.volumes) if path not in mounted]
        given = [variable.partition("=")[0] for variable in (*SERVER_VARIABLES, *config["Env"])]
        return {
            **config,
            "Entrypoint": [INTERPRETER, *config["Entrypoint"][1:], "--variables", VARIABLES],
            # a name without a value takes the image's variable away: LD_PRELOAD would be loaded into the server
            "Env": [*(name for name in self.variables if name not in given), *SERVER_VARIABLES, *config["Env"]],
            # it would run as the container's user, who is root
            "Healthcheck": {"Test": ["NONE"]},
            "HostConfig": {
                **host,
                "Mounts": [*host.get("Mounts", ()), self._mount()],
                # else each volume would be a folder without a limit on the machine's disk
                "Tmpfs": {**dict.fromkeys(volumes, host["Tmpfs"]["/tmp"]), **host["Tmpfs"]},
            },
        }

    def _mount(self) -> dict[str, Any]:
        return {
            "Type": "volume",
            "Source": runtime_volume(self.runtime),
            "Target": RUNTIME,
            "ReadOnly": True,
            "VolumeOptions": {"NoCopy": True},
        }


def is_foreign(environment: Environment) -> bool:
    """Whether its image is not built on our runtime's.

    Raises:
        ImageBuildFailed: its own Dockerfile is missing.
    """
    if environment.manifest.image.base is not None:
        return True
    dockerfile = own_dockerfile(environment)
    return dockerfile is not None and starts_from(dockerfile) not in BASE_ARGUMENT


def bases_in_registries(environment: Environment) -> list[str]:
    """The images that are pulled for it where they are missing; the last is what its own is based on.

    Raises:
        ImageBuildFailed: its own Dockerfile is missing.
    """
    dockerfile, base = own_dockerfile(environment), environment.manifest.image.base
    bases = [base if each in BASE_ARGUMENT else each for each in bases_of(dockerfile or BASE_ARGUMENT_ONLY)]
    # what else a Dockerfile has arguments for is the engine's to find out
    return [each for each in bases if each is not None and "$" not in each and each.lower() != "scratch"]


def foreign_builds(environment: Environment, runtime: str, base_id: str) -> list[Build]:
    """What makes its image, the last one being it: its Dockerfile, packages, requirements, files.

    Args:
        runtime: the runtime's image.
        base_id: ids of what it is based on.

    Raises:
        ImageBuildFailed: its own Dockerfile is missing, or has no use for the manifest's base.
    """
    name, image = image_name(environment), environment.manifest.image
    base, packages = image.base, runtime
    builds: list[Build] = []
    dockerfile = own_dockerfile(environment)
    if dockerfile is not None:
        if base is not None and starts_from(dockerfile) not in BASE_ARGUMENT:
            raise ImageBuildFailed(
                f"{environment.name}: {image.dockerfile} starts from {starts_from(dockerfile) or 'nothing'}, so there "
                f"is no use for image.base: leave it out, or write `ARG BASE_IMAGE` and `FROM ${{BASE_IMAGE}}`"
            )
        arguments = {"BASE_IMAGE": base} if base is not None else {}
        builds.append(Build(f"{name}-base", _on(base_id, dockerfile), files_of(environment), arguments))
        base = builds[-1].tag
    assert base is not None
    if image.packages:
        arguments = {"BASE_IMAGE": base, "PACKAGES": " ".join(image.packages)}
        apt = _on(base_id, recipe("foreign-apt.Dockerfile").read_text())
        builds.append(Build(f"{name}-apt", apt, {}, arguments, base_for="packages"))
        base = builds[-1].tag
    if image.pip:
        content = {"requirements.txt": requirements(image.pip)}
        pip = recipe("foreign-pip.Dockerfile").read_text()
        builds.append(Build(f"{name}-pip", pip, content, {"BASE_IMAGE": runtime}))
        packages = builds[-1].tag
    last = _on(base_id, recipe("foreign.Dockerfile").read_text())
    context = below("files", files_of(environment))
    arguments = {"BASE_IMAGE": base, "PACKAGES_IMAGE": packages}
    return [*builds, Build(name, last, context, arguments, {RUNTIME_LABEL: runtime}, "sandboxes")]


def _on(base_id: str, dockerfile: str) -> str:
    # the id is no argument of the Dockerfile, but a new base must make a new image
    return f"{dockerfile}\n# base: {base_id}\n"


def fault_of(inspected: Mapping[str, Any], architecture: str) -> str | None:
    """Why no sandbox can have an image as the engine tells of it; None if one can."""
    config = inspected["Config"] or {}
    system = f"{inspected['Os']}/{inspected['Architecture']}"
    if system != f"linux/{architecture}":
        return f"it is made for {system}, and this engine runs linux/{architecture}"
    labels = [name for name in config.get("Labels") or {} if name.startswith("gymbox.") and name not in OWN_LABELS]
    if labels:
        return f"its label {labels[0]} is one of gymbox's own"
    if config.get("OnBuild"):
        return "it has ONBUILD steps, which would run while the sandbox's image is made"
    for path in config.get("Volumes") or ():
        if is_in_the_way(path):
            return f"it declares the VOLUME {path}, which is in the way of what a sandbox has mounted"
    return None


def is_in_the_way(path: str) -> bool:
    """Whether a volume at `path` would hide the server, its sockets, or a folder in which one of ours is mounted."""
    plain = _plain(path)
    inside = any(f"{plain}/".startswith(f"{ours}/") for ours in (OURS, DIRECTORY))
    above = any(ours.startswith(f"{plain.rstrip('/')}/") for ours in (OURS, DIRECTORY, WORKSPACE, "/home/agent"))
    return inside or above


def _plain(path: str) -> str:
    return posixpath.normpath(f"/{path.lstrip('/')}")


def with_accounts(name: str, content: bytes) -> bytes:
    """/etc/passwd or /etc/group of an image, with our users in it where their numbers and names are not taken."""
    lines = content.decode(errors="surrogateescape").splitlines()
    fields = [line.split(":") for line in lines]
    names, numbers = {each[0] for each in fields}, {each[2] for each in fields if len(each) > 2}
    if not lines:
        lines = ["root:x:0:0:root:/root:/bin/sh" if name == "passwd" else "root:x:0:"]
    for ours in ACCOUNTS[name]:
        own, _, number, *_ = ours.split(":")
        if number not in numbers:
            lines.append(f"gymbox-{ours}" if own in names else ours)
    return "".join(f"{line}\n" for line in lines).encode(errors="surrogateescape")


def packed(variables: Sequence[str]) -> bytes:
    """An image's variables as VARIABLES has them."""
    return b"".join(variable.encode(errors="surrogateescape") + b"\0" for variable in variables if "=" in variable)
