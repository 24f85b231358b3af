"""Sandboxes for Python programs: commands, files, one controller for all, and others' controllers."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gymbox import Sandbox
from gymbox.client import ControllerClient
from gymbox.environment import Environment
from gymbox.errors import ConfigError, Conflict, Forbidden, Invalid, NotFound, Unavailable
from gymbox.http import HttpClient
from gymbox.providers.docker import DockerProvider
from gymbox.providers.process import ProcessProvider
from gymbox.runs.places import Places
from gymbox.sdk import host
from pydantic import PrivateAttr


@pytest.fixture
async def box(places: Places) -> AsyncIterator[Sandbox]:
    async with Sandbox(provider="process", places=places, env={"KEPT": "1"}, timeout=20) as found:
        yield found


async def test_a_command_tells_how_it_ended_and_what_it_printed(box: Sandbox) -> None:
    done = await box.exec("echo $KEPT$MORE; cat; echo oh >&2; exit 3", stdin="in", env={"MORE": "2"})
    assert (done.exit_code, done.stdout, done.stderr) == (3, "12\nin", "oh\n")
    assert (await box.exec(["printf", "%s", "$KEPT"])).stdout == "$KEPT"
    assert (await box.exec("sleep 60", timeout=0.2)).timed_out


async def test_input_and_output_may_be_larger_than_a_request(box: Sandbox) -> None:
    done = await box.exec("cat; printf end >&2", stdin=b"x" * 9_000_000, output_limit=8_500_000)
    assert done.stdout == "x" * 8_500_000 and done.truncated and done.stdout_bytes == 9_000_000
    assert done.stderr == "end"
    assert (await box.exec("head -c 3", stdin="y" * 3_000_000)).stdout == "yyy"  # which leaves the rest unread


async def test_a_command_is_followed_and_fed_as_it_runs(box: Sandbox) -> None:
    heard = []
    async with box.exec_stream("read line; echo got $line; cat", stdin="a\n", stdin_open=True) as execution:
        async for event in execution.events():
            heard.append((event.name, event.output))
            if event.output == b"got a\n":
                await execution.write(b"more")
                await execution.close_stdin()
    assert heard[0][0] == "started" and heard[1:3] == [("stdout", b"got a\n"), ("stdout", b"more")]
    assert execution.result is not None and execution.result.exit_code == 0


async def test_wrong_arguments_of_a_command_are_told(box: Sandbox) -> None:
    with pytest.raises(Invalid, match="timeout"):
        await box.exec("true", timeout=0)
    with pytest.raises(Invalid, match="nowhere"):
        await box.exec("true", cwd="nowhere")


async def test_files_and_trees_travel_both_ways(box: Sandbox, tmp_path: Path) -> None:
    await box.write_file("deep/in/it.txt", "wörd", 0o600)
    assert await box.read_text("deep/in/it.txt") == "wörd"
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    (source / "inner" / "run.sh").write_text("echo ran\n")
    (source / "inner" / "run.sh").chmod(0o755)
    await box.upload(source, "tree")
    await box.upload(source / "inner" / "run.sh", "one.sh")
    assert (await box.exec("tree/inner/run.sh && ./one.sh")).stdout == "ran\nran\n"
    await box.download("tree", tmp_path / "back")
    await box.download("one.sh", tmp_path / "there" / "one.sh")
    assert (tmp_path / "back" / "inner" / "run.sh").stat().st_mode & 0o777 == 0o755
    assert (tmp_path / "there" / "one.sh").read_text() == "echo ran\n"


async def test_what_is_wrong_with_a_file_is_typed(box: Sandbox, tmp_path: Path) -> None:
    await box.write_file("some", "text")
    with pytest.raises(NotFound):
        await box.read_file("none")
    with pytest.raises(Invalid) as large:
        await box.read_file("some", most=3)
    assert large.value.extra["cause"] == "too_large" and await box.read_file("some", most=4) == b"text"
    with pytest.raises(ConfigError, match="cannot read"):
        await box.upload(tmp_path / "none", "x")
    with pytest.raises(ConfigError, match="cannot write"):
        await box.download("some", "/proc/none/x")
    await box.exec("mkdir d; chmod 500 d")
    with pytest.raises(Forbidden):
        await box.write_file("d/x", "y")


async def test_a_file_that_was_made_read_only_is_left_as_it_is(box: Sandbox) -> None:
    await box.exec("echo mine > kept; chmod 444 kept; ln -s kept link")
    with pytest.raises(Forbidden, match="kept"):
        await box.write_file("kept", "yours")
    await box.write_file("link", "yours")  # takes the link's place, not what it leads to
    assert (await box.exec("cat kept link")).stdout == "mine\nyours"


async def test_paths_count_from_the_working_directory(places: Places) -> None:
    async with Sandbox(provider="process", places=places, cwd="work") as box:
        await box.write_file("../top", "1")
        await box.write_file("here", "2")
        assert (await box.exec("cat ../top here")).stdout == "12"
        assert (await box.exec("cat top", cwd="..")).stdout == "1"


async def test_sandboxes_share_a_controller_that_ends_with_the_last(places: Places) -> None:
    provider = ProcessProvider()
    async with HttpClient() as http:
        async with Sandbox(provider=provider, places=places) as one:
            async with Sandbox(provider=provider, places=places) as two:
                assert one.controller_url == two.controller_url and one.id != two.id
                client = ControllerClient(one.controller_url, places.token, http)
                found = await client.sandboxes(environment="plain")
                assert {view.id for view in found} == {one.id, two.id}
                assert (await client.environments())[0].name == "plain"
                with pytest.raises(NotFound, match="no environment 'other'"):
                    await client.environment("other")
            assert (await one.exec("true")).exit_code == 0
        with pytest.raises(Unavailable):
            await client.sandboxes()
    assert not host._HOSTS[asyncio.get_running_loop()]


async def test_a_host_keeps_the_controller_between_sandboxes(places: Places) -> None:
    urls = set()
    async with Sandbox.host("process", places=places):
        for _ in range(2):
            async with Sandbox(provider="process", places=places) as box:
                urls.add(box.controller_url)
    assert len(urls) == 1


async def test_many_may_come_and_go_at_once_and_be_cancelled(places: Places, state_folder: Path) -> None:
    async def use(number: int) -> str:
        async with Sandbox(provider="process", places=places) as box:
            return (await box.exec(f"echo {number}; sleep {600 if number % 3 == 0 else 0}", timeout=600)).stdout

    tasks = [asyncio.create_task(use(number)) for number in range(9)]
    short = [number for number in range(9) if number % 3]
    _, late = await asyncio.wait([tasks[number] for number in short], timeout=60)
    for task in (*tasks[::3], *late):
        task.cancel()
    ended = await asyncio.gather(*tasks, return_exceptions=True)
    assert [ended[number] for number in short] == [f"{number}\n" for number in short]
    assert [type(each) for each in ended[::3]] == [asyncio.CancelledError] * 3
    assert not host._HOSTS[asyncio.get_running_loop()]
    assert not [name for _, _, names in os.walk(state_folder) for name in names if name.endswith(".sock")]


async def test_a_sandbox_may_be_of_an_environment_with_its_tools(places: Places, row: dict[str, Any]) -> None:
    async with Sandbox(environment="counter", provider="process", places=places) as box:
        with pytest.raises(Conflict, match="reset comes first"):
            await box.client.tools.call("increment_counter", {"count": 2})
        await box.client.reset({name: value for name, value in row.items() if name != "verifier_metadata"})
        assert box.client.tools.definitions and (await box.exec("pwd")).exit_code == 0


class SlowToPrepare(ProcessProvider):
    """As one that builds an image, until that was said."""

    _said: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)

    async def prepare(self, environment: Environment) -> str | None:
        await self._said.wait()
        return await super().prepare(environment)


async def test_who_waits_for_an_image_is_told_so_once(places: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    provider, heard = SlowToPrepare(), []

    class Hearing(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            heard.append((record.levelname, record.getMessage()))
            provider._said.set()

    async def use() -> None:
        async with Sandbox(provider=provider, places=places) as box:
            assert (await box.exec("true")).exit_code == 0

    monkeypatch.setattr(host, "MOMENT", 0)
    monkeypatch.setattr(host.log, "handlers", [Hearing()])
    async with asyncio.timeout(60):
        await asyncio.gather(use(), use())
    assert heard == [("WARNING", "plain: building images; the first time, this takes minutes")]


def test_a_program_is_warned_once_what_isolation_processes_lack(places: Places) -> None:
    program = f"""
from pathlib import PosixPath
from gymbox import SyncSandbox
from gymbox.runs.places import Places
for _ in range(2):
    with SyncSandbox(provider="process", places={places!r}) as box:
        print(box.exec("echo hello").stdout, end="")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "hello\nhello\n"
    assert done.stderr.startswith("gymbox: warning: process provider") and done.stderr.count("\n") == 1


async def test_a_sandbox_is_one_at_a_time(places: Places) -> None:
    box = Sandbox(provider="process", places=places)
    async with box:
        first = box.id
        with pytest.raises(RuntimeError, match="open already"):
            await box.__aenter__()
        assert (await box.exec("true")).exit_code == 0
    async with box:
        assert box.id != first


async def test_a_provider_that_does_not_answer_is_told_on_entering_and_leaves_no_host(places: Places) -> None:
    with pytest.raises(Unavailable):
        async with Sandbox(provider=DockerProvider(host="unix:///nowhere.sock"), places=places):
            raise AssertionError("unreachable")
    assert not host._HOSTS[asyncio.get_running_loop()]


async def test_a_controller_elsewhere_makes_sandboxes_of_its_environments(
    controller_url: str, token: str, places: Places, client: ControllerClient
) -> None:
    async with Sandbox(environment="counter", controller=controller_url, token=token) as box:
        assert (await box.exec("cat", stdin="through the proxy")).stdout == "through the proxy"
        assert (await box.exec("wc -c", stdin=b"1" * 2_000_000)).stdout.strip() == "2000000"
        await box.write_file("a", b"b")
        assert await box.read_file("a") == b"b" and box.controller_url == controller_url
        assert [view.id for view in await client.sandboxes(status="ready")] == [box.id]
    assert await client.sandboxes(status="ready") == []
    with pytest.raises(ConfigError, match="has no environment 'countr'; did you mean 'counter'"):
        async with Sandbox(environment="countr", controller=controller_url, places=places):
            raise AssertionError("unreachable")
    with pytest.raises(ConfigError, match="refuses"):
        async with Sandbox(environment="counter", controller=controller_url, token="wrong"):
            raise AssertionError("unreachable")
