"""Shells: what stays between commands, and what cannot be confused."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager

import pytest
from gymbox_sandbox import shells
from gymbox_sandbox.background import ShellRequest, ShellRun
from gymbox_sandbox.commands import Commands
from gymbox_sandbox.supervisor import attach, start_engine

SHELLS = {"bash": shells._BASH, "sh": shells._SH}


class Session:
    """One shell of a host."""

    def __init__(self, host, id):
        self.host, self.id = host, id

    async def open(self, *, status=200, **fields):
        return await self.host.call("PUT", f"/exec/shells/{self.id}", json=fields, status=status)

    async def run(self, command, *, status=200, **fields):
        return await self.host.call(
            "POST", f"/exec/shells/{self.id}/run", json={"command": command, **fields}, status=status
        )

    async def close(self):
        await self.host.call("DELETE", f"/exec/shells/{self.id}", status=204)


@asynccontextmanager
async def opened(host, id):
    shell = Session(host, id)
    await shell.open()
    yield shell
    await shell.close()


@pytest.fixture
async def shell(host):
    async with opened(host, "main") as shell:
        yield shell


@pytest.fixture
async def simple(one_user):
    async with opened(one_user, "simple") as shell:
        yield shell


async def test_folder_variables_and_functions_stay_between_commands(shell):
    await shell.run("mkdir -p inside; cd inside; X='a b'; export Y=2; f() { echo f-$1; }")
    result = await shell.run("basename $PWD; echo \"$X\"; sh -c 'echo $Y'; f 1; echo err >&2")
    assert (result["stdout"], result["stderr"]) == ("inside\na b\n2\nf-1\n", "err\n")
    assert (result["exit_code"], result["state_lost"], result["timed_out"]) == (0, False, False)


async def test_each_exit_code_is_known_and_the_next_command_can_ask_for_it(simple):
    assert [(await simple.run(f"(exit {code})"))["exit_code"] for code in (0, 7, 255)] == [0, 7, 255]
    assert (await simple.run("echo $?"))["stdout"] == "255\n"


@pytest.mark.parametrize(
    ("command", "code", "stdout"),
    [
        ("cat <<EOF\n'it''s' \"$((1+1))\"\nEOF", 0, "'it''s' \"2\"\n"),
        ("cat <<'EOF'\n$x\n\\command \\printf\nEOF\necho after", 0, "$x\n\\command \\printf\nafter\n"),
        ("echo 'a\nb'  # a comment", 0, "a\nb\n"),
        ("echo '\\''", 2, ""),
        ('echo "unclosed', 2, ""),
        ("if true; then", 2, ""),
        ("}", 2, ""),
        (")", 2, ""),
        ("echo '; exit 9", 2, ""),
        ('cat; read line; echo "got=$line"', 0, "got=\n"),
        ("cat <&0 >&2; echo done", 0, "done\n"),
        ("echo '0 12345678' >&3; echo survived", 0, "survived\n"),
        ("", 0, ""),
        ("exec 3>&-; echo closed", 0, "closed\n"),
        ("sleep 5 & sleep 5 & echo background", 0, "background\n"),
        ("printf '%s' no-newline", 0, "no-newline"),
        ("echo a\\", 0, "a\\\n"),
        ("set -u; (echo $undefined) 2>/dev/null; set +u; echo on", 0, "on\n"),
    ],
)
async def test_nothing_that_a_command_says_confuses_the_shell(simple, command, code, stdout):
    result = await simple.run(command, timeout=20)
    assert (result["stdout"], result["state_lost"]) == (stdout, False)
    assert result["exit_code"] == code or code == 2 and result["exit_code"] in (1, 2)
    after = await simple.run("echo well", timeout=20)
    assert (after["stdout"], after["exit_code"]) == ("well\n", 0)


async def test_sh_serves_where_there_is_no_bash(monkeypatch, tmp_path):
    monkeypatch.setattr(shells, "_BASH", ["/missing"])
    engine = start_engine()
    commands = Commands(attach(engine), str(tmp_path), {"PATH": "/usr/bin:/bin"})
    shell = await commands.shells.open("sh", ShellRequest(env={"A": "1"}))
    result = await shell.run(ShellRun(command="x=2; echo $A$x $0"))
    assert (result.stdout, result.stderr) == ("12 /bin/sh\n", "")
    assert (await shell.run(ShellRun(command="echo '"))).exit_code == 2
    result = await shell.run(ShellRun(command="echo in > ready; sleep 60; echo not-reached", timeout=3))
    assert (tmp_path / "ready").exists()
    assert (result.timed_out, result.state_lost, result.stdout) == (True, False, "")
    assert (await shell.run(ShellRun(command="echo $x"))).stdout == "2\n"
    commands.shells.close("sh")
    commands.close()
    engine.close()
    os.wait()  # noqa: ASYNC222


async def test_a_timeout_interrupts_the_whole_command_and_keeps_the_state(shell):
    await shell.run("x=kept")
    result = await shell.run("echo in > ready; sleep 60; echo not-reached > reached", timeout=3)
    assert (result["timed_out"], result["state_lost"], result["exit_code"]) == (True, False, None)
    assert (await shell.run("echo $x; ls"))["stdout"] == "kept\nready\n"


async def test_what_cannot_be_interrupted_is_killed_with_the_shell_and_its_state(shell):
    result = await shell.run("trap '' INT; echo in > ready; sleep 61", timeout=3)
    assert (shell.host.workspace / "ready").exists()
    assert (result["timed_out"], result["state_lost"]) == (True, True)
    gone = await shell.run("echo more", status=410)
    assert gone["cause"] == "shell_ended"
    assert "state is lost" in gone["detail"]
    view = await shell.host.call("GET", "/exec/shells/main")
    assert "could not be interrupted" in view["ended"]


@pytest.mark.parametrize(
    ("command", "code", "number"),
    [("echo bye; exit 3", 3, None), ("exec sh -c 'echo bye; exit 4'", 4, None), ("echo bye; kill -9 $$", None, 9)],
)
async def test_a_command_that_ends_the_shell_is_answered_and_says_that_the_state_is_lost(
    simple, command, code, number
):
    result = await simple.run(command)
    assert (result["stdout"], result["exit_code"], result["signal"]) == ("bye\n", code, number)
    assert result["state_lost"]
    assert not result["timed_out"]
    assert (await simple.run("true", status=410))["kind"] == "gone"


async def test_a_shell_that_dies_between_commands_is_gone(simple):
    pid = (await simple.host.call("GET", "/exec/shells"))["shells"][0]["pid"]
    os.kill(pid, signal.SIGKILL)
    await simple.host.until(lambda: not simple.host.alive(pid))
    async with asyncio.timeout(10):
        while (await simple.host.call("GET", "/exec/shells/simple"))["ended"] is None:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert "signal 9" in (await simple.run("true", status=410))["detail"]


async def test_the_agents_processes_take_their_shells_along(simple):
    running = asyncio.create_task(simple.run("sleep 99"))
    async with asyncio.timeout(10):
        while not (await simple.host.call("GET", "/exec/shells/simple"))["busy"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    await simple.host.kill_all()
    result = await running
    assert (result["signal"], result["state_lost"]) == (signal.SIGKILL, True)


async def test_a_shell_runs_one_command_at_a_time(simple):
    with simple.host.gate() as say:
        running = asyncio.create_task(simple.run("echo in > begun; read line < gate; echo $line"))
        await simple.host.until((simple.host.workspace / "begun").exists)
        assert "another command" in (await simple.run("true", status=409))["detail"]
        say("first")
        assert (await running)["stdout"] == "first\n"


async def test_hanging_up_interrupts_the_command_and_keeps_the_shell(simple):
    running = asyncio.create_task(simple.run("x=1; echo in > begun; sleep 60; x=2"))
    await simple.host.until((simple.host.workspace / "begun").exists)
    running.cancel()
    async with asyncio.timeout(10):
        while (await simple.host.call("GET", "/exec/shells/simple"))["busy"]:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    assert (await simple.run("echo $x"))["stdout"] == "1\n"


async def test_what_background_children_print_comes_with_the_next_command(simple):
    with simple.host.gate() as say:
        await simple.run("(read line < gate; echo $line; echo over > over) &")
        say("meanwhile")
        await simple.host.until((simple.host.workspace / "over").exists)
        assert (await simple.run("echo next"))["stdout"] == "meanwhile\nnext\n"


async def test_output_in_a_shell_is_bounded_and_counted(simple):
    result = await simple.run("seq 200000", output_limit=10)
    assert (result["stdout"], result["stdout_bytes"], result["truncated"]) == ("1\n2\n3\n4\n5\n", 1_288_895, True)


async def test_a_request_id_keeps_a_command_from_running_twice(simple):
    fields = {"request_id": "r1"}
    running = asyncio.create_task(simple.run("echo x >> runs; sleep 0.3; cat runs", **fields))
    await simple.host.until((simple.host.workspace / "runs").exists)
    running.cancel()
    again = await simple.run("echo x >> runs; sleep 0.3; cat runs", **fields)
    assert again["stdout"] == "x\n"
    assert (await simple.run("other", status=409, **fields))["kind"] == "conflict"


async def test_a_shell_under_the_id_of_a_deleted_one_has_request_ids_of_its_own(one_user):
    for number in (1, 2):
        async with opened(one_user, "again") as shell:
            result = await shell.run("echo x >> runs; cat runs", request_id="r1")
            assert result["stdout"] == "x\n" * number


async def test_the_same_shell_is_found_again_and_shells_are_bounded(one_user):
    shells_ = [Session(one_user, f"s{number}") for number in range(shells.MOST_SHELLS)]
    pids = [(await shell.open())["pid"] for shell in shells_]
    assert (await shells_[0].open())["pid"] == pids[0]
    await shells_[0].open(cwd="/", status=409)
    await Session(one_user, "more").open(status=429)
    for shell in shells_:
        await shell.close()
    await one_user.call("DELETE", "/exec/shells/s0", status=404)
    await one_user.call("GET", "/exec/shells/s0", status=404)


@pytest.mark.parametrize("fields", [{"cwd": "/missing"}, {"env": {"a=b": "c"}}])
async def test_a_shell_that_cannot_be_opened_is_told_and_leaves_nothing(one_user, fields):
    before = (await one_user.facts())["fds"]
    await Session(one_user, "wrong").open(status=422, **fields)
    assert (await one_user.call("GET", "/exec/shells"))["shells"] == []
    assert (await one_user.facts())["fds"] <= before + 1


@pytest.mark.parametrize("command", ["a\0b", "\ud800"])
async def test_a_command_that_no_shell_could_read_is_refused(simple, command):
    await simple.run(command, status=422)
    assert (await simple.run("echo well"))["stdout"] == "well\n"
