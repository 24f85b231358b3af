"""What every provider must do: start, stop and list, push readiness and ends, leave nothing."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox.environment import Environment
from gymbox.errors import NotFound, StartFailed, Unavailable
from gymbox.http import HttpClient
from gymbox.providers import Started, StartSpec
from gymbox_sandbox.lifecycle import Ended


class Opened:
    """A provider that is open, and what it told."""

    def __init__(self, provider: Any, folder: Path) -> None:
        self.provider = provider
        self.folder = folder
        self.phases: list[str] = []
        self.ends: asyncio.Queue[tuple[str, Ended]] = asyncio.Queue()
        self.used: list[str] = []

    def spec(self, environment: Environment, id: str | None = None) -> StartSpec:
        id = id or f"conformance-{uuid.uuid4().hex[:10]}"
        self.used.append(id)
        return StartSpec(id, environment, self.folder / id[-10:], {"gymbox.sandbox": id})

    async def start(self, environment: Environment, id: str | None = None) -> Started:
        started: Started = await self.provider.start(self.spec(environment, id), self.phases.append)
        return started

    async def ids(self) -> list[str]:
        return sorted(found.id for found in await self.provider.list())


@pytest.fixture
async def opened(provider: Any, tmp_path: Path) -> AsyncIterator[Opened]:
    folder = tmp_path / "s"
    folder.mkdir()
    opened = Opened(provider, folder)
    try:
        await provider.open(f"conformance-{uuid.uuid4().hex[:8]}", lambda *end: opened.ends.put_nowait(end))
    except Unavailable as error:
        pytest.skip(error.detail)
    try:
        yield opened
        for id in opened.used:
            await provider.stop(id)
        assert await opened.ids() == []
        assert list(folder.iterdir()) == [], "a directory was left"
    finally:
        await provider.close()


async def healthy(http: HttpClient, started: Started) -> Any:
    return await http.json("GET", "http://sandbox/healthz", socket=started.socket, timeout=10)


async def test_start_returns_when_the_server_answers(opened: Opened, probe: Environment, http: HttpClient) -> None:
    started = await opened.start(probe)
    assert opened.phases == ["created", "started"]
    assert (await healthy(http, started))["environment"] == probe.name
    await http.forget(str(started.socket))


async def test_list_shows_what_runs_with_its_labels(opened: Opened, probe: Environment) -> None:
    before = time.time()
    started = await opened.start(probe)
    [found] = await opened.provider.list()
    assert (found.id, found.environment, found.socket) == (started.id, probe.name, started.socket)
    assert found.labels["gymbox.sandbox"] == started.id
    assert before - 2 <= found.created_at <= time.time() + 2


async def test_starting_the_same_id_again_adopts_what_runs(opened: Opened, probe: Environment) -> None:
    first = await opened.start(probe, "conformance-again-000001")
    second = await opened.start(probe, "conformance-again-000001")
    assert first == second
    assert await opened.ids() == ["conformance-again-000001"]


async def test_two_who_start_one_id_at_once_get_the_same_sandbox(
    opened: Opened, probe: Environment, http: HttpClient
) -> None:
    first, second = await asyncio.gather(*(opened.start(probe, "conformance-twice-000001") for _ in range(2)))
    assert first == second
    assert (await healthy(http, first))["status"] == "ok"
    await http.forget(str(first.socket))
    assert await opened.ids() == ["conformance-twice-000001"]
    assert opened.phases == ["created", "started"] and opened.ends.empty()


@pytest.mark.parametrize("phase", ["created", "started"])
async def test_who_gives_up_a_start_does_not_take_the_sandbox_from_another(
    opened: Opened, probe: Environment, http: HttpClient, phase: str
) -> None:
    reached = asyncio.Event()
    spec = opened.spec(probe, "conformance-given-00001")
    given_up = asyncio.create_task(opened.provider.start(spec, lambda now: now == phase and reached.set()))
    other = asyncio.create_task(opened.start(probe, spec.id))
    await reached.wait()
    given_up.cancel()
    with pytest.raises(asyncio.CancelledError):
        await given_up
    started = await other
    assert (await healthy(http, started))["status"] == "ok"
    await http.forget(str(started.socket))
    assert opened.ends.empty()


async def test_who_gives_up_adopting_leaves_the_sandbox_to_who_started_it(
    opened: Opened, probe: Environment, http: HttpClient
) -> None:
    started = await opened.start(probe)
    adopting = asyncio.create_task(opened.start(probe, started.id))
    await asyncio.wait({adopting}, timeout=0)
    adopting.cancel()
    await asyncio.wait({adopting})
    assert (await healthy(http, started))["status"] == "ok"
    await http.forget(str(started.socket))


async def test_stop_ends_a_start_under_way(opened: Opened, write_environment: Callable[..., Environment]) -> None:
    environment = write_environment("hanging", "import time\ntime.sleep(600)", timeouts={"start": 60})
    await opened.provider.prepare(environment)
    begun = asyncio.Event()
    spec = opened.spec(environment)
    starting = asyncio.create_task(opened.provider.start(spec, lambda phase: phase == "started" and begun.set()))
    await begun.wait()
    began = time.monotonic()
    await opened.provider.stop(spec.id)
    with pytest.raises(StartFailed) as failed:
        await starting
    assert failed.value.ended.cause == "deleted"
    assert time.monotonic() - began < 30
    assert await opened.ids() == [] and not spec.directory.exists()


async def test_a_start_waits_for_a_stop_of_the_same_id(opened: Opened, probe: Environment, http: HttpClient) -> None:
    started = await opened.start(probe)
    _, again = await asyncio.gather(opened.provider.stop(started.id), opened.start(probe, started.id))
    assert (await healthy(http, again))["status"] == "ok"
    await http.forget(str(again.socket))
    assert await opened.ids() == [started.id] and opened.ends.empty()


async def test_several_start_at_once_and_do_not_meet(opened: Opened, probe: Environment) -> None:
    started = await asyncio.gather(*(opened.start(probe) for _ in range(4)))
    assert len({one.socket for one in started}) == 4
    assert await opened.ids() == sorted(one.id for one in started)


async def test_stop_removes_it_and_stopping_again_is_fine(opened: Opened, probe: Environment) -> None:
    started = await opened.start(probe)
    await asyncio.gather(opened.provider.stop(started.id), opened.provider.stop(started.id))
    assert await opened.ids() == []
    await opened.provider.stop(started.id)
    await opened.provider.stop("conformance-never-was")
    assert opened.ends.empty(), "stop is no end to report"


async def test_an_id_can_be_used_again_after_stop(opened: Opened, probe: Environment, http: HttpClient) -> None:
    started = await opened.start(probe)
    await opened.provider.stop(started.id)
    again = await opened.start(probe, started.id)
    assert (await healthy(http, again))["status"] == "ok"
    await http.forget(str(again.socket))


@pytest.mark.parametrize(
    ("server", "told", "exit_code"),
    [
        ("raise ValueError('the import went wrong')", "the import went wrong", None),
        ("import os\nprint('leaving', flush=True)\nos._exit(7)", "leaving", 7),
        ("import os, signal\nprint('dying', flush=True)\nos.kill(os.getpid(), signal.SIGKILL)", "dying", 137),
        ("x = 1", "0 ResourcesServers", None),
        ("def broken(:", "SyntaxError", None),
    ],
    ids=["raises", "exits", "is killed", "has no server", "is no Python"],
)
async def test_a_server_that_never_answers_fails_the_start_with_its_last_lines(
    opened: Opened, write_environment: Callable[..., Environment], server: str, told: str, exit_code: int | None
) -> None:
    environment = write_environment(f"broken-{uuid.uuid5(uuid.NAMESPACE_OID, server).hex[:6]}", server)
    with pytest.raises(StartFailed) as failed:
        await opened.start(environment)
    assert told in f"{failed.value.detail}\n{failed.value.ended.logs}"
    assert (failed.value.ended.cause, failed.value.ended.exit_code) == ("failed_to_start", exit_code)
    assert await opened.ids() == []


async def test_a_server_that_hangs_fails_the_start_after_its_time(
    opened: Opened, write_environment: Callable[..., Environment]
) -> None:
    server = "import time\nprint('waiting for godot', flush=True)\ntime.sleep(600)"
    environment = write_environment("hanging", server, timeouts={"start": 4})
    began = time.monotonic()
    with pytest.raises(StartFailed, match="4 s"):
        await opened.start(environment)
    assert time.monotonic() - began < 60
    assert await opened.ids() == []


async def test_a_cancelled_start_leaves_nothing(opened: Opened, write_environment: Callable[..., Environment]) -> None:
    environment = write_environment("hanging", "import time\ntime.sleep(600)", timeouts={"start": 60})
    await opened.provider.prepare(environment)
    begun = asyncio.Event()
    spec = opened.spec(environment)
    starting = asyncio.create_task(opened.provider.start(spec, lambda phase: phase == "started" and begun.set()))
    await begun.wait()
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert await opened.ids() == []


async def test_an_end_that_nobody_asked_for_is_reported_once_with_its_last_lines(
    opened: Opened, probe: Environment, http: HttpClient
) -> None:
    started = await opened.start(probe)
    await http.json("POST", "http://sandbox/reset", json={"task": {}}, socket=started.socket, timeout=10)
    with pytest.raises(Unavailable):
        await http.request(
            "POST", "http://sandbox/tools/crash", json={}, socket=started.socket, timeout=30, retry=False
        )
    async with asyncio.timeout(30):
        id, ended = await opened.ends.get()
    await http.forget(str(started.socket))
    assert (id, ended.cause, ended.exit_code) == (started.id, "exited", 3)
    assert "the probe crashes" in ended.logs
    await opened.provider.stop(started.id)
    assert opened.ends.empty()


async def test_logs_are_what_it_printed_last(opened: Opened, probe: Environment, http: HttpClient) -> None:
    started = await opened.start(probe)
    await http.json("POST", "http://sandbox/reset", json={"task": {}}, socket=started.socket, timeout=10)
    await http.forget(str(started.socket))
    assert "the probe was reset" in await opened.provider.logs(started.id)
    with pytest.raises(NotFound):
        await opened.provider.logs("conformance-never-was")


async def test_preparing_twice_at_once_gives_the_same_image(opened: Opened, probe: Environment) -> None:
    first, second = await asyncio.gather(opened.provider.prepare(probe), opened.provider.prepare(probe))
    assert first == second == (await opened.start(probe)).image


async def test_closing_twice_is_fine(opened: Opened) -> None:
    await opened.provider.close()
    await opened.provider.close()
    await opened.provider.open("conformance-reopened", lambda *_: None)
