"""`gymbox sandbox`, as a command, against a running controller."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import pty
import struct
import sys
import termios
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gymbox.cli.controllers import ask, controller_url
from gymbox.cli.terminals import exit_code, terminal_size
from gymbox.controller.settings import DEFAULT_PORT
from gymbox.controller.state import StateDirectory
from gymbox.errors import ConfigError
from gymbox_sandbox.lifecycle import CreateSandbox
from gymbox_sandbox.wire import ExecResult, Pty


@dataclass
class Ran:
    code: int
    out: str
    err: str


Command = Callable[..., Awaitable[Ran]]
GYMBOX = (sys.executable, "-c", "from gymbox.cli import main; main()")


@pytest.fixture
async def sandbox_id(client) -> str:
    return str((await client.create(CreateSandbox(id="s1", environment="counter", lease=600))).id)


@pytest.fixture
def gymbox(controller_url, token, sandbox_id) -> Command:
    """Runs `gymbox sandbox …` against the controller of this test, which has a sandbox s1."""

    async def run(
        name: str, *arguments: str, stdin: bytes | Any = b"", token: str = token, group: str = "sandbox"
    ) -> Ran:
        process = await asyncio.create_subprocess_exec(
            *(*GYMBOX, group, name, "--controller", controller_url, *arguments),
            stdin=asyncio.subprocess.PIPE if isinstance(stdin, bytes) else stdin,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "GYMBOX_TOKEN": token},
        )
        out, err = await process.communicate(stdin if isinstance(stdin, bytes) else None)
        return Ran(process.returncode or 0, out.decode(), err.decode())

    return run


async def test_sandboxes_are_listed_as_a_table_and_as_json(gymbox, client):
    await client.create(CreateSandbox(id="s2", environment="counter"))
    await client.delete("s2")

    assert "s1" in (await gymbox("ls")).out
    assert [view["id"] for view in json.loads((await gymbox("ls", "--json")).out)] == ["s1"]
    assert [view["id"] for view in json.loads((await gymbox("ls", "-a", "--json")).out)] == ["s1", "s2"]
    assert json.loads((await gymbox("ls", "-e", "weather", "--json")).out) == []
    assert "deleted" in (await gymbox("ls", "-a")).out


async def test_one_is_shown_with_its_tokens(gymbox):
    shown = json.loads((await gymbox("show", "s1")).out)

    assert shown["tokens"]["tools"].startswith("gbx_sbx_")


async def test_a_command_streams_and_passes_its_exit_code(gymbox):
    ran = await gymbox("exec", "s1", "--", "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (ran.code, ran.out, ran.err) == (3, "out\n", "err\n")

    ran = await gymbox("exec", "-w", "/tmp", "-e", "NAME=a=b", "s1", "sh", "-c", "pwd; echo $NAME")
    assert ran.out == "/tmp\na=b\n"
    assert (await gymbox("exec", "--timeout", "0.3", "s1", "sleep", "60")).code == 124


async def test_input_is_passed_on_from_a_pipe_and_from_a_file(gymbox, tmp_path):
    assert (await gymbox("exec", "-i", "s1", "--", "wc", "-c", stdin=b"x" * 300_000)).out.strip() == "300000"
    (tmp_path / "in").write_bytes(b"from a file")
    with (tmp_path / "in").open() as file:
        assert (await gymbox("exec", "-i", "s1", "cat", stdin=file)).out == "from a file"


async def test_files_and_folders_are_copied_both_ways(gymbox, tmp_path):
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "a.txt").write_text("A")
    (source / "run.sh").write_text("echo ran")
    (source / "run.sh").chmod(0o755)

    assert (await gymbox("cp", str(source), "s1:tree")).code == 0
    assert (await gymbox("cp", str(source / "run.sh"), "s1:bin/")).code == 0
    assert (await gymbox("exec", "s1", "--", "sh", "-c", "cat tree/sub/a.txt; bin/run.sh")).out == "Aran\n"
    assert (await gymbox("cp", "s1:tree", str(tmp_path / "back"))).code == 0
    assert (tmp_path / "back" / "sub" / "a.txt").read_text() == "A"
    assert (await gymbox("cp", "s1:bin/run.sh", str(tmp_path))).code == 0
    assert (tmp_path / "run.sh").read_text() == "echo ran"


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("cp", "a", "b"), 2, "ID:PATH"),
        (("cp", "missing-here", "s1:x"), 2, "cannot read"),
        (("cp", "s1:missing", "x"), 1, "missing"),
        (("cp", "s1:/usr/bin/env", "/proc/nowhere/x"), 2, "cannot write"),
        (("rm",), 2, "--all"),
        (("rm", "s9"), 1, "no sandbox s9"),
        (("show", "s9"), 1, "no sandbox"),
        (("exec", "s9", "true"), 1, "no sandbox"),
        (("shell", "s1"), 2, "terminal"),
    ],
)
async def test_what_cannot_be_done_is_said_in_a_line(gymbox, arguments, code, said):
    ran = await gymbox(*arguments)

    assert (ran.code, said in ran.err, len(ran.err.splitlines())) == (code, True, 1)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--controller", "http://127.0.0.1:1"], "no controller answers at http://127.0.0.1:1; start one with"),
        (["--controller", "nonsense"], "'nonsense' is no address of a controller: it begins with http://"),
        ([], "~/.config/gymbox/token"),
    ],
)
async def test_a_controller_that_cannot_be_used_is_told_with_a_way_on(gymbox, arguments, said):
    ran = await gymbox("ls", *arguments, token="another's")

    assert (ran.code, said in ran.err, len(ran.err.splitlines())) == (2, True, 1), ran.err


async def test_a_controller_of_another_token_found_here_is_told_as_none(controller_url, monkeypatch):
    monkeypatch.setattr("gymbox.cli.controllers.controller_url", lambda given: controller_url)
    monkeypatch.setenv("GYMBOX_TOKEN", "gbx_admin_of_another")

    with pytest.raises(ConfigError, match=f"no controller with this token runs here .*{controller_url}"):
        await asyncio.to_thread(ask, "", lambda client: client.sandboxes())


@pytest.mark.parametrize(
    ("group", "name", "arguments"),
    [
        ("sandbox", "rm", ("s1", "../snapshots/kept")),
        ("sandbox", "rm", ("",)),
        ("sandbox", "show", ("s1/logs",)),
        ("sandbox", "show", ("s1?wait_ended=1",)),
        ("sandbox", "exec", ("", "true")),
        ("sandbox", "exec", ("-d", "--name", "../j", "s1", "true")),
        ("sandbox", "exec", ("--shell", "..", "s1", "true")),
        ("sandbox", "fork", ("../s1",)),
        ("snapshot", "rm", ("../sandboxes/s1",)),
        ("pool", "set", ("../sandboxes", "1")),
    ],
)
async def test_what_is_no_id_is_refused_and_leads_to_nothing_else(gymbox, client, group, name, arguments):
    await client.snapshot("s1", name="kept")

    ran = await gymbox(name, *arguments, group=group)

    assert (ran.code, ran.out, len(ran.err.splitlines())) == (1, "", 1), ran.err
    assert "is no id: up to" in ran.err and "beginning with a letter or digit" in ran.err
    assert [view.status for view in await client.sandboxes()] == ["ready"]
    assert [view.id for view in await client.snapshots()] == ["kept"]


async def test_options_that_make_no_request_are_told_by_their_names(gymbox):
    for name, arguments, said in (
        ("exec", ("--timeout", "-1", "s1", "true"), "timeout: "),
        ("exec", ("-d", "--timeout", "-1", "s1", "true"), "timeout: "),
        ("exec", ("--shell", "w", "--timeout", "-1", "s1", "true"), "timeout: "),
        ("fork", ("--name", "../x", "s1"), "id: "),
    ):
        ran = await gymbox(name, *arguments)
        assert (ran.code, said in ran.err, "Traceback" in ran.err) == (1, True, False), ran.err


async def test_sandboxes_are_removed_by_id_or_all(gymbox, client):
    await client.create(CreateSandbox(id="s2", environment="counter"))
    assert (await gymbox("rm", "s1")).out == "s1\n"
    assert (await gymbox("rm", "--all")).out == "s2\n"
    assert json.loads((await gymbox("ls", "--json")).out) == []


async def in_a_shell(line: str, token: str) -> Ran:
    """What a line of the shell's does, in which `gymbox` is the command."""
    process = await asyncio.create_subprocess_exec(
        *("bash", "-c", f'gymbox() {{ "{GYMBOX[0]}" -c "{GYMBOX[2]}" "$@"; }}; {line}'),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "GYMBOX_TOKEN": token},
    )
    out, err = await process.communicate()
    return Ran(process.returncode or 0, out.decode(), err.decode())


async def test_who_reads_no_more_of_a_commands_output_ends_it_quietly(controller_url, token, sandbox_id):
    line = f"gymbox sandbox exec --controller {controller_url} s1 yes | head -1; exit ${{PIPESTATUS[0]}}"

    ran = await in_a_shell(line, token)

    assert (ran.code, ran.out, ran.err) == (1, "y\n", "")  # as every command whose output nobody reads


async def test_closed_streams_are_told_or_done_without(controller_url, token, sandbox_id):
    command = f"gymbox sandbox exec --controller {controller_url}"

    ran = await in_a_shell(f"{command} -i s1 cat <&-", token)
    assert (ran.code, ran.out, len(ran.err.splitlines())) == (2, "", 1) and "stdin is closed" in ran.err
    assert (await in_a_shell(f"{command} -t s1 sh -c 'echo a; exit 5' <&- >&-", token)).code == 5
    assert "needs a terminal" in (await in_a_shell(f"{command.replace('exec', 'shell')} s1 <&-", token)).err


def test_of_a_terminal_larger_than_a_sandbox_takes_that_much_is_used(monkeypatch):
    ours, theirs = pty.openpty()
    with os.fdopen(theirs, "w") as terminal:
        resize(theirs, 2000, 3000)
        monkeypatch.setattr("sys.stdout", terminal)
        assert terminal_size() == Pty(rows=1000, columns=1000)
        resize(theirs, 0, 0)
        assert terminal_size() == Pty(rows=1, columns=1)
    os.close(ours)


async def test_logs_are_printed(gymbox):
    assert (await gymbox("logs", "s1")).code == 0


async def test_a_shell_is_a_terminal_that_follows_the_size_of_this_one(controller_url, token, sandbox_id):
    ours, theirs = pty.openpty()
    resize(theirs, 30, 100)
    process = await asyncio.create_subprocess_exec(
        *(*GYMBOX, "sandbox", "shell", "--controller", controller_url, "s1"),
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "GYMBOX_TOKEN": token},
    )
    os.close(theirs)
    terminal = Terminal(ours)
    try:
        async with asyncio.timeout(60):
            await terminal.until("$")
            terminal.type("stty size\n")
            await terminal.until("30 100")
            resize(ours, 40, 120)
            process.send_signal(28)  # SIGWINCH: the terminal is not its controlling one here
            await terminal.until_answer("stty size\n", "40 120")
            terminal.type("exit 7\n")
            assert await process.wait() == 7
    finally:
        os.close(ours)


class Terminal:
    """The other side of a terminal."""

    def __init__(self, descriptor: int) -> None:
        os.set_blocking(descriptor, False)
        self._descriptor = descriptor
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    async def until(self, text: str) -> None:
        while text not in self.seen:
            readable = asyncio.Event()
            asyncio.get_running_loop().add_reader(self._descriptor, readable.set)
            await readable.wait()
            asyncio.get_running_loop().remove_reader(self._descriptor)
            self.seen += os.read(self._descriptor, 65536).decode(errors="replace")

    async def until_answer(self, question: str, answer: str) -> None:
        """Ask until the answer is there: the new size takes a moment to arrive."""
        while answer not in self.seen:
            self.type(question)
            try:
                async with asyncio.timeout(1):
                    await self.until(answer)
            except TimeoutError:
                asyncio.get_running_loop().remove_reader(self._descriptor)


def resize(descriptor: int, rows: int, columns: int) -> None:
    fcntl.ioctl(descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def test_the_controller_of_this_machine_is_found(state_folder: Path, monkeypatch):
    monkeypatch.setattr("gymbox.cli.controllers.state_folder", lambda: state_folder)
    assert controller_url("http://given") == "http://given"
    assert controller_url("") == f"http://127.0.0.1:{DEFAULT_PORT}"
    state = StateDirectory.main(state_folder)
    state.announce("http://found", "http://proxy")
    assert controller_url("") == "http://found"
    state.close()


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (ExecResult(exit_code=3, duration=1), 3),
        (ExecResult(exit_code=None, signal=9, duration=1), 137),
        (ExecResult(exit_code=None, signal=9, timed_out=True, duration=1), 124),
    ],
)
def test_exit_codes_are_those_of_a_shell(result, code):
    assert exit_code(result) == code


async def test_snapshots_are_taken_listed_and_removed_and_sandboxes_forked(gymbox, client):
    assert (await gymbox("snapshot", "s1", "--name", "kept")).out == "kept\n"
    assert (await gymbox("fork", "s1", "-n", "2", "--name", "f")).out == "f.0\nf.1\n"
    assert json.loads((await gymbox("ls", "--json", group="snapshot")).out)[0]["sandbox"] == "s1"
    assert "not_reset" in (await gymbox("ls", group="snapshot")).out
    assert (await gymbox("rm", "kept", group="snapshot")).out == "kept\n"
    again = await gymbox("rm", "kept", group="snapshot")
    assert again.code == 1 and "no snapshot" in again.err
    refused = await gymbox("pause", "s1")
    assert refused.code == 1 and "containers can" in refused.err
