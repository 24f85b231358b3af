"""Any Linux image: without Python, with another libc, with one program, another user, or meaning harm."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker.errors
import pytest
from gymbox.environment import Environment
from gymbox.errors import ImageBuildFailed, StartFailed
from gymbox.providers.builds import Build
from gymbox.providers.docker import DockerProvider
from gymbox.providers.runtime import runtime_volume

PARTS = """
FROM debian:trixie-slim
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends busybox-static musl >/dev/null
RUN mkdir -p /musl/bin /musl/lib /musl/etc \\
 && cp /bin/busybox /musl/bin/ && cp "$(readlink -f /lib/ld-musl-*.so.1)" /musl/lib/ld-musl.so.1 \\
 && for name in $(/bin/busybox --list); do ln -sf busybox "/musl/bin/$name" 2>/dev/null || true; done \\
 && rm /musl/bin/busybox && cp /bin/busybox /musl/bin/ \\
 && printf 'root:x:0:0:root:/root:/bin/ash\\n' > /musl/etc/passwd
RUN cp /usr/lib/*-linux-gnu/libm.so.6 /harm.so
"""
IMAGES = {
    "Debian": "FROM debian:trixie-slim\n",
    "musl": "FROM {parts} AS parts\nFROM scratch\nCOPY --from=parts /musl/ /\n",
    "one program": "FROM {parts} AS parts\nFROM scratch\nCOPY --from=parts /bin/busybox /bin/busybox\n",
    "another user": "FROM debian:trixie-slim\nRUN useradd -u 10001 -m someone\nUSER 1234:1234\nWORKDIR /srv\n",
    "hostile": """
FROM {parts} AS parts
FROM debian:trixie-slim
COPY --from=parts /harm.so /harm/one.so
COPY --from=parts /harm.so /harm/two.so
COPY --from=parts /harm.so /harm/libc.so.6
RUN printf '#!/bin/sh\\necho harm\\n' > /harm/id && chmod 777 /harm /harm/id && echo /harm/two.so > /etc/ld.so.preload
ENV PATH=/harm LD_PRELOAD=/harm/one.so PYTHONHOME=/harm PYTHONPATH=/harm OPENSSL_CONF=/harm/x GCONV_PATH=/harm
ENTRYPOINT ["/harm/id"]
HEALTHCHECK --interval=1s CMD ["/harm/id"]
VOLUME /harm/data /workspace
USER nobody
""",
}
SERVER = """
import os, ssl, sqlite3, sys
from gymbox_sandbox import ResourcesServer, Task, tool
from gymbox_sandbox.untrusted import call_function

class Anywhere(ResourcesServer):
    async def reset(self, task: Task) -> None:
        self.files = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}

    @tool
    async def look(self) -> dict:
        "What the server runs on."
        ssl.create_default_context()
        assert open("/tmp/server", "w").encoding.lower() == "utf-8"
        return {"python": sys.executable, "files": sorted(self.files), "environ": dict(os.environ), "uid": os.getuid()}

    @tool
    async def untrusted(self) -> int:
        "What a function returns that runs as the agent."
        [outcome] = await call_function(self.exec, "def f(x): return x + 1", "f", [[41]])
        return outcome.value if outcome.ok else outcome.error

    async def verify(self, task: Task, response) -> float:
        return 1.0
"""


@pytest.fixture(scope="session")
def build(engine: Any) -> Iterator[Callable[..., str]]:
    """Builds an image of a Dockerfile and gives its tag; they are removed at the end."""
    made: list[str] = []

    def make(dockerfile: str) -> str:
        image = Build("gymbox-test-foreign", dockerfile, {})
        engine.images.build(fileobj=image.context(), custom_context=True, tag=image.tag, rm=True, forcerm=True)
        made.append(image.tag)
        return image.tag

    yield make
    for tag in reversed(dict.fromkeys(made)):
        engine.images.remove(tag, force=True)


@pytest.fixture(scope="session")
def parts(build: Callable[..., str]) -> str:
    """An image from which the others have their files."""
    return build(PARTS)


@pytest.fixture(autouse=True)
def images_are_removed(engine: Any) -> Iterator[None]:
    yield
    for step in ("", "-base", "-apt", "-pip"):
        for image in engine.images.list(filters={"label": f"gymbox.image=gymbox-env-plain{step}"}):
            for tag in image.tags if step or "gymbox.runtime" in image.labels else ():
                engine.images.remove(tag, force=True)


@pytest.fixture
def based(environment: Any) -> Callable[..., Environment]:
    """An environment on an image."""

    def make(base: str | None, files: dict[str, str] | None = None, **image: Any) -> Environment:
        found = environment(SERVER, files=files, image={"base": base, **image} if base else image)
        assert isinstance(found, Environment)
        return found

    return make


@pytest.fixture
def call(connected: Any) -> Callable[..., Any]:
    """Calls a tool for a new task, and gives what it returned."""

    async def ask(started: Any, tool: str) -> Any:
        async with connected(started) as session:
            async with session.post("/reset", json={"task": {}}) as answer:
                assert answer.status == 200, await answer.text()
            async with session.post(f"/tools/{tool}", json={}) as answer:
                said = await answer.json()
                assert answer.status == 200 and not said["is_error"], said
                return json.loads(said["output"])

    return ask


@pytest.mark.parametrize("name", IMAGES)
async def test_a_sandbox_runs_from_any_linux_image_and_takes_nothing_of_it(
    name: str, sandboxes: Any, based: Any, build: Any, parts: str, call: Any, run_in: Any, connected: Any
) -> None:
    started = await sandboxes.start(based(build(IMAGES[name].format(parts=parts))))
    seen = await call(started, "look")
    assert seen["uid"] == 10002 and seen["python"] == "/opt/gymbox/rt/bin/python3"
    assert [path for path in seen["files"] if not path.startswith("/opt/gymbox/")] == []
    assert not [variable for variable in seen["environ"].items() if "harm" in str(variable)]
    assert await call(started, "untrusted") == 42

    box = ["/bin/busybox"] if name == "one program" else []
    done = await run_in(started, [*(box or ["/bin/busybox"] if name == "musl" else box), "id", "-u"])
    assert done["stdout"] == ("harm\n" if name == "hostile" else "10001\n"), done
    variables = (await run_in(started, [*box, "env" if box else "/usr/bin/env" if name != "musl" else "env"]))[
        "stdout"
    ]
    assert "gymbox" not in variables and ("PYTHONHOME=/harm" in variables) is (name == "hostile")
    async with connected(started) as session:
        async with session.put("/files?path=a/b.txt", data=b"there and back") as answer:
            assert answer.status == 200, await answer.text()
        async with session.get("/files?path=a/b.txt") as answer:
            assert await answer.read() == b"there and back"
        async with session.post("/verify", json={"task": {}, "response": {"output": []}}) as answer:
            assert (await answer.json())["reward"] == 1.0


async def test_the_agents_programs_are_the_images_own_and_run_by_its_variables(
    sandboxes: Any, based: Any, build: Any, parts: str, run_in: Any, engine: Any
) -> None:
    """The control of the test above: what did not reach the server is there."""
    started = await sandboxes.start(based(build(IMAGES["hostile"].format(parts=parts))))
    assert "Health" not in engine.containers.get(started.id).attrs["State"]
    maps = (await run_in(started, ["/usr/bin/cat", "/proc/self/maps"]))["stdout"]
    assert "/harm/one.so" in maps and "/harm/two.so" in maps and "/opt/gymbox" not in maps
    written = await run_in(started, ["/usr/bin/touch", "/harm/data/x", "/harm/x", "/workspace/x"])
    assert written["stderr"].count("Read-only file system") == 1
    size = (await run_in(started, ["/usr/bin/df", "-m", "--output=fstype,size", "/harm/data"]))["stdout"]
    assert size.split()[-2:] == ["tmpfs", "256"]
    assert (await run_in(started, "/usr/bin/id -un"))["stdout"] == "agent\n"


async def test_without_a_shell_a_command_is_a_list_of_words(
    sandboxes: Any, based: Any, build: Any, parts: str, run_in: Any, connected: Any
) -> None:
    started = await sandboxes.start(based(build(IMAGES["one program"].format(parts=parts))))
    async with connected(started) as session, session.post("/exec", json={"command": "id"}) as answer:
        assert answer.status == 422 and "list of words" in (await answer.json())["detail"]
    script = "echo $0 > /tmp/x; /bin/busybox cat /tmp/x /etc/passwd; /bin/busybox ls /"
    shown = (await run_in(started, ["/bin/busybox", "sh", "-c", script]))["stdout"]
    assert "agent:x:10001" in shown and "tmp" in shown.split()


async def test_the_other_libc_is_there_for_the_agent_and_not_for_the_server(
    sandboxes: Any, based: Any, build: Any, parts: str, run_in: Any
) -> None:
    started = await sandboxes.start(based(build(IMAGES["musl"].format(parts=parts))))
    assert "musl libc" in (await run_in(started, ["/lib/ld-musl.so.1"]))["stderr"]
    assert (await run_in(started, "ls /lib; python3"))["stdout"] == "ld-musl.so.1\n"


async def test_packages_requirements_and_a_dockerfile_come_into_a_foreign_image(
    sandboxes: Any, based: Any, run_in: Any, connected: Any
) -> None:
    rich = based(
        None,
        files={"Dockerfile": "FROM debian:trixie-slim AS one\nRUN echo made > /made\nFROM one\nENV MINE=1\n"},
        dockerfile="Dockerfile",
        packages=["bc"],
        pip=["toolz==1.0.0", "markupsafe==3.0.2"],
    )
    started = await sandboxes.start(rich)
    done = await run_in(started, "cat /made; echo 6*7 | bc; echo $MINE; which python3")
    assert done["stdout"].split() == ["made", "42", "1"]
    script = "import markupsafe._speedups, toolz; print(toolz.__file__)"
    done = await run_in(started, ["/opt/gymbox/rt/bin/python3", "-I", "-c", script])
    assert done["stdout"].startswith("/opt/gymbox/packages/"), done
    assert sandboxes.provider.base_of(rich).startswith("sha256:")


@pytest.mark.parametrize(
    ("dockerfile", "image", "reason"),
    [
        ("VOLUME /run\n", {}, "VOLUME /run"),
        ("RUN mkdir -p /opt/gymbox\n", {}, "a /opt/gymbox of its own"),
        ("RUN mkdir -p /a && ln -s /opt/gymbox/rt /a/b\nVOLUME /a/b/lib\n", {}, "leads to /opt/gymbox/rt"),
        ("RUN rm -r /opt && ln -s /srv /opt\n", {}, "its /opt is a link"),
        ("LABEL gymbox.request={}\n", {}, "gymbox.request"),
        ("RUN rm /usr/bin/apt-get\n", {"packages": ["bc"]}, "by apt-get, which gymbox-test-foreign"),
    ],
)
async def test_an_image_that_no_sandbox_can_have_is_refused_before_anything_starts(
    dockerfile: str, image: dict[str, Any], reason: str, sandboxes: Any, based: Any, build: Any
) -> None:
    unfit = based(build(f"FROM debian:trixie-slim\n{dockerfile}"), **image)
    with pytest.raises(ImageBuildFailed) as refused:
        await sandboxes.provider.prepare(unfit)
    assert reason in refused.value.detail + refused.value.log
    assert not sandboxes.phases


async def test_a_runtime_that_someone_has_removed_is_there_again_for_the_next_sandbox(
    make_sandboxes: Any, based: Any, engine: Any, tmp_path: Path
) -> None:
    # an argument that no Dockerfile takes: a runtime of its own, which no other test runs on
    provider = DockerProvider(build_folder=tmp_path / "builds", build_args={"UNUSED": tmp_path.name})
    plain = based("debian:trixie-slim")
    runtime, *_ = await asyncio.to_thread(provider.images(engine.api).builds, plain)
    volume = runtime_volume(runtime.tag)
    try:
        async with make_sandboxes(provider) as sandboxes:
            first = await sandboxes.start(plain)
            assert volume in _volumes(engine, first.id)
            await sandboxes.provider.stop(first.id)
            engine.volumes.get(volume).remove()
            with pytest.raises(StartFailed):
                await sandboxes.start(plain)
            started = await sandboxes.start(plain)
            assert volume in _volumes(engine, started.id)
    finally:
        with contextlib.suppress(docker.errors.NotFound):
            engine.volumes.get(volume).remove()
        with contextlib.suppress(docker.errors.NotFound):
            engine.images.remove(runtime.tag)


async def test_anonymous_volumes_of_an_image_go_with_its_sandbox(
    sandboxes: Any, based: Any, build: Any, engine: Any
) -> None:
    started = await sandboxes.start(based(build("FROM debian:trixie-slim\nVOLUME /data\n")))
    anonymous = {name for name in _volumes(engine, started.id) if not name.startswith("gymbox-")}
    await sandboxes.provider.stop(started.id)
    assert not anonymous & {volume.name for volume in engine.volumes.list()}


def _volumes(engine: Any, id: str) -> list[str]:
    return [mount["Name"] for mount in engine.containers.get(id).attrs["Mounts"] if mount["Type"] == "volume"]
