"""Sandbox peers: SWE-ReX, Inspect and Harbor beside gymbox, sandbox after sandbox on the same Docker engine.

Each is installed from PyPI into a venv of its own and driven by a script in `peers/` through its public classes, its
defaults unchanged, with an image that has all it needs. A peer that cannot be had is a note, and its bar is missed.
"""

from __future__ import annotations

import asyncio
import io
import json
import selectors
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import docker
from docker.errors import APIError, DockerException
from gymbox.client import ControllerClient
from gymbox.environment import Environment
from gymbox.setup_base_image import BASE_IMAGE
from nemo_gym_peer import CannotBeHad
from report import Figure, at_least, machine_cpu_seconds, median

HERE = Path(__file__).parent
CONCURRENCY = 8
CYCLES = 24
"""For each product in each round."""
ROUNDS = 2
DEADLINE = 400.0
"""Seconds that a peer has for one round."""
IMAGE = "gymbox-benchmark-peers"
DOCKERFILE = f"""FROM {BASE_IMAGE}
RUN apt-get update -qq && apt-get install -y -qq --no-install-recommends python3 python3-venv >/dev/null \\
 && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/swe-rex && /opt/swe-rex/bin/pip install -q --no-cache-dir swe-rex \\
 && ln -s /opt/swe-rex/bin/swerex-remote /usr/local/bin/
"""
PROJECT = "gymbox-bench"
"""How the names of the compose projects of Harbor's begin, and so of its networks."""


@dataclass(frozen=True)
class Peer:
    name: str
    package: str
    driver: str
    times: float
    """How many times its rate is the bar."""
    without: tuple[str, ...] = ()
    """What it imports and does not ask for."""


PEERS = (
    Peer("SWE-ReX", "swe-rex", "swe_rex.py", 3, ("aiohttp",)),
    Peer("Inspect's Docker sandbox", "inspect-ai", "inspect_docker.py", 5),
    Peer("Harbor", "harbor", "harbor_docker.py", 5),
)


@dataclass
class Tally:
    """What one product has done in all its rounds."""

    seconds: float = 0
    cpu_seconds: float = 0
    each: list[float] = field(default_factory=list)
    """Seconds of every cycle that worked."""
    failures: list[str] = field(default_factory=list)

    def add(self, answer: dict[str, Any], cpu_seconds: float) -> None:
        self.seconds += answer["seconds"]
        self.cpu_seconds += cpu_seconds
        self.each += answer["each"]
        self.failures += answer["failures"]

    @property
    def rate(self) -> float | None:
        """Sandboxes a second; None where none worked."""
        return len(self.each) / self.seconds if self.each else None

    def told(self, name: str) -> str:
        """In words. CPU is the whole machine's."""
        each = 1000 * (median(self.each) or 0)
        count = len(self.each) + len(self.failures)
        text = f"{name}: {count} sandboxes, {each:.0f} ms each (p50), {self.cpu_seconds / count:.2f} CPU-s each"
        return text + (f", {len(self.failures)} failed ({self.failures[0]})" if self.failures else "")


def venv_of(peer: Peer) -> Path:
    """The venv of a peer, made and filled where it is missing.

    Raises:
        CannotBeHad: it could not be installed; the text says why.
    """
    venv = HERE / f".venv-{peer.package}"
    uv = shutil.which("uv") or str(HERE.parent / ".tools" / "bin" / "uv")
    commands = [[uv, "pip", "install", "--quiet", "--python", str(venv / "bin/python"), peer.package, *peer.without]]
    if not (venv / "bin/python").exists():
        commands.insert(0, [uv, "venv", "--quiet", "--python", sys.executable, str(venv)])
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise CannotBeHad(f"{' '.join(command[1:3])} failed: {done.stderr.strip()[-300:]}")
    return venv


def image_of_peers(engine: docker.APIClient) -> str:
    """The image that all peers start: the base that gymbox's are built on, with Python and SWE-ReX's server.

    Raises:
        CannotBeHad: it could not be built; the text says why.
    """
    api: Any = engine  # the SDK has no types
    try:
        built = list(api.build(fileobj=io.BytesIO(DOCKERFILE.encode()), tag=IMAGE, rm=True, forcerm=True, decode=True))
    except (APIError, DockerException) as error:
        raise CannotBeHad(f"the peers' image: {error}") from error
    if "error" in built[-1]:
        raise CannotBeHad(f"the peers' image: {built[-1]['error']}")
    return IMAGE


@contextmanager
def driven(peer: Peer, image: str, log: IO[bytes]) -> Iterator[subprocess.Popen[str]]:
    """Its driver, which waits for lines.

    Raises:
        CannotBeHad: it could not be installed; the text says why.
    """
    command = [str(venv_of(peer) / "bin/python"), str(HERE / "peers" / peer.driver), image]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True)
    try:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        process.wait(60)
    finally:
        process.kill()
        process.wait()


def ask(driver: subprocess.Popen[str], log: Path, cycles: int, concurrency: int) -> dict[str, Any]:
    """Have a peer do some cycles.

    Raises:
        CannotBeHad: its driver has ended, or takes longer than DEADLINE.
    """
    assert driver.stdin is not None and driver.stdout is not None
    try:
        driver.stdin.write(json.dumps({"cycles": cycles, "concurrency": concurrency}) + "\n")
        driver.stdin.flush()
        if not _spoke(driver.stdout):
            driver.kill()
            raise CannotBeHad(f"{cycles} cycles were not done in {DEADLINE:g} s")
        return dict(json.loads(driver.stdout.readline()))
    except (BrokenPipeError, json.JSONDecodeError) as error:
        raise CannotBeHad(f"its driver ended: …{log.read_text(errors='replace').strip()[-300:]}") from error


def _spoke(pipe: IO[str]) -> bool:
    with selectors.DefaultSelector() as selector:
        selector.register(pipe, selectors.EVENT_READ)
        return bool(selector.select(DEADLINE))


async def ours(client: ControllerClient, environment: Environment, cycles: int, concurrency: int) -> dict[str, Any]:
    """The same cycles by the REST API: create, `echo hi` through the proxy, delete."""
    left, each = iter(range(cycles)), []

    async def work() -> None:
        for _ in left:
            began = time.perf_counter()
            async with client.sandbox(environment) as sandbox:
                result = await sandbox.exec(["echo", "hi"])
                if result.stdout != "hi\n":
                    raise RuntimeError(f"`echo hi` said {result}")
            each.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(concurrency)))
    return {"seconds": time.perf_counter() - began, "each": each, "failures": []}


async def measure(
    client: ControllerClient, environment: Environment, engine: docker.APIClient
) -> tuple[list[Figure], list[str]]:
    """Sandboxes a second with eight at once, in rounds that take turns: ours, then each peer's.

    CPU is the whole machine's: run it on an idle one.
    """
    notes: list[str] = []
    tallies = {name: Tally() for name in ("gymbox", *(peer.name for peer in PEERS))}
    with tempfile.TemporaryDirectory(prefix="gymbox-bench-") as folder, ExitStack() as stack:
        drivers: dict[str, tuple[subprocess.Popen[str], Path]] = {}
        try:
            image = await asyncio.to_thread(image_of_peers, engine)
            stack.callback(_sweep, engine)
        except CannotBeHad as error:
            notes.append(f"no peer was measured: {error}")
        else:
            for peer in PEERS:
                log = Path(folder) / f"{peer.package}.log"
                try:
                    driver = stack.enter_context(driven(peer, image, stack.enter_context(log.open("wb"))))
                    await asyncio.to_thread(ask, driver, log, 1, 1)  # warm-up
                    drivers[peer.name] = driver, log
                except CannotBeHad as error:
                    notes.append(f"{peer.name}: {error}")
        await ours(client, environment, 1, 1)
        for _ in range(ROUNDS):
            before = machine_cpu_seconds()
            answer = await ours(client, environment, CYCLES, CONCURRENCY)
            tallies["gymbox"].add(answer, machine_cpu_seconds() - before)
            for name, (driver, log) in list(drivers.items()):
                before = machine_cpu_seconds()
                try:
                    answer = await asyncio.to_thread(ask, driver, log, CYCLES, CONCURRENCY)
                except CannotBeHad as error:
                    notes.append(f"{name}: {error}")
                    del drivers[name]
                else:
                    tallies[name].add(answer, machine_cpu_seconds() - before)
    rate = tallies["gymbox"].rate
    figures = [
        at_least(peer.times, "create, exec, destroy, 8 at once", rate, "/s", tallies[peer.name].rate, peer.name)
        for peer in PEERS
    ]
    return figures, notes + [tally.told(name) for name, tally in tallies.items() if tally.each or tally.failures]


def _sweep(engine: docker.APIClient) -> None:
    """Remove what peers have left behind: containers of their image, and networks of their projects."""
    api: Any = engine
    for row in api.containers(all=True, filters={"ancestor": IMAGE}):
        api.remove_container(row["Id"], v=True, force=True)
    for network in api.networks(filters={"label": "com.docker.compose.project"}):
        if network["Labels"]["com.docker.compose.project"].startswith(PROJECT):
            api.remove_network(network["Id"])
