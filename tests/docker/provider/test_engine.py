"""An engine that goes away and comes back, and what is looked at on one."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from gymbox.errors import Unavailable, by_this_python
from gymbox.providers.diagnosis import diagnose
from gymbox.providers.docker import DockerProvider
from gymbox.providers.images import Images, runtime_build


class PrivateEngine:
    """A dockerd of this test's own, to be killed and restarted at will."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.host = f"unix://{folder}/docker.sock"
        self._daemon: subprocess.Popen[bytes] | None = None

    def start(self, *options: str) -> None:
        # in a network of its own: with --bridge=none, dockerd removes the docker0 of the machine's engine
        command = ["unshare", "--net", "dockerd", "--host", self.host, "--bridge=none"]
        command += ["--iptables=false", "--ip6tables=false"]
        for name in ("data-root", "exec-root"):
            command += [f"--{name}", str(self.folder / name)]
        command += ["--pidfile", str(self.folder / "docker.pid"), "--config-file", str(self.folder / "none.json")]
        (self.folder / "none.json").write_text("{}")
        (self.folder / "docker.pid").unlink(missing_ok=True)
        log = (self.folder / "log").open("ab")
        self._daemon = subprocess.Popen([*command, *options], stdout=log, stderr=log, start_new_session=True)
        for _ in range(600):
            try:
                client = docker.DockerClient(self.host)
                client.close()
                return
            except docker.errors.DockerException:
                assert self._daemon.poll() is None, (self.folder / "log").read_text()[-3000:]
                subprocess.run(["sleep", "0.1"], check=True)
        raise AssertionError("the private dockerd does not answer")

    def end(self, number: signal.Signals) -> None:
        if self._daemon is not None:
            self._daemon.send_signal(number)
            self._daemon.wait(timeout=60)
            self._daemon = None


@pytest.fixture
def runtime(engine: Any, environment: Any, tmp_path: Path) -> str:
    """The tag of the runtime image, which this makes sure is there."""
    Images(engine.api, "debian:trixie-slim", {}, tmp_path / "builds", 1800).ensure(environment())
    return runtime_build("debian:trixie-slim", engine.images.get("debian:trixie-slim").id, {}).tag


@pytest.fixture
def private_engine(engine: Any, runtime: str) -> Iterator[PrivateEngine]:
    """Needs root and dockerd; has the base image and the runtime, as no build in it has a network."""
    if os.getuid() != 0 or shutil.which("dockerd") is None:
        pytest.skip("a second engine needs root and dockerd")
    folder = Path(f"/run/gymbox-test-engine-{os.getpid()}")  # short: there are sockets in it
    folder.mkdir(mode=0o711)
    private = PrivateEngine(folder)
    try:
        private.start("--live-restore")
        save = subprocess.Popen(["docker", "save", "debian:trixie-slim", runtime], stdout=subprocess.PIPE)
        subprocess.run(
            ["docker", "-H", private.host, "load", "-q"], stdin=save.stdout, check=True, capture_output=True
        )
        assert save.wait() == 0
        yield private
        client = docker.DockerClient(private.host)
        for container in client.containers.list(all=True):
            container.remove(force=True)
        client.close()
    finally:
        private.end(signal.SIGTERM)
        mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
        for mount in [mount for mount in mounts if mount.startswith(f"{folder}/")]:
            subprocess.run(["umount", "--lazy", mount], check=False)
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.timeout(600)
async def test_sandboxes_outlive_a_crash_of_the_engine_and_those_that_ended_meanwhile_are_told(
    private_engine: PrivateEngine, make_sandboxes: Any, environment: Any, connected: Any, tmp_path: Path
) -> None:
    provider = DockerProvider(host=private_engine.host, build_folder=tmp_path / "builds")
    async with make_sandboxes(provider) as sandboxes:
        plain = environment()
        stays, ends = await sandboxes.start(plain), await sandboxes.start(plain)
        pid = docker.DockerClient(private_engine.host).containers.get(ends.id).attrs["State"]["Pid"]

        private_engine.end(signal.SIGKILL)
        async with connected(stays) as session, session.get("/healthz") as answer:
            assert answer.status == 200  # reached without the engine
        with pytest.raises(Unavailable, match=r"gymbox\.setup_docker"):
            await sandboxes.provider.list()
        os.kill(pid, signal.SIGKILL)

        await asyncio.to_thread(private_engine.start, "--live-restore")
        id, ended = await sandboxes.ended(within=60)
        assert (id, ended.cause) == (ends.id, "lost")
        assert [each.id for each in await sandboxes.provider.list()] == [stays.id]
        assert sandboxes.ends.empty()

        await sandboxes.provider.stop(ends.id)
        await sandboxes.start(plain)  # and all goes on as before


def test_a_diagnosis_names_what_the_engine_lacks_and_the_command_that_mends_it(
    private_engine: PrivateEngine, engine: Any
) -> None:
    found = {finding.name: finding for finding in diagnose(private_engine.host, "no-such-base:1")}
    assert found["Docker engine"].ok and found["system call filter"].ok and found["resource limits"].ok
    assert found["live-restore"].ok
    assert not found["address pools"].ok and "daemon.json" in str(found["address pools"].remedy)
    assert not found["base image"].ok and found["base image"].remedy == by_this_python("setup_base_image")
    assert all(finding.ok or finding.remedy for finding in found.values())


def test_a_diagnosis_without_an_engine_is_one_finding(tmp_path: Path, engine: Any) -> None:
    (finding,) = diagnose(f"unix://{tmp_path}/nobody.sock")
    assert not finding.ok and finding.required and finding.remedy == by_this_python("setup_docker")


def test_a_diagnosis_says_where_the_compose_plugin_is_missing(monkeypatch: pytest.MonkeyPatch, engine: Any) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    found = {finding.name: finding for finding in diagnose()}
    assert not found["docker compose"].ok and "apt-get install" in str(found["docker compose"].remedy)
