"""Images: what sandboxes run from, built once for each content and never for the same content twice."""

from __future__ import annotations

import contextlib
import fcntl
import os
import tarfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from docker import APIClient
from docker.errors import APIError, NotFound
from urllib3.exceptions import ReadTimeoutError

from gymbox.environment import Environment
from gymbox.errors import ImageBuildFailed, Problem, by_this_python
from gymbox.providers.builds import LABEL, Build, environment_builds, runtime_build, service_build
from gymbox.providers.foreign import Foreign, bases_in_registries, foreign_builds, is_foreign
from gymbox.providers.foreign_base import refuse_without_apt, what_follows
from gymbox.providers.pull import digest_of, ensure_pulled
from gymbox.providers.runtime import NAME as RUNTIME_NAME
from gymbox.providers.runtime import Runtimes, portable_build

LOG_LINES = 60


class ServiceImage(NamedTuple):
    """What a service runs from."""

    tag: str
    writable: Mapping[str, tuple[int, int] | None]
    """Folders that it, or the manifest, declares to be written to, with their owners (uid, gid); None: it has no such
    folder."""


class Images:
    """The images of one engine. All calls block; call them from a thread."""

    def __init__(
        self,
        engine: APIClient,
        base: str,
        arguments: Mapping[str, str],
        folder: Path,
        build_timeout: float,
        builds: int = 2,
    ) -> None:
        self._engine: Any = engine  # the SDK has no types
        self._base = base
        self._arguments = arguments
        self._folder = folder
        self._build_timeout = build_timeout
        self._turns = threading.BoundedSemaphore(builds)
        self._runtimes = Runtimes(engine)
        self._foreign: dict[str, Foreign | None] = {}
        self._bases: dict[str, str] = {}

    def ensure(self, environment: Environment) -> str:
        """The tag of the environment's image, built now if the engine has none of that content.

        One build a tag, also among processes, and no more at once than this was made for. The log of every build is
        kept in the folder.

        Raises:
            ImageBuildFailed: with the failing step's output, and where the whole log is.
            ImageNotPulled, RegistryAway: what it is based on cannot be had from its registry.
        """
        builds = self.builds(environment)
        if not (self._has(builds[-1].tag) and (builds[0].name != RUNTIME_NAME or self._has(builds[0].tag))):
            for build in builds:
                self._build_once(build)
        return builds[-1].tag

    def ensure_service(self, environment: Environment, name: str) -> ServiceImage:
        """The image of one of the environment's services, built or pulled now if the engine has none.

        Raises:
            ImageBuildFailed, ImageNotPulled, RegistryAway: see `ensure`.
        """
        service = environment.manifest.services[name]
        tag = service.image
        if tag is None:
            build = self._service_build(environment, name, self._pulled)
            self._build_once(build)
            tag = build.tag
        else:
            self._pulled(tag)
        config = self._engine.inspect_image(tag)["Config"] or {}
        writable = dict.fromkeys([*(config.get("Volumes") or ()), *service.tmpfs])
        return ServiceImage(tag, self._owners(tag, list(writable)))

    def _service_build(self, environment: Environment, name: str, get: Callable[[str], dict[str, Any]]) -> Build:
        return service_build(environment, name, self._base, str(self._own_base(get)["Id"]))

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

    def tags(self, environment: Environment) -> set[str]:
        """All images that it and its services have now, or would have had they been built; none is built, and none is
        pulled."""
        look, services = self._engine.inspect_image, environment.manifest.services
        try:
            own = [self._service_build(environment, name, look) for name in services if services[name].image is None]
            return {build.tag for build in [*own, *self._builds(environment, look)]}
        except (NotFound, ImageBuildFailed):
            return set()

    def builds(self, environment: Environment) -> list[Build]:
        """All that makes its image, which is the last one; what it is based on is pulled where it is missing.

        Raises:
            ImageBuildFailed, ImageNotPulled, RegistryAway: see `ensure`.
        """
        return self._builds(environment, self._pulled)

    def _builds(self, environment: Environment, get: Callable[[str], dict[str, Any]]) -> list[Build]:
        own = self._own_base(get)
        if not is_foreign(environment):
            self._bases[environment.digest] = digest_of(self._base, own)
            runtime = runtime_build(self._base, str(own["Id"]), self._arguments)
            return [runtime, *environment_builds(environment, runtime.tag)]
        runtime = portable_build(self._base, str(own["Id"]), self._arguments)
        ids = []
        for reference in bases_in_registries(environment):
            base = get(reference)
            ids.append(str(base["Id"]))
            self._bases[environment.digest] = digest_of(reference, base)
        return [runtime, *foreign_builds(environment, runtime.tag, " ".join(ids))]

    def base_of(self, environment: Environment) -> str | None:
        """The digest of what an environment's image is based on, once that was ensured; None if it is based on
        nothing."""
        return self._bases.get(environment.digest)

    def foreign(self, image: str) -> Foreign | None:
        """What a container of an image needs if that is not built on our own; the runtime that it needs is there then.

        Raises:
            NotFound: there is no such image.
            ImageBuildFailed, Unavailable: there is no such runtime.
        """
        if image not in self._foreign:
            self._foreign[image] = Foreign.of(self._engine.inspect_image(image))
        foreign = self._foreign[image]
        if foreign is not None:
            self._runtimes.ensure(foreign.runtime)
        return foreign

    def doubt(self, image: str) -> None:
        """A sandbox of this image did not start: look again at what it needs before the next one."""
        foreign = self._foreign.pop(image, None)
        if foreign is not None:
            self._runtimes.doubt(foreign.runtime)

    def _pulled(self, reference: str) -> dict[str, Any]:
        with self._lock(f"pull-{reference}"):
            return ensure_pulled(self._engine, reference)

    def _own_base(self, get: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
        try:
            return get(self._base)
        except Problem as problem:
            raise ImageBuildFailed(
                f"the base image {self._base} is not there and cannot be pulled: {problem.detail}; "
                f"make it by `{by_this_python('setup_base_image')}`, or docker load it from another machine"
            ) from problem

    def _has(self, tag: str) -> bool:
        try:
            self._engine.inspect_image(tag)
        except NotFound:
            return False
        return True

    def _build_once(self, build: Build) -> None:
        with self._lock(build.tag):
            if self._has(build.tag):
                return
            with self._turns:
                self._build(self._looked_into(build))

    def _looked_into(self, build: Build) -> Build:
        """A build with what follows from its base, if that is an image which knows nothing of us.

        Raises:
            ImageBuildFailed: no sandbox can have it, or not with packages.
        """
        base = build.arguments.get("BASE_IMAGE", "")
        if build.base_for == "packages":
            refuse_without_apt(self._engine, base)
        if build.base_for == "sandboxes":
            return replace(build, follows=what_follows(self._engine, base))
        return build

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
                labels={LABEL: build.name, **build.labels},
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


def _file_name(tag: str) -> str:
    return tag.replace(":", "-").replace("/", "-").replace("@", "-")


def _one_line(error: str) -> str:
    return " ".join(error.split())[:300]


def _last_step(lines: list[str]) -> str:
    """The output of the step that failed: from the last `Step n/m` on."""
    starts = [number for number, line in enumerate(lines) if line.startswith("Step ")]
    step = lines[starts[-1] :] if starts else lines
    return "\n".join(step if len(step) <= LOG_LINES else [step[0], "…", *step[-LOG_LINES:]])
