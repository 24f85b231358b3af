"""What goes wrong with a container, and what the caller is told, at once."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

import pytest
from gymbox.errors import ErrorKind, SandboxEnded, StartFailed
from gymbox.providers import StartSpec
from gymbox.providers.docker import DockerProvider
from gymbox_sandbox.options import User

MINIMAL = """
from gymbox_sandbox import ResourcesServer, tool

class Minimal(ResourcesServer):
    async def verify(self, task, response):
        return 0.0
"""
EAT = "blocks = []\nwhile True:\n    blocks.append(bytearray(b'x') * 10_000_000)\n"


class Running(DockerProvider):
    """A provider whose containers run something else than the sandbox's server."""

    what: list[str]

    def container(self, spec: StartSpec, image: str, controller_id: str, server: User) -> dict[str, Any]:
        return {**super().container(spec, image, controller_id, server), "Entrypoint": self.what}


async def test_a_server_that_fails_to_import_ends_the_start_with_its_traceback(
    sandboxes: Any, environment: Any, engine: Any
) -> None:
    broken = environment(server="raise RuntimeError('the author made a mistake')")
    with pytest.raises(StartFailed, match="the author made a mistake") as raised:
        await sandboxes.start(broken)
    assert "Traceback" in raised.value.ended.logs
    assert await sandboxes.provider.list() == []


async def test_a_container_that_ends_before_it_is_ready_ends_the_start_at_once_with_its_last_lines(
    make_sandboxes: Any, environment: Any
) -> None:
    async with make_sandboxes(Running(what=["sh", "-c", "echo last words; exit 3"])) as sandboxes:
        plain = environment(timeouts={"start": 60})
        await sandboxes.provider.prepare(plain)
        began = time.monotonic()
        with pytest.raises(StartFailed) as raised:
            await sandboxes.start(plain)
    assert time.monotonic() - began < 20
    ended = raised.value.ended
    assert (ended.cause, ended.exit_code, ended.logs.strip()) == ("failed_to_start", 3, "last words")
    assert raised.value.rollout_kind is ErrorKind.SANDBOX_START_FAILED


async def test_of_an_endless_line_only_the_end_is_kept(make_sandboxes: Any, environment: Any) -> None:
    endless = "head -c 100000 /dev/zero | tr '\\0' x; echo end; exit 3"
    async with make_sandboxes(Running(what=["sh", "-c", endless])) as sandboxes:
        with pytest.raises(StartFailed) as raised:
            await sandboxes.start(environment())
    assert raised.value.ended.logs.endswith("xend") and len(raised.value.ended.logs) <= 8192


async def test_a_server_that_never_answers_is_given_up_at_the_deadline(make_sandboxes: Any, environment: Any) -> None:
    async with make_sandboxes(Running(what=["sh", "-c", "echo still here; sleep 600"])) as sandboxes:
        with pytest.raises(StartFailed, match="did not answer in 2 s") as raised:
            await sandboxes.start(environment(timeouts={"start": 2}))
        assert raised.value.ended.logs.strip() == "still here"
        assert await sandboxes.provider.list() == []


async def test_what_the_engine_refuses_is_told_in_its_words(sandboxes: Any, environment: Any) -> None:
    with pytest.raises(StartFailed, match=r"refused to create x: Invalid container name"):
        await sandboxes.start(environment(), "x")


async def test_running_out_of_memory_while_starting_is_told_as_that(sandboxes: Any, environment: Any) -> None:
    hungry = environment(server=EAT, limits={"memory_mb": 96})
    with pytest.raises(StartFailed, match="96 MiB") as raised:
        await sandboxes.start(hungry)
    assert raised.value.ended.cause == "oom_killed"
    assert raised.value.rollout_kind is ErrorKind.OOM_KILLED


async def test_running_out_of_memory_in_a_tool_ends_the_sandbox_as_that(
    sandboxes: Any, environment: Any, connected: Any
) -> None:
    eat = "".join(f"        {line}\n" for line in EAT.splitlines())
    tool = f"\n    @tool\n    def eat(self) -> int:\n        '''Eat.'''\n{eat}        return 1\n"
    started = await sandboxes.start(environment(server=MINIMAL + tool, limits={"memory_mb": 128}))
    async with connected(started) as session:
        await session.post("/reset", json={"task": {}})
        with pytest.raises(Exception, match=r"(?i)disconnected|reset|payload"):
            await session.post("/tools/eat", json={})
    id, ended = await sandboxes.ended()
    assert (id, ended.cause) == (started.id, "oom_killed")
    assert SandboxEnded(ended).rollout_kind is ErrorKind.OOM_KILLED


async def test_a_command_that_runs_out_of_memory_does_not_end_the_sandbox(
    sandboxes: Any, environment: Any, run_in: Any
) -> None:
    started = await sandboxes.start(environment(limits={"memory_mb": 128}))
    done = await run_in(started, ["python3", "-c", EAT])
    assert done["signal"] == signal.SIGKILL or done["exit_code"] not in (0, None)
    assert (await run_in(started, "echo alive"))["stdout"] == "alive\n"
    assert sandboxes.ends.empty()


async def test_a_killed_container_is_told_once_with_its_cause(sandboxes: Any, environment: Any, engine: Any) -> None:
    started = await sandboxes.start(environment())
    os.kill(engine.containers.get(started.id).attrs["State"]["Pid"], signal.SIGKILL)
    id, ended = await sandboxes.ended()
    assert (id, ended.cause, ended.exit_code) == (started.id, "killed", 137)
    await sandboxes.provider.stop(started.id)
    assert sandboxes.ends.empty()


async def test_a_container_that_someone_else_removed_is_told(sandboxes: Any, environment: Any, engine: Any) -> None:
    started = await sandboxes.start(environment())
    engine.containers.get(started.id).remove(force=True)
    id, ended = await sandboxes.ended()
    assert (id, ended.cause) == (started.id, "killed")


async def test_a_server_that_ends_by_itself_is_told_with_its_exit_code_and_last_lines(
    sandboxes: Any, environment: Any, connected: Any
) -> None:
    tool = "\n    @tool\n    async def leave(self) -> int:\n        '''Leave.'''\n        import os\n"
    tool += "        print('I am off', flush=True)\n        os._exit(5)\n"
    started = await sandboxes.start(environment(server=MINIMAL + tool))
    async with connected(started) as session:
        await session.post("/reset", json={"task": {}})
        with pytest.raises(Exception, match=r"(?i)disconnected|reset|payload"):
            await session.post("/tools/leave", json={})
    _, ended = await sandboxes.ended()
    assert (ended.cause, ended.exit_code) == ("exited", 5)
    assert "I am off" in ended.logs


async def test_an_adopted_sandbox_is_watched_too(
    sandboxes: Any, environment: Any, engine: Any, make_sandboxes: Any
) -> None:
    started = await sandboxes.start(environment())
    async with make_sandboxes(controller_id=sandboxes.controller_id) as restarted:
        await restarted.provider.list()
        engine.containers.get(started.id).kill()
        assert (await restarted.ended())[0] == started.id


async def test_two_starts_of_which_one_fails_do_not_disturb_each_other(sandboxes: Any, environment: Any) -> None:
    broken = environment(server="raise RuntimeError('broken')")
    good, bad = await asyncio.gather(sandboxes.start(environment()), sandboxes.start(broken), return_exceptions=True)
    assert isinstance(bad, StartFailed)
    assert [each.id for each in await sandboxes.provider.list()] == [good.id]


async def test_an_engine_that_comes_back_ends_no_start_in_flight(sandboxes: Any, environment: Any) -> None:
    plain = environment()
    await sandboxes.provider.prepare(plain)
    watch = sandboxes.provider._worker.watch
    started = await sandboxes.provider.start(
        sandboxes.spec(plain), lambda phase: phase == "created" and watch.compare_soon()
    )
    assert [each.id for each in await sandboxes.provider.list()] == [started.id]
    assert sandboxes.ends.empty()


async def test_an_end_that_was_looked_into_while_it_was_stopped_is_no_news(sandboxes: Any, environment: Any) -> None:
    started = await sandboxes.start(environment())
    watch = sandboxes.provider._worker.watch
    watch.ended(started.id, watch.containers[started.id], 137)
    reports = set(watch._tasks)
    await asyncio.gather(sandboxes.provider.stop(started.id), *reports)
    assert sandboxes.ends.empty()
