"""What every sandbox must be, whichever provider starts it: exec, files, phases, two users, isolation."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import socket
import tarfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gymbox.embedded import EmbeddedController
from gymbox.environment import Environment
from gymbox.errors import Conflict, NotFound, Problem, SandboxEnded
from gymbox.sandbox_client import SandboxClient
from gymbox_sandbox.responses import Response
from gymbox_sandbox.wire import ExecRequest

ROW: dict[str, Any] = {"id": "one", "responses_create_params": {"input": "hi"}, "note": "for everyone"}


@pytest.fixture
async def sandbox(controller: EmbeddedController, probe: Environment) -> AsyncIterator[SandboxClient]:
    async with controller.sandbox(probe) as sandbox:
        await sandbox.reset(ROW)
        yield sandbox


@pytest.fixture
def isolated(provider: Any) -> None:
    """Skips where the provider says that it does not isolate."""
    if "WITHOUT ISOLATION" in getattr(provider, "isolation_note", ""):
        pytest.skip(provider.isolation_note)


async def text(sandbox: SandboxClient, command: str | list[str], **options: Any) -> str:
    result = await sandbox.exec(command, **options)
    assert result.exit_code == 0, result
    return result.stdout.strip()


async def test_a_tool_answers_and_keeps_its_state(sandbox: SandboxClient) -> None:
    assert (await sandbox.tools.call("add", {"by": 2})).output == "2"
    assert (await sandbox.tools.call("add", {"by": 3})).output == "5"
    assert "for everyone" in (await sandbox.tools.call("saw", {})).output


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("refuse", {}, "not today"),
        ("stumble", {}, "a bug"),
        ("add", {"by": "much"}, "by"),
        ("add", {"times": 2}, "times"),
        ("fly", {}, "fly"),
    ],
)
async def test_what_fails_in_a_tool_is_told_to_the_model(
    sandbox: SandboxClient, tool: str, arguments: dict[str, Any], told: str
) -> None:
    result = await sandbox.call_tool(tool, arguments)
    assert result.is_error and told in result.output
    assert (await sandbox.tools.call("add", {"by": 1})).output == "1"


async def test_exec_gives_output_and_exit_code(sandbox: SandboxClient) -> None:
    result = await sandbox.exec("echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code, result.signal) == ("out\n", "err\n", 3, None)


async def test_exec_takes_input_directory_and_variables(sandbox: SandboxClient) -> None:
    assert await text(sandbox, ["cat"], stdin="aGVsbG8=") == "hello"
    assert await text(sandbox, "pwd; echo $COLOUR", cwd="/tmp", env={"COLOUR": "green"}) == "/tmp\ngreen"


async def test_exec_is_byte_exact_and_marks_what_it_cuts(sandbox: SandboxClient) -> None:
    result = await sandbox.exec(["printf", "\\377\\000x"], encoding="base64")
    assert result.stdout == "/wB4"
    cut = await sandbox.exec("head -c 100000 /dev/zero | tr '\\0' a", output_limit=10)
    assert (cut.stdout, cut.stdout_bytes, cut.truncated) == ("a" * 10, 100_000, True)


async def test_a_timeout_kills_the_whole_tree_and_leaves_the_sandbox_usable(sandbox: SandboxClient) -> None:
    began = time.monotonic()
    result = await sandbox.exec("(setsid sleep 4242 &) ; trap '' TERM; sleep 4242", timeout=1)
    assert result.timed_out and time.monotonic() - began < 30
    assert await text(sandbox, "grep -l '42[4]2' /proc/[0-9]*/cmdline 2>/dev/null | wc -l") == "0"


async def test_exec_streams_as_it_goes(sandbox: SandboxClient) -> None:
    seen = []
    async with sandbox.exec_stream(ExecRequest(command="echo one; read line; echo $line", stdin_open=True)) as run:
        async for event in run.events():
            seen.append((event.name, event.output))
            if event.output == b"one\n":
                await run.write(b"two\n")
    assert [output for name, output in seen if name == "stdout"] == [b"one\n", b"two\n"]
    assert run.result is not None and run.result.exit_code == 0


async def test_jobs_shells_and_watches_work_and_end_with_verify(sandbox: SandboxClient) -> None:
    shell = await sandbox.shells.open("main")
    await shell.run("x=kept; cd /tmp")
    assert (await shell.run("echo $x $PWD")).stdout == "kept /tmp\n"
    await sandbox.jobs.start("job", "echo out; sleep 99")
    async with sandbox.watch(".") as changes:
        await sandbox.exec("touch made")
        assert (await anext(changes)).path == "made"
        async with sandbox.jobs.follow("job") as execution:
            events = execution.events()
            assert [(await anext(events)).name for _ in range(2)] == ["started", "stdout"]
            await sandbox.verify(ROW, Response())
            assert (await anext(events)).data["signal"] == 9
    assert "signal 9" in ((await sandbox.shells.list())[0].ended or "")


async def test_a_sparse_file_stays_sparse(sandbox: SandboxClient, tmp_path: Path) -> None:
    await sandbox.exec("truncate -s 20M holed; echo end >> holed")
    with (tmp_path / "tree").open("w+b") as file:
        assert await sandbox.save(".", file) == "tree"
        assert (tmp_path / "tree").stat().st_size < 1_000_000
        file.seek(0)
        await sandbox.put("copy", file, tree=True)
    assert await text(sandbox, "cmp holed copy/holed && expr $(stat -c %b copy/holed) '<' 1000") == "1"


async def test_files_go_in_and_out_byte_for_byte(sandbox: SandboxClient) -> None:
    content = bytes(range(256)) * 1000
    await sandbox.write_file("sub/data.bin", content, 0o750)
    assert await sandbox.read_file("sub/data.bin") == content
    assert await text(sandbox, "stat -c '%a %s' sub/data.bin") == "750 256000"
    with pytest.raises(NotFound):
        await sandbox.read_file("sub/none.bin")


async def test_a_tree_goes_in_and_out_as_tar(sandbox: SandboxClient) -> None:
    await sandbox.put("tree", tar_of("deep/er/a.txt", b"hi"), tree=True)
    assert await text(sandbox, "cat tree/deep/er/a.txt") == "hi"
    back = io.BytesIO()
    assert await sandbox.save("tree", back) == "tree"
    with tarfile.open(fileobj=back) as tar:
        assert any(name.endswith("deep/er/a.txt") for name in tar.getnames())


async def test_an_upload_cannot_leave_its_folder(sandbox: SandboxClient) -> None:
    with pytest.raises(Problem):
        await sandbox.put("tree", tar_of("../../escaped.txt", b"no"), tree=True)
    assert await text(sandbox, "find / -name escaped.txt 2>/dev/null | wc -l") == "0"


def tar_of(name: str, content: bytes) -> io.BytesIO:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        tar.addfile(member, io.BytesIO(content))
    packed.seek(0)
    return packed


async def test_the_agent_is_another_user_than_the_server(
    isolated: None, provider: Any, sandbox: SandboxClient
) -> None:
    if provider.name == "process" and provider._users is None:
        pytest.skip("started without root, one user has to do")
    server = json.loads((await sandbox.tools.call("server_is", {})).output)
    assert int(await text(sandbox, "id -u")) not in (0, server["uid"])
    secret = f"/proc/{server['pid']}"
    for path in ("environ", "maps", "mem"):
        assert (await sandbox.exec(f"head -c 1 {secret}/{path}")).exit_code != 0, path
    assert (await sandbox.exec(f"kill -0 {server['pid']}")).exit_code != 0
    assert "CapEff:\t0000000000000000" in await text(sandbox, "cat /proc/self/status")
    assert "NoNewPrivs:\t1" in await text(sandbox, "cat /proc/self/status")


async def test_the_agent_cannot_reach_the_server_s_socket(
    isolated: None, provider: Any, sandbox: SandboxClient
) -> None:
    if provider.name == "process" and provider._users is None:
        pytest.skip("started without root, one user has to do")
    program = (
        "import os, socket\n"
        "for folder, _, names in os.walk('/'):\n"
        "    for name in names:\n"
        "        if name.endswith('.sock'):\n"
        "            try: socket.socket(socket.AF_UNIX).connect(os.path.join(folder, name))\n"
        "            except OSError: continue\n"
        "            print('REACHED', folder, name)\n"
    )
    python = (await sandbox.exec("ls /opt/gymbox/venv/bin/python || which python3")).stdout.split()[0]
    result = await sandbox.exec([python, "-"], stdin=base64.b64encode(program.encode()).decode())
    assert result.exit_code == 0 and "REACHED" not in result.stdout


async def test_the_sandbox_has_no_network(isolated: None, sandbox: SandboxClient) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=5):
            pass  # the control: from outside it answers
        interfaces = await text(sandbox, "cut -d: -f1 /proc/net/dev | tail -n +3")
        assert interfaces.split() == ["lo"]
        assert (await sandbox.exec(["bash", "-c", f"exec 3<>/dev/tcp/127.0.0.1/{port}"], timeout=10)).exit_code != 0


async def test_the_system_cannot_be_written(isolated: None, sandbox: SandboxClient) -> None:
    for folder in ("/usr", "/etc", "/usr/local/bin", "/opt"):
        assert (await sandbox.exec(f"touch {folder}/planted")).exit_code != 0, folder
    await text(sandbox, "touch mine /tmp/mine")


async def test_verify_ends_tools_and_processes_and_is_done_once(sandbox: SandboxClient) -> None:
    await sandbox.tools.call("add", {"by": 4})
    await text(sandbox, "cp $(command -v sleep) left-behind; (setsid ./left-behind 600 >/dev/null 2>&1 &)")

    first = await sandbox.verify(ROW, Response())

    assert (first.reward, first.metrics["left_behind"]) == (4.0, 0.0)
    with pytest.raises(Conflict, match="verify has begun"):
        await sandbox.tools.call("add", {"by": 1})
    assert await sandbox.verify({**ROW, "other": 1}, Response()) == first


async def test_reset_is_for_one_task(sandbox: SandboxClient) -> None:
    await sandbox.reset(ROW)  # the same again: an answer may have been lost
    with pytest.raises(Conflict, match="one sandbox serves one task"):
        await sandbox.reset({**ROW, "id": "another"})


async def test_a_sandbox_that_died_says_why(sandbox: SandboxClient) -> None:
    with pytest.raises(SandboxEnded, match="exit"):
        await sandbox.tools.call("crash", {})


async def test_two_sandboxes_share_nothing(controller: EmbeddedController, probe: Environment) -> None:
    async with controller.sandbox(probe) as one, controller.sandbox(probe) as other:
        await asyncio.gather(one.reset(ROW), other.reset(ROW))
        await one.tools.call("add", {"by": 7})
        await one.write_file("mine.txt", b"mine")
        assert (await other.tools.call("add", {"by": 0})).output == "0"
        with pytest.raises(NotFound):
            await other.read_file("mine.txt")
