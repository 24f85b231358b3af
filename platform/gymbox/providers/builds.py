"""Builds: what images are made of. Pure: nothing here talks to an engine."""

from __future__ import annotations

import hashlib
import io
import re
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import gymbox_sandbox

from gymbox.environment import Environment
from gymbox.errors import ImageBuildFailed

PACKAGE = Path(__file__).parents[1]
RECIPES = (PACKAGE / "dockerfiles", PACKAGE.parents[1] / "dockerfiles", PACKAGE.parents[1] / "sandboxes")
"""Where Dockerfiles and the runtime's lock file are: in an installed package, in a checkout."""
LABEL = "gymbox.image"
"""Every image that is built here has it, with the name of what was built, and so has every volume."""
BASE_ARGUMENT = ("$BASE_IMAGE", "${BASE_IMAGE}")
"""What a Dockerfile of an environment starts from that is built on what the manifest says."""
STAGE = re.compile(r"^[ \t]*FROM[ \t]+(?:--\S+[ \t]+)*(\S+)(?:[ \t]+AS[ \t]+(\S+))?", re.IGNORECASE | re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Build:
    """One image to build: everything that decides its content, and so its tag."""

    name: str
    dockerfile: str
    files: Mapping[str, bytes]
    """The build context, by path."""
    arguments: Mapping[str, str] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    """What the image is labelled with, beside its name."""
    base_for: Literal["packages", "sandboxes"] | None = None
    """What its base, which knows nothing of us, must be fit for."""
    follows: Mapping[str, bytes] = field(default_factory=dict)
    """More of the context, which follows from the base alone and so has no part in the tag."""

    @property
    def tag(self) -> str:
        """`name:digest`; the same content has the same tag on every machine."""
        sha = hashlib.sha256(self.dockerfile.encode())
        for name, value in sorted(self.arguments.items()):
            sha.update(f"\0{name}={value}".encode())
        for name, value in sorted(self.labels.items()):
            sha.update(f"\0\0{name}={value}".encode())
        for path, content in sorted(self.files.items()):
            sha.update(f"\0{path}\0{len(content)}\0".encode() + content)
        return f"{self.name}:{sha.hexdigest()[:16]}"

    def context(self) -> io.BytesIO:
        """The context as a tar, the same bytes each time, so that the engine's build cache holds."""
        contents = {**self.files, **self.follows, "Dockerfile": self.dockerfile.encode()}
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for path, content in sorted(contents.items()):
                entry = tarfile.TarInfo(path)
                entry.size = len(content)
                entry.mode = 0o755 if content.startswith(b"#!") else 0o644
                tar.addfile(entry, io.BytesIO(content))
        buffer.seek(0)
        return buffer


def recipe(name: str) -> Path:
    """A Dockerfile, or what goes with one."""
    return next(folder / name for folder in RECIPES if (folder / name).is_file())


def sandbox_side() -> dict[str, bytes]:
    """The in-sandbox server and the lock file of what it needs, by their paths in a context."""
    package = Path(gymbox_sandbox.__file__).parent
    sources = (path for path in sorted(package.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    files = {f"gymbox_sandbox/{path.relative_to(package)}": path.read_bytes() for path in sources}
    return {**files, "requirements.lock": recipe("requirements.lock").read_bytes()}


def runtime_build(base: str, base_id: str, arguments: Mapping[str, str]) -> Build:
    """The image that every sandbox starts from: `base` and the in-sandbox server."""
    # the id is no argument of the Dockerfile, but a new base must make a new image
    dockerfile = f"{recipe('sandbox.Dockerfile').read_text()}\n# base: {base_id}\n"
    return Build("gymbox-sandbox", dockerfile, sandbox_side(), {"BASE_IMAGE": base, **arguments})


def environment_builds(environment: Environment, runtime: str) -> list[Build]:
    """What the environment adds to the runtime: its own Dockerfile, where it has one, then its files.

    Raises:
        ImageBuildFailed: its own Dockerfile is missing.
    """
    name, image, builds = image_name(environment), environment.manifest.image, []
    if (content := own_dockerfile(environment)) is not None:
        builds.append(Build(f"{name}-base", content, files_of(environment), {"BASE_IMAGE": runtime}))
        runtime = builds[-1].tag
    context = {**below("files", files_of(environment)), "requirements.txt": requirements(image.pip)}
    arguments = {"BASE_IMAGE": runtime, "PACKAGES": " ".join(image.packages)}
    return [*builds, Build(name, recipe("environment.Dockerfile").read_text(), context, arguments)]


def image_name(environment: Environment) -> str:
    """What its image is called; any name of an environment makes a legal one."""
    return f"gymbox-env-{plain_name(environment.name)}"


def files_of(environment: Environment) -> dict[str, bytes]:
    """What of its folder goes into an image, by path."""
    return {str(path.relative_to(environment.folder)): path.read_bytes() for path in environment.files()}


def below(folder: str, files: Mapping[str, bytes]) -> dict[str, bytes]:
    return {f"{folder}/{path}": content for path, content in files.items()}


def requirements(pip: Iterable[str]) -> bytes:
    """The content of a requirements.txt."""
    return "".join(f"{requirement}\n" for requirement in pip).encode()


def own_dockerfile(environment: Environment) -> str | None:
    """What is in the Dockerfile that its manifest names; None if it names none.

    Raises:
        ImageBuildFailed: there is no such file, or it is no text.
    """
    named = environment.manifest.image.dockerfile
    if named is None:
        return None
    path = environment.folder / named
    if path not in environment.files():
        raise ImageBuildFailed(f"{environment.name}: there is no {named} in {environment.folder}")
    try:
        return path.read_text()
    except UnicodeDecodeError as error:
        raise ImageBuildFailed(f"{path} is no Dockerfile: {error}") from error


def bases_of(dockerfile: str) -> list[str]:
    """What each stage of a Dockerfile is based on, in turn, through the names of other stages."""
    stages: dict[str, str] = {}
    bases = []
    for image, name in STAGE.findall(dockerfile):
        bases.append(stages.get(image.lower(), image))
        if name:
            stages[name.lower()] = bases[-1]
    return bases


def starts_from(dockerfile: str) -> str:
    """What the last stage of a Dockerfile is based on; `""` if it has no stage."""
    return next(reversed(bases_of(dockerfile)), "")


def service_build(environment: Environment, name: str, base: str, base_id: str) -> Build:
    """The image of a service that has a folder of its own."""
    service = environment.manifest.services[name]
    folder = environment.folder / str(service.build)
    files = {str(path.relative_to(folder)): path.read_bytes() for path in environment.service_files(service)}
    dockerfile = files["Dockerfile"].decode()
    if re.search(r"\$\{?BASE_IMAGE\b", dockerfile):
        dockerfile = f"{dockerfile}\n# base: {base_id}\n"
    return Build(f"gymbox-service-{plain_name(environment.name)}-{name}", dockerfile, files, {"BASE_IMAGE": base})


def plain_name(name: str) -> str:
    """What of a name an image may be called by."""
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")
