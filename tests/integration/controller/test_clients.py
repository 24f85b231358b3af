"""A sandbox as rollouts use it: across HTTP through the proxy, and straight from the controller's own process."""

from __future__ import annotations

import asyncio
import io
import os
import signal
import tarfile
import time
from pathlib import Path
from typing import Any

import pytest
from gymbox.client import ControllerClient
from gymbox.controller.state import APPEARS
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog, Environment
from gymbox.errors import (
    ErrorKind,
    NotFound,
    RolloutError,
    RolloutFailure,
    SandboxEnded,
    Stage,
    StartFailed,
    Unavailable,
)
from gymbox.providers.process import ProcessProvider
from gymbox_sandbox.lifecycle import CreateSandbox
from gymbox_sandbox.responses import Response
from gymbox_sandbox.wire import ExecRequest

ROOT = Path(__file__).parents[3]


@pytest.fixture
def own_environments(state_folder: Path) -> Path:
    """Where a test may put environments of its own; the controller finds them."""
    folder = state_folder / "environments"
    folder.mkdir()
    folder.chmod(0o755)
    return folder


@pytest.fixture
def catalog(own_environments: Path) -> Catalog:
    return Catalog([own_environments, ROOT / "environments"])


@pytest.fixture(params=["http", "embedded"])
def sandboxes(request, client: ControllerClient, controller: EmbeddedController) -> Any:
    """Both ways to a sandbox keep the same contract."""
    return client if request.param == "http" else controller


async def test_a_task_goes_all_the_way(sandboxes, counter, row, client):
    async with sandboxes.sandbox(counter, id="rollout-1") as sandbox:
        await sandbox.reset(counter.public(row))
        names = [definition["name"] for definition in sandbox.tools.definitions]
        result = await sandbox.tools.call("increment_counter", {"count": row["expected_count"] - row["initial_count"]})
        verdict = await sandbox.verify(counter.for_verify(row), Response())

        assert sandbox.id == "rollout-1"
        assert names == ["increment_counter", "get_counter_value"]
        assert (result.output, result.is_error) == ('{"success":true}', False)
        assert verdict.reward == 1.0
        assert (await sandbox.verify(counter.for_verify(row), Response())) == verdict
    assert (await client.get("rollout-1")).ended.cause == "deleted"


async def test_wrong_arguments_and_unknown_tools_are_told_to_the_model(sandboxes, counter, row):
    async with sandboxes.sandbox(counter) as sandbox:
        await sandbox.reset(counter.public(row))

        assert (await sandbox.tools.call("increment_counter", {"count": "many"})).is_error
        assert "increment_counter" in (await sandbox.tools.call("nope", {})).output


async def test_a_rollout_may_be_done_again_under_its_id(sandboxes, counter):
    async with sandboxes.sandbox(counter, id="r1") as first:
        pass
    async with sandboxes.sandbox(counter, id="r1") as second:
        assert first.id == "r1"
        assert second.id.startswith("r1.")


async def test_it_is_deleted_however_the_block_is_left(sandboxes, counter, client):
    with pytest.raises(ZeroDivisionError):
        async with sandboxes.sandbox(counter, id="r1"):
            1 / 0  # noqa: B018

    inside = asyncio.Event()

    async def hold() -> None:
        async with sandboxes.sandbox(counter, id="r2"):
            inside.set()
            await asyncio.Event().wait()

    holding = asyncio.create_task(hold())
    await inside.wait()
    holding.cancel()
    with pytest.raises(asyncio.CancelledError):
        await holding

    assert {(await client.get(id)).ended.cause for id in ("r1", "r2")} == {"deleted"}


async def test_a_sandbox_that_is_killed_says_so(sandboxes, counter, row, client):
    async with sandboxes.sandbox(counter) as sandbox:
        await sandbox.reset(counter.public(row))
        await client.delete(sandbox.id)
        with pytest.raises(SandboxEnded) as ended:
            await sandbox.tools.call("get_counter_value", {})

    assert ended.value.ended.cause == "deleted"
    assert RolloutError.at(Stage.AGENT, ended.value).kind is ErrorKind.SANDBOX_LOST


async def test_commands_run_with_their_output_and_exit_code(sandboxes, counter):
    async with sandboxes.sandbox(counter) as sandbox:
        result = await sandbox.exec("echo out; echo err >&2; exit 3")
        slow = await sandbox.exec(["sleep", "60"], timeout=0.2)

    assert (result.exit_code, result.stdout, result.stderr) == (3, "out\n", "err\n")
    assert slow.timed_out


async def test_a_streamed_command_can_be_talked_to(sandboxes, counter):
    async with sandboxes.sandbox(counter) as sandbox:
        request = ExecRequest(command="while read line; do echo got $line; done; exit 5", stdin_open=True, stream=True)
        output = b""
        async with sandbox.exec_stream(request) as execution:
            async for event in execution.events():
                if event.name == "started":
                    await execution.write(b"one\n")
                    await execution.close_stdin()
                elif event.name == "stdout":
                    output += event.output

        assert output == b"got one\n"
        assert execution.result.exit_code == 5


async def test_a_streamed_command_can_be_signalled_and_its_terminal_resized(sandboxes, counter):
    async with sandboxes.sandbox(counter) as sandbox:
        request = ExecRequest.model_validate(
            {"command": "echo up; sleep 60", "stream": True, "pty": {"rows": 10, "columns": 20}}
        )
        async with sandbox.exec_stream(request) as execution:
            async for event in execution.events():
                if event.name == "stdout":
                    await execution.resize(33, 77)
                    await execution.signal("SIGKILL")

        assert execution.result.signal == signal.SIGKILL


async def test_files_and_trees_go_in_and_come_out(sandboxes, counter, tmp_path):
    tar = io.BytesIO()
    (tmp_path / "a.txt").write_text("A")
    with tarfile.open(fileobj=tar, mode="w") as archive:
        archive.add(tmp_path / "a.txt", arcname="sub/a.txt")
    tar.seek(0)
    async with sandboxes.sandbox(counter) as sandbox:
        await sandbox.write_file("run.sh", b"echo hi", mode=0o755)
        await sandbox.put("tree", tar, tree=True)
        back = io.BytesIO()

        assert await sandbox.read_file("run.sh") == b"echo hi"
        assert (await sandbox.exec("./run.sh && cat tree/sub/a.txt")).stdout == "hi\nA"
        assert await sandbox.save("tree", back) == "tree"
        with tarfile.open(fileobj=back) as archive:
            assert "sub/a.txt" in archive.getnames()
        assert await sandbox.save("run.sh", io.BytesIO()) == "file"
        with pytest.raises(NotFound):
            await sandbox.read_file("missing")


async def test_who_attaches_to_a_sandbox_works_in_it(client, counter):
    async with client.sandbox(counter, id="s1"):
        sandbox = await client.attach("s1")
        assert (await sandbox.exec("echo hi")).stdout == "hi\n"
    with pytest.raises(SandboxEnded):
        await client.attach("s1")


# --- environments made for these tests


def environment(folder: Path, name: str, manifest: str, server: str) -> Environment:
    (folder / name).mkdir()
    (folder / name).chmod(0o755)
    (folder / name / "environment.yaml").write_text(f"description: for tests\n{manifest}")
    (folder / name / "server.py").write_text(server)
    return Environment.load(folder / name)


FRESH = """
from gymbox_sandbox import ResourcesServer

class Fresh(ResourcesServer):
    async def reset(self, task):
        self.start = task.start

    async def verify(self, task, response):
        result = await self.exec("cat answer.txt folder/part.txt; ls")
        return result.stdout.startswith("42") and "leftover" not in result.stdout and self.start == 1
"""


async def test_a_fresh_verify_sees_only_the_artifacts(sandboxes, own_environments):
    manifest = "verify: fresh\nartifacts: [answer.txt, folder, missing.txt]\n"
    fresh = environment(own_environments, "fresh", manifest, FRESH)
    async with sandboxes.sandbox(fresh) as sandbox:
        await sandbox.reset({"start": 1})
        await sandbox.exec("echo 42 > answer.txt; mkdir folder; echo x > folder/part.txt; touch leftover")
        verdict = await sandbox.verify({"start": 1}, Response())

    assert verdict.reward == 1.0


KEPT = """
from gymbox_sandbox import ResourcesServer


class Kept(ResourcesServer):
    async def verify(self, task, response):
        return len((await self.exec("cat answer.txt")).stdout)
"""


@pytest.mark.parametrize("verify", ["fresh", "shared"])
async def test_artifacts_are_handed_over_before_verify_and_score_alike_elsewhere(
    sandboxes, own_environments, tmp_path, verify
):
    manifest = f"verify: {verify}\nreverify: artifacts\nartifacts: ['*.txt']\n"
    kept = environment(own_environments, "kept", manifest, KEPT)

    async def keep(file: Any) -> None:
        (tmp_path / "kept.tar").write_bytes(file.read())

    async with sandboxes.sandbox(kept) as sandbox:
        await sandbox.reset({})
        await sandbox.exec("printf 12345 > answer.txt; touch leftover; ln -s /etc/passwd out.txt; mkfifo pipe.txt")
        assert (await sandbox.verify({}, Response(), keep=keep)).reward == 5.0
    with tarfile.open(tmp_path / "kept.tar") as archive:
        assert archive.getnames() == ["answer.txt"]
    async with sandboxes.sandbox(kept) as sandbox:
        await sandbox.reset({})
        with (tmp_path / "kept.tar").open("rb") as file:
            assert (await sandbox.verify({}, Response(), artifacts=file)).reward == 5.0


async def test_an_agent_that_closes_files_to_itself_is_scored_without_them(sandboxes, own_environments):
    fresh = environment(own_environments, "closed", "verify: fresh\nartifacts: ['*.txt']\n", KEPT)
    rewards = {"mkdir other; chmod 000 other": 5.0, "chmod 000 answer.txt": 0.0, "chmod 000 .": 0.0}
    for command, reward in rewards.items():
        async with sandboxes.sandbox(fresh) as sandbox:
            await sandbox.reset({})
            await sandbox.exec(f"printf 12345 > answer.txt; {command}")
            assert (await sandbox.verify({}, Response())).reward == reward


async def test_artifacts_beyond_their_limits_are_not_scored_and_where_they_do_not_count_not_kept(
    sandboxes, own_environments, caplog
):
    limits = "artifacts: ['*.txt']\nartifact_limits: {megabytes: 1, files: 3}\n"
    fresh = environment(own_environments, "strict", f"verify: fresh\n{limits}", KEPT)
    shared = environment(own_environments, "lenient", f"reverify: artifacts\n{limits}", KEPT)
    handed = []

    async def keep(file: Any) -> None:
        handed.append(file)

    for command, told in (
        ("head -c 2000000 /dev/zero > big.txt", "1 MB"),
        ("truncate -s 1T sparse.txt", "1 MB"),
        ("touch 1.txt 2.txt 3.txt 4.txt", "3 files"),
    ):
        async with sandboxes.sandbox(fresh) as sandbox:
            await sandbox.reset({})
            await sandbox.exec(command)
            with pytest.raises(RolloutFailure, match=told) as failed:
                await sandbox.verify({}, Response())
            assert failed.value.rollout_kind is ErrorKind.ARTIFACTS_TOO_LARGE
        async with sandboxes.sandbox(shared) as sandbox:
            await sandbox.reset({})
            await sandbox.exec(command)
            assert (await sandbox.verify({}, Response(), keep=keep)).reward == 0.0
        assert f"not kept: the artifacts to be scored are more than {told}" in caplog.text
    assert handed == []


async def test_a_server_that_does_not_load_fails_its_start_with_the_traceback(sandboxes, own_environments):
    broken = environment(own_environments, "broken", "", "import there_is_no_such_module\n")
    with pytest.raises(StartFailed) as failed:
        async with sandboxes.sandbox(broken):
            pass

    error = RolloutError.at(Stage.PROVISION, failed.value)
    assert error.kind is ErrorKind.SANDBOX_START_FAILED
    assert "there_is_no_such_module" in error.logs + error.detail


async def test_tasks_share_a_server_where_their_environment_allows_it(
    sandboxes, controller, counter, row, own_environments
):
    shared = environment(own_environments, "shared", "sessions: 16\n", (counter.folder / "server.py").read_text())

    async def count(by: int) -> str:
        async with sandboxes.sandbox(shared) as sandbox:
            await sandbox.reset({**counter.public(row), "initial_count": 0})
            await sandbox.tools.call("increment_counter", {"count": by})
            return str((await sandbox.tools.call("get_counter_value", {})).output)

    assert await asyncio.gather(*(count(n) for n in range(16))) == [f'{{"count":{n}}}' for n in range(16)]
    assert controller.sandboxes.containers == 1


async def test_a_caller_that_vanished_leaves_its_sandbox_to_the_lease(client, controller_url, token, http):
    await client.create(CreateSandbox(id="s1", environment="counter", lease=2))

    assert (await client.get("s1", wait_ended=30)).ended.cause == "expired"


async def test_a_block_that_lasts_longer_than_the_lease_keeps_its_sandbox(controller_url, token, http, counter):
    client = ControllerClient(controller_url, token, http, lease=0.6)
    async with client.sandbox(counter) as sandbox:
        view = await client.get(sandbox.id, wait_ended=1.5)
        assert view.ended is None


async def test_a_controller_that_does_not_answer_is_unavailable(http, counter, token):
    client = ControllerClient("http://127.0.0.1:9", token, http)
    with pytest.raises(Unavailable):
        async with client.sandbox(counter):
            pass


async def test_a_second_start_removes_what_a_killed_run_left(state_folder, token, catalog, http, counter):
    async with EmbeddedController(ProcessProvider(), catalog, state_folder, token, http):
        leftover = state_folder / "run-dead"
        leftover.mkdir()
    async with EmbeddedController(ProcessProvider(), catalog, state_folder, token, http):
        # kept for a while, since an engine may still make what the killed run had asked it for
        long_ago = time.time() - APPEARS - 1
        os.utime(leftover / "swept", (long_ago, long_ago))
    async with EmbeddedController(ProcessProvider(), catalog, state_folder, token, http):
        assert not leftover.exists()
        assert any(name.startswith("run-") for name in os.listdir(state_folder))  # this one's own


async def test_to_leave_an_embedded_sandbox_never_raises(controller, counter, monkeypatch, caplog):
    async def broken(id: str) -> None:
        raise OSError("a bug")

    async with controller.sandbox(counter):
        monkeypatch.setattr(controller.sandboxes, "delete", broken)

    assert "cannot delete sandbox" in caplog.text
