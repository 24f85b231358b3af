"""`gymbox sandbox` for what stays in the background: jobs, shells that stay, terminals to come back to, watches."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import sys
import termios

import pytest
from gymbox_sandbox.lifecycle import CreateSandbox

GYMBOX = (sys.executable, "-c", "from gymbox.cli import main; main()", "sandbox")


@pytest.fixture
async def gymbox(controller_url, token, client):
    """Starts `gymbox sandbox …` against the controller of this test, which has a sandbox s1. None outlives it."""
    await client.create(CreateSandbox(id="s1", environment="counter", lease=600))
    started = []

    async def start(name, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE):
        process = await asyncio.create_subprocess_exec(
            *(*GYMBOX, name, "--controller", controller_url, *arguments),
            stdin=stdin,
            stdout=stdout,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "GYMBOX_TOKEN": token},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
def run(gymbox):
    async def run(name, *arguments):
        process = await gymbox(name, *arguments)
        out, err = await process.communicate()
        return process.returncode, out.decode(), err.decode()

    return run


async def test_a_job_is_left_in_the_background_listed_followed_and_killed(run):
    script = "echo begun; echo wrong >&2; exit 3"
    assert await run("exec", "-d", "--name", "j1", "s1", "--", "sh", "-c", script) == (0, "j1\n", "")
    assert await run("attach", "s1", "j1") == (3, "begun\n", "wrong\n")
    code, name, _ = await run("exec", "-d", "s1", "sleep", "99")
    assert code == 0
    listed = (await run("jobs", "s1"))[1]
    assert "exited 3" in listed and "running" in listed and "sleep 99" in listed
    assert (await run("kill", "s1", name.strip()))[0] == 0
    views = json.loads((await run("jobs", "s1", "--json"))[1])
    assert [view["status"] for view in views] == ["ended", "ended"]
    await run("kill", "s1", "j1", "--forget")
    assert "forgotten" in (await run("attach", "s1", "j1"))[2]


async def test_a_shell_is_kept_between_commands(run):
    assert (await run("exec", "--shell", "w", "s1", "cd /tmp; x='a  b'"))[0] == 0
    code, out, err = await run("exec", "--shell", "w", "s1", 'echo "$PWD $x"; echo e >&2; exit 4')
    assert (code, out) == (4, "/tmp a  b\n")
    assert err.startswith("e\n")
    assert err.endswith("the shell w has ended, and its state is lost\n")


@pytest.mark.parametrize(
    ("options", "said"),
    [(("--shell", "w", "-i"), "no input"), (("--name", "x"), "--detach"), (("-d", "--name", "a b"), "is no id")],
)
async def test_options_that_exclude_one_another_are_told(run, options, said):
    code, _, err = await run("exec", *options, "s1", "true")
    assert code in (1, 2)
    assert said in err


async def test_exec_on_a_terminal_is_one(run):
    code, out, _ = await run("exec", "-t", "s1", "--", "sh", "-c", "tty; stty size")
    assert code == 0
    assert "/dev/pts/" in out and "24 80" in out


async def test_changes_are_printed(gymbox, run):
    process = await gymbox("watch", "s1")
    async with asyncio.timeout(60):
        lines = []
        while not lines or "made" not in lines[-1]:
            await run("exec", "s1", "--", "sh", "-c", "rm -rf made; mkdir made")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(0.5):
                    lines.append((await process.stdout.readline()).decode())
    assert lines[-1].split()[1] == "made/"
    process.terminate()
    await process.wait()


async def test_a_terminal_is_left_and_found_again_with_what_it_showed(gymbox):
    seen = []
    for typed, awaited in (("x=kept; echo $((40+2))\n", "42"), ("echo $x-$y; exit 6\n", "kept-typed")):
        with _terminal() as (ours, theirs):
            process = await gymbox("shell", "--name", "t1", "s1", stdin=theirs, stdout=theirs)
            os.close(theirs)
            shown = b""
            async with asyncio.timeout(60):
                while b"$ " not in shown and b"# " not in shown:
                    shown += await _read(ours)
                os.write(ours, typed.encode())
                while awaited not in shown.decode(errors="replace").replace(typed, ""):
                    shown += await _read(ours)
                if not seen:
                    os.write(ours, b"y=typed\n\x1d")  # what precedes it in one go is typed, too
                code = await process.wait()
        seen.append((code, shown.decode(errors="replace"), (await process.stderr.read()).decode()))
    assert [code for code, _, _ in seen] == [0, 6]
    assert "left running" in seen[0][2]
    assert "42" in seen[1][1]


@contextlib.contextmanager
def _terminal():
    ours, theirs = pty.openpty()
    try:
        os.set_blocking(ours, False)
        termios.tcsetwinsize(ours, (24, 80))
        yield ours, theirs
    finally:
        os.close(ours)


async def _read(descriptor):
    readable = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_reader(descriptor, readable.set)
    try:
        await readable.wait()
        return os.read(descriptor, 65536)
    except OSError:
        await asyncio.sleep(0.05)
        return b""
    finally:
        loop.remove_reader(descriptor)
