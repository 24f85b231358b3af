"""Images come from a registry by digest, and what a registry refuses is told for what it is."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker.errors
import pytest
import yaml
from gymbox.errors import ErrorKind, ImageNotPulled, RegistryAway
from gymbox.providers.builds import Build
from gymbox.setup_docker_registry import docker_registry


class Registry:
    """A registry on this machine; from the second start on, where it was before."""

    def __init__(self, folder: Path, auth: dict[str, Any] | None = None) -> None:
        self._program = docker_registry()
        if self._program is None:
            if os.environ.get("CI"):
                pytest.fail("no docker-registry: `python -m gymbox.setup_docker_registry` gets it")
            pytest.skip("no docker-registry; `python -m gymbox.setup_docker_registry` gets it")
        self._folder = folder
        self._auth = {"auth": auth} if auth else {}
        self.address = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        self._folder.mkdir(exist_ok=True)
        content = {
            "version": 0.1,
            "log": {"level": "info"},
            "storage": {"filesystem": {"rootdirectory": str(self._folder / "storage")}},
            "http": {"addr": self.address},
            **self._auth,
        }
        (self._folder / "config.yml").write_text(yaml.safe_dump(content))
        assert self._program is not None
        command = [self._program, "serve", str(self._folder / "config.yml")]
        self._process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if found := re.search(r"listening on (127\.0\.0\.1:\d+)", line):
                self.address = found[1]
                # nobody may stop it by reading no further
                threading.Thread(target=self._process.stderr.read, daemon=True).start()
                return
        raise AssertionError("the registry does not start")

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Registry]:
    made = Registry(tmp_path_factory.mktemp("registry"))
    yield made
    made.stop()


@pytest.fixture
def push(engine: Any, registry: Registry) -> Iterator[Callable[[str, str], str]]:
    """Pushes an image with one file of this content under a name, and gives its digest; here it is gone then."""

    def send(name: str, content: str) -> str:
        reference = f"{registry.address}/{name}"
        image = Build("gymbox-test-pushed", "FROM scratch\nCOPY file /file\n", {"file": content.encode()})
        engine.images.build(fileobj=image.context(), custom_context=True, tag=reference, rm=True)
        said = engine.images.push(reference, stream=True, decode=True)
        digest = next(line["aux"]["Digest"] for line in said if "aux" in line)
        engine.images.remove(reference, force=True)
        return str(digest)

    yield send
    for image in engine.images.list():
        for reference in {*image.tags, *(image.attrs["RepoDigests"] or ())}:
            if reference.startswith(registry.address):
                with contextlib.suppress(docker.errors.ImageNotFound):  # a tag goes with its digest
                    engine.images.remove(reference, force=True)


@pytest.fixture(autouse=True)
def images_are_removed(engine: Any, push: Any) -> Iterator[None]:
    yield
    for step in ("", "-base", "-apt", "-pip"):
        for image in engine.images.list(filters={"label": f"gymbox.image=gymbox-env-plain{step}"}):
            for tag in image.tags if step or "gymbox.runtime" in image.labels else ():
                engine.images.remove(tag, force=True)


def _file_in(engine: Any, tag: str) -> bytes:
    container = engine.containers.create(tag, ["never started"])
    try:
        return b"".join(container.get_archive("/file")[0])
    finally:
        container.remove()


async def test_what_a_tag_meant_is_recorded_and_its_digest_names_it_for_good(
    sandboxes: Any, environment: Any, engine: Any, registry: Registry, push: Any
) -> None:
    first = await asyncio.to_thread(push, "some/thing:1", "first")
    by_tag = environment(image={"base": f"{registry.address}/some/thing:1"})
    tag = await sandboxes.provider.prepare(by_tag)
    assert sandboxes.provider.base_of(by_tag) == f"{registry.address}/some/thing@{first}"
    assert b"first" in await asyncio.to_thread(_file_in, engine, tag)

    engine.images.remove(f"{registry.address}/some/thing:1", force=True)
    await asyncio.to_thread(push, "some/thing:1", "second")
    pinned = environment(image={"base": f"{registry.address}/some/thing:1@{first}"})
    assert b"first" in await asyncio.to_thread(_file_in, engine, await sandboxes.provider.prepare(pinned))
    assert sandboxes.provider.base_of(pinned) == f"{registry.address}/some/thing@{first}"
    moved = environment(image={"base": f"{registry.address}/some/thing:1"}, files={"x": "1"})
    assert b"second" in await asyncio.to_thread(_file_in, engine, await sandboxes.provider.prepare(moved))


async def test_an_image_that_the_registry_does_not_have_is_not_found(
    sandboxes: Any, environment: Any, registry: Registry
) -> None:
    for name in ("no/such:1", f"no/such@sha256:{'0' * 64}"):
        with pytest.raises(ImageNotPulled) as raised:
            await sandboxes.provider.prepare(environment(image={"base": f"{registry.address}/{name}"}))
        assert raised.value.rollout_kind is ErrorKind.IMAGE_NOT_FOUND, raised.value


async def test_what_a_dockerfile_starts_from_is_pulled_alike(
    sandboxes: Any, environment: Any, registry: Registry, push: Any
) -> None:
    digest = await asyncio.to_thread(push, "start:1", "from here")
    dockerfile = {"Dockerfile": f"FROM {registry.address}/start:1\nCOPY server.py /again\n"}
    started = environment(files=dockerfile, image={"dockerfile": "Dockerfile"})
    await sandboxes.provider.prepare(started)
    assert sandboxes.provider.base_of(started) == f"{registry.address}/start@{digest}"


async def test_a_registry_that_asks_for_credentials_gives_no_access(
    sandboxes: Any, environment: Any, tmp_path: Path
) -> None:
    closed = Registry(tmp_path / "closed", auth={"htpasswd": {"realm": "closed", "path": str(tmp_path / "passwords")}})
    try:
        with pytest.raises(ImageNotPulled, match="docker login") as raised:
            await sandboxes.provider.prepare(environment(image={"base": f"{closed.address}/secret:1"}))
    finally:
        closed.stop()
    assert raised.value.rollout_kind is ErrorKind.IMAGE_NO_ACCESS


async def test_a_registry_that_comes_back_in_time_is_asked_again_and_one_that_does_not_is_away(
    sandboxes: Any, environment: Any, registry: Registry, push: Any
) -> None:
    await asyncio.to_thread(push, "later:1", "later")
    waiting = environment(image={"base": f"{registry.address}/later:1"})
    registry.stop()
    try:
        with pytest.raises(RegistryAway, match="does not answer"):
            await sandboxes.provider.prepare(waiting)
        preparing = asyncio.create_task(sandboxes.provider.prepare(waiting))
        await asyncio.sleep(0.5)  # it has been asked once, and will be in half a second
    finally:
        registry.start()
    assert (await preparing).startswith("gymbox-env-plain:")
