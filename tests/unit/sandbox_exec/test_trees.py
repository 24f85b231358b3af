"""Trees: what is killed with a command, what lives on, and that nothing outlives the sandbox."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import pytest

RESPAWNER = r"""
#include <unistd.h>
#include <sys/wait.h>
int main(void) { for (;;) { if (fork()) _exit(0); setsid(); } }
"""
"""Each generation lives for some microseconds, in a session and group of its own."""


def pids(folder: Path) -> list[int]:
    return [int(file.read_text()) for file in folder.glob("*.pid") if file.read_text().endswith("\n")]


SLEEPERS = {
    "setsid": "setsid sh -c 'echo $$ > 1.pid; exec sleep 99' & ",
    "nohup": "nohup sh -c 'echo $$ > 1.pid; exec sleep 99' >/dev/null 2>&1 & ",
    "double fork": "(setsid sh -c '(echo $$ > 1.pid; sleep 99 & echo $! > 2.pid; wait) &' &); ",
    "stopped": "sh -c 'echo $$ > 1.pid; kill -STOP $$; sleep 99' & ",
    "ignores TERM": "sh -c 'trap \"\" TERM INT HUP; echo $$ > 1.pid; while :; do sleep 1; done' & ",
    "disowned": "sleep 99 & echo $! > 1.pid; disown -a; ",
}


@pytest.mark.parametrize("sleeper", SLEEPERS.values(), ids=SLEEPERS)
async def test_a_timeout_kills_the_whole_tree(host, sleeper):
    result = await host.exec(["/bin/bash", "-c", sleeper + "sleep 99"], timeout=1)
    assert (result["timed_out"], result["exit_code"], result["signal"]) == (True, None, 9)
    assert 1 <= result["duration"] < 5
    found = pids(host.workspace)
    assert found and not any(map(host.alive, found))


@pytest.mark.parametrize("fields", [{}, {"stdin": b"input"}])
async def test_a_command_whose_time_is_over_before_it_runs_has_timed_out(host, fields):
    for _ in range(20):
        result = await host.exec("sleep 99", timeout=1e-9, **fields)
        assert (result["timed_out"], result["exit_code"]) == (True, None)


@pytest.mark.parametrize("pty", [None, {"rows": 24, "columns": 80}])
async def test_a_streamed_command_whose_time_is_over_before_it_runs_starts_and_ends(host, pty):
    for _ in range(10):
        async with host.stream("sleep 99", timeout=1e-9, pty=pty) as events:
            told = [(name, data) async for name, data in events if name not in ("stdout", "stderr")]
        assert [name for name, _ in told] == ["started", "exit"] and told[-1][1]["timed_out"]


async def test_a_timeout_leaves_other_commands_alone(host):
    with host.gate() as tell:
        other = asyncio.create_task(host.exec("echo $$ > 1.pid; read line < gate; echo $line"))
        await host.until(lambda: pids(host.workspace))
        await host.exec("sleep 99", timeout=0.1)
        tell("unharmed")
        assert (await other)["stdout"] == "unharmed\n"


async def test_output_before_a_timeout_is_kept(host):
    assert (await host.exec("echo before; sleep 99", timeout=0.5))["stdout"] == "before\n"


async def test_a_background_child_does_not_delay_the_answer_and_lives_on_until_kill_all(host):
    noise = host.workspace / "noise"
    result = await host.exec("sh -c 'echo $$ > 1.pid; while :; do echo noise; echo >> noise; done' & echo done")
    assert "done" in result["stdout"] and result["duration"] < 5
    await host.until(lambda: pids(host.workspace) and noise.exists())
    [pid] = pids(host.workspace)
    so_far = noise.stat().st_size
    # its output goes nowhere, and that is no error for it; more than a pipe holds, so it does not wait either
    await host.until(lambda: noise.stat().st_size > so_far + 20_000)
    assert host.alive(pid)
    await host.kill_all()
    assert not host.alive(pid)


async def test_background_children_leave_no_descriptor_when_they_end(host):
    before = (await host.facts())["fds"]
    for _ in range(5):
        await host.exec("sleep 99 &")
    assert (await host.facts())["fds"] > before
    await host.kill_all()
    for _ in range(50):
        if (await host.facts())["fds"] == before:
            break
    assert (await host.facts())["fds"] == before


async def test_kill_all_answers_a_running_command(host):
    running = asyncio.create_task(host.exec("echo $$ > 1.pid; sleep 99"))
    await host.until(lambda: pids(host.workspace))
    await host.kill_all()
    assert (await running)["signal"] == 9


async def test_commands_can_be_run_after_kill_all(host):
    for _ in range(3):
        await host.kill_all()
    assert (await host.exec("echo again"))["stdout"] == "again\n"


async def test_kill_all_catches_a_process_that_keeps_replacing_itself(host):
    if shutil.which("gcc") is None:
        pytest.skip("needs a C compiler")
    source = host.folder / "respawner.c"
    source.write_text(RESPAWNER)
    program = host.workspace / "respawner"
    compiler = await asyncio.create_subprocess_exec("gcc", "-O1", "-o", program, source)
    assert await compiler.wait() == 0
    program.chmod(0o755)
    await host.exec(["./respawner"])
    async with asyncio.timeout(20):
        await host.kill_all()
    assert not [line for line in _command_lines() if "respawner" in line]


def _command_lines() -> list[str]:
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            found.append(Path(f"/proc/{name}/cmdline").read_text(errors="replace"))
        except OSError:
            continue
    return found


async def test_when_a_reaper_is_killed_its_command_goes_too_and_the_caller_hears_why(host):
    running = asyncio.create_task(
        host.exec("setsid sh -c 'echo $$ > 2.pid; exec sleep 99' & echo $PPID > 3.reaper; echo $$ > 1.pid; sleep 99")
    )
    await host.until(lambda: len(pids(host.workspace)) == 2)
    os.kill(int((host.workspace / "3.reaper").read_text()), signal.SIGKILL)
    problem = await running
    assert (problem["status"], problem["kind"]) == (503, "unavailable")
    await host.until(lambda: not any(map(host.alive, pids(host.workspace))))
    assert (await host.exec("echo again"))["stdout"] == "again\n"


async def test_when_the_supervisor_is_killed_nothing_is_left(own_host):
    facts = await own_host.facts()
    running = asyncio.create_task(own_host.exec("setsid sleep 99 & echo $! > 2.pid; echo $$ > 1.pid; sleep 99"))
    await own_host.until(lambda: len(pids(own_host.workspace)) == 2)
    os.kill(facts["supervisor"], signal.SIGKILL)
    with pytest.raises(Exception):  # noqa: B017  the connection breaks, one way or another
        await running
    await own_host.until(lambda: not any(map(own_host.alive, [facts["pid"], *pids(own_host.workspace)])))


async def test_when_the_server_ends_the_supervisor_kills_all_and_ends_with_its_code(own_host):
    await own_host.exec("setsid sleep 99 & echo $! > 1.pid")
    with pytest.raises(Exception):  # noqa: B017
        await own_host.client.post("/end?code=42")
    assert own_host.wait() == 42
    assert not any(map(own_host.alive, pids(own_host.workspace)))


async def test_a_signal_that_ends_the_server_is_told_as_a_shell_does(own_host):
    os.kill((await own_host.facts())["pid"], signal.SIGKILL)
    assert own_host.wait() == 128 + signal.SIGKILL


async def test_sigterm_is_passed_on_to_the_server_which_ends_in_order(own_host):
    await own_host.exec("setsid sleep 99 & echo $! > 1.pid")
    assert own_host.stop() == 7
    assert not any(map(own_host.alive, pids(own_host.workspace)))


async def test_orphans_are_reaped(host):
    await host.exec("for i in 1 2 3 4 5; do (setsid sleep 0.05 &) ; done; sleep 0.3; echo $PPID > 1.reaper; sleep 0.1")
    result = await host.exec(
        "for i in 1 2 3; do (sh -c 'exit 0' &) ; done; sleep 0.2; ps -eo stat,ppid | grep -c \"^Z *$PPID\""
    )
    assert result["stdout"].strip() == "0"
