"""Images: what sandboxes run from, built once for each content and never for the same content twice."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import io
import os
import re
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gymbox_sandbox
from docker import APIClient
from docker.errors import APIError, NotFound
from docker.errors import ImageNotFound as NoSuchImage
from urllib3.exceptions import ReadTimeoutError

from gymbox.environment import Environment
from gymbox.errors import ImageBuildFailed, by_this_python

PACKAGE = Path(__file__).parents[1]
RECIPES = (PACKAGE / "dockerfiles", PACKAGE.parents[1] / "dockerfiles", PACKAGE.parents[1] / "sandboxes")
"""Where Dockerfiles and the runtime's lock file are: in an installed package, in a checkout."""
LOG_LINES = 60
LABEL = "gymbox.image"


@dataclass(frozen=True, slots=True)
class Build:
    """One image to build: everything that decides its content, and so its tag."""

    name: str
    dockerfile: str
    files: Mapping[str, bytes]
    """The build context, by path."""
    arguments: Mapping[str, str] = field(default_factory=dict)

    @property
    def tag(self) -> str:
        """`name:digest`; the same content has the same tag on every machine."""
        sha = hashlib.sha256(self.dockerfile.encode())
        for name, value in sorted(self.arguments.items()):
            sha.update(f"\0{name}={value}".encode())
        for path, content in sorted(self.files.items()):
            sha.update(f"\0{path}\0{len(content)}\0".encode() + content)
        return f"{self.name}:{sha.hexdigest()[:16]}"

    def context(self) -> io.BytesIO:
        """The context as a tar, the same bytes each time, so that the engine's build cache holds."""
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for path, content in sorted({**self.files, "Dockerfile": self.dockerfile.encode()}.items()):
                entry = tarfile.TarInfo(path)
                entry.size = len(content)
                entry.mode = 0o755 if content.startswith(b"#!") else 0o644
                tar.addfile(entry, io.BytesIO(content))
        buffer.seek(0)
        return buffer


class ServiceImage(NamedTuple):
    """What a service runs from."""

    tag: str
    writable: Mapping[str, tuple[int, int] | None]
    """Folders that it, or the manifest, declares to be written to, with their owners (uid, gid); None: it has no such
    folder."""


class Images:
    """The images of one engine. All calls block; call them from a thread."""

    def __init__(
        self, engine: APIClient, base: str, arguments: Mapping[str, str], folder: Path, build_timeout: float
    ) -> None:
        self._engine: Any = engine  # the SDK has no types
        self._base = base
        self._arguments = arguments
        self._folder = folder
        self._build_timeout = build_timeout

    def ensure(self, environment: Environment) -> str:
        """The tag of the environment's image, built now if the engine has none of that content.

        One build a tag, also among processes. The log of every build is kept in the folder.

        Raises:
            ImageBuildFailed: with the failing step's output, and where the whole log is.
        """
        runtime = runtime_build(self._base, self._base_id(), self._arguments)
        builds = [runtime, *environment_builds(environment, runtime.tag)]
        if not self._has(builds[-1].tag):
            for build in builds:
                self._build_once(build)
        return builds[-1].tag

    def ensure_service(self, environment: Environment, name: str) -> ServiceImage:
        """The image of one of the environment's services, built or pulled now if the engine has none.

        Raises:
            ImageBuildFailed: see `ensure`; or it is not there and cannot be pulled.
        """
        service = environment.manifest.services[name]
        tag = service.image
        if tag is None:
            build = service_build(environment, name, self._base, self._base_id())
            self._build_once(build)
            tag = build.tag
        elif not self._has(tag):
            try:
                self._engine.pull(tag)
            except APIError as error:
                raise ImageBuildFailed(
                    f"{environment.name}: the image {tag} of service {name} is not there and cannot be pulled: "
                    f"{error.explanation}"
                ) from error
        config = self._engine.inspect_image(tag)["Config"] or {}
        writable = dict.fromkeys([*(config.get("Volumes") or ()), *service.tmpfs])
        return ServiceImage(tag, self._owners(tag, list(writable)))

    def _owners(self, tag: str, folders: list[str]) -> dict[str, tuple[int, int] | None]:
        """Whose each folder of an image is; None where it has no such folder."""
        if not folders:
            return {}
        made = self._engine.create_container(tag, command=["true"])["Id"]  # it is never started
        try:
            return {folder: self._owner(made, folder) for folder in folders}
        finally:
            self._engine.remove_container(made, v=True, force=True)

    def _owner(self, container: str, folder: str) -> tuple[int, int] | None:
        try:
            chunks, _ = self._engine.get_archive(container, folder, chunk_size=tarfile.BLOCKSIZE)
        except NotFound:
            return None
        with contextlib.closing(chunks):  # its content is not read
            head = tarfile.TarInfo.frombuf(next(chunks), tarfile.ENCODING, "surrogateescape")
        return head.uid, head.gid

    def _base_id(self) -> str:
        try:
            return str(self._engine.inspect_image(self._base)["Id"])
        except NoSuchImage:
            pass
        try:
            self._engine.pull(self._base)
            return str(self._engine.inspect_image(self._base)["Id"])
        except (APIError, NoSuchImage) as error:
            raise ImageBuildFailed(
                f"the base image {self._base} is not there and cannot be pulled: {error.explanation}; "
                f"make it by `{by_this_python('setup_base_image')}`, or docker load it from another machine"
            ) from error

    def _has(self, tag: str) -> bool:
        try:
            self._engine.inspect_image(tag)
        except NotFound:
            return False
        return True

    def _build_once(self, build: Build) -> None:
        with self._lock(build.tag):
            if not self._has(build.tag):
                self._build(build)

    @contextmanager
    def _lock(self, tag: str) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(self._folder / f"{_file_name(tag)}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
        finally:
            os.close(lock)

    def _build(self, build: Build) -> None:
        path = self._folder / f"{_file_name(build.tag)}.log"
        lines: list[str] = []
        with path.open("w") as log:
            for chunk in self._chunks(build):
                text = str(chunk.get("stream") or chunk.get("error") or "")
                log.write(text)
                lines.extend(text.splitlines())
                if error := chunk.get("error"):
                    raise ImageBuildFailed(f"{build.name}: {_one_line(error)}; whole log: {path}", _last_step(lines))

    def _chunks(self, build: Build) -> Iterator[dict[str, Any]]:
        """What the engine says while it builds; the last chunk has `error` if the build failed."""
        late = {"error": f"it was not built in {self._build_timeout:g} s"}
        deadline = time.monotonic() + self._build_timeout
        try:
            for chunk in self._engine.build(
                fileobj=build.context(),
                custom_context=True,
                tag=build.tag,
                buildargs=dict(build.arguments),
                labels={LABEL: build.name},
                rm=True,
                forcerm=True,
                decode=True,
                timeout=self._build_timeout,
            ):
                yield chunk
                if time.monotonic() > deadline:
                    yield late
        except ReadTimeoutError:
            yield late
        except APIError as error:  # the engine refused it before its first step: a wrong Dockerfile
            yield {"error": error.explanation or str(error)}


def runtime_build(base: str, base_id: str, arguments: Mapping[str, str]) -> Build:
    """The image that every sandbox starts from: `base` and the in-sandbox server."""
    package = Path(gymbox_sandbox.__file__).parent
    files = {f"gymbox_sandbox/{path.relative_to(package)}": path.read_bytes() for path in _sources(package)}
    files["requirements.lock"] = _recipe("requirements.lock").read_bytes()
    # the id is no argument of the Dockerfile, but a new base must make a new image
    dockerfile = f"{_recipe('sandbox.Dockerfile').read_text()}\n# base: {base_id}\n"
    return Build("gymbox-sandbox", dockerfile, files, {"BASE_IMAGE": base, **arguments})


def environment_builds(environment: Environment, runtime: str) -> list[Build]:
    """What the environment adds to the runtime: its own Dockerfile, where it has one, then its files.

    Raises:
        ImageBuildFailed: its own Dockerfile is missing, or does not start from the runtime.
    """
    name = f"gymbox-env-{_plain(environment.name)}"
    image = environment.manifest.image
    files = {str(path.relative_to(environment.folder)): path.read_bytes() for path in environment.files()}
    builds: list[Build] = []
    if image.dockerfile is not None:
        content = files.get(image.dockerfile)
        if content is None:
            raise ImageBuildFailed(f"{environment.name}: there is no {image.dockerfile} in {environment.folder}")
        if not re.search(rb"^FROM\s+\$\{?BASE_IMAGE\}?\s*$", content, re.MULTILINE):
            raise ImageBuildFailed(
                f"{environment.name}: {image.dockerfile} must start with `ARG BASE_IMAGE` and `FROM ${{BASE_IMAGE}}`; "
                "the sandbox's server is in that image"
            )
        builds.append(Build(f"{name}-base", content.decode(), files, {"BASE_IMAGE": runtime}))
        runtime = builds[-1].tag
    context = {f"files/{path}": content for path, content in files.items()}
    context["requirements.txt"] = "".join(f"{requirement}\n" for requirement in image.pip).encode()
    arguments = {"BASE_IMAGE": runtime, "PACKAGES": " ".join(image.packages)}
    return [*builds, Build(name, _recipe("environment.Dockerfile").read_text(), context, arguments)]


def service_build(environment: Environment, name: str, base: str, base_id: str) -> Build:
    """The image of a service that has a folder of its own."""
    service = environment.manifest.services[name]
    folder = environment.folder / str(service.build)
    files = {str(path.relative_to(folder)): path.read_bytes() for path in environment.service_files(service)}
    dockerfile = files["Dockerfile"].decode()
    if re.search(r"\$\{?BASE_IMAGE\b", dockerfile):
        dockerfile = f"{dockerfile}\n# base: {base_id}\n"
    return Build(f"gymbox-service-{_plain(environment.name)}-{name}", dockerfile, files, {"BASE_IMAGE": base})


def _plain(name: str) -> str:
    return re.sub("[^a-z0-9]+", "-", name.lower()).strip("-")


def _sources(package: Path) -> Iterator[Path]:
    return (path for path in sorted(package.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)


def _recipe(name: str) -> Path:
    return next(folder / name for folder in RECIPES if (folder / name).is_file())


def _file_name(tag: str) -> str:
    return tag.replace(":", "-").replace("/", "-")


def _one_line(error: str) -> str:
    return " ".join(error.split())[:300]


def _last_step(lines: list[str]) -> str:
    """The output of the step that failed: from the last `Step n/m` on."""
    starts = [number for number, line in enumerate(lines) if line.startswith("Step ")]
    step = lines[starts[-1] :] if starts else lines
    return "\n".join(step if len(step) <= LOG_LINES else [step[0], "…", *step[-LOG_LINES:]])
