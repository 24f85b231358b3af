"""Streamed exec: events as they happen, input, terminals, signals, and hanging up."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import asynccontextmanager

import pytest


@asynccontextmanager
async def terminal(host, command, **fields):
    async with host.stream(command, pty={"rows": 40, "columns": 100}, stdin_open=True, **fields) as events:
        name, started = await anext(events)
        assert name == "started"
        yield Terminal(host, events, started["exec_id"])


class Terminal:
    def __init__(self, host, events, exec_id):
        self.host, self.events, self.id, self.seen = host, events, exec_id, ""

    async def type(self, text, **parameters):
        async with self.host.client.post(f"/exec/{self.id}/stdin", data=text.encode(), params=parameters) as answer:
            assert answer.status == 204, await answer.text()

    async def until(self, text):
        """Read until `text` has appeared."""
        async with asyncio.timeout(20):
            while text not in self.seen:
                name, data = await anext(self.events)
                assert name == "stdout", (name, data, self.seen)
                self.seen += data.decode(errors="replace")
        self.seen = self.seen[self.seen.index(text) + len(text) :]

    async def exit(self):
        async with asyncio.timeout(20):
            async for name, data in self.events:
                if name == "exit":
                    return data
                self.seen += data.decode(errors="replace")


async def test_events_come_as_they_happen(host):
    async with host.stream("echo one; read line; echo two >&2; exit 4", stdin_open=True) as events:
        name, started = await anext(events)
        assert name == "started" and started["pid"] > 1
        assert await anext(events) == ("stdout", b"one\n")
        async with host.client.post(f"/exec/{started['exec_id']}/stdin", data=b"go\n") as answer:
            assert answer.status == 204
        assert await anext(events) == ("stderr", b"two\n")
        name, result = await anext(events)
        assert name == "exit"
        assert (result["exit_code"], result["stdout_bytes"], result["stderr_bytes"], result["stdout"]) == (4, 4, 4, "")
        assert [event async for event in events] == []


async def test_input_can_be_ended(host):
    async with host.stream("cat; echo end", stdin_open=True, stdin="YQ==") as events:
        exec_id = (await anext(events))[1]["exec_id"]
        await host.client.post(f"/exec/{exec_id}/stdin?eof=1", data=b"bc")
        assert b"".join([data async for name, data in events if name == "stdout"]) == b"abcend\n"


async def test_input_comes_as_fast_as_it_is_read(host):
    async with host.stream("sleep 0.3; wc -c", stdin_open=True) as events:
        exec_id = (await anext(events))[1]["exec_id"]
        async with host.client.post(f"/exec/{exec_id}/stdin?eof=1", data=b"x" * 3_000_000) as answer:
            assert answer.status == 204
        assert (await anext(events)) == ("stdout", b"3000000\n")


async def test_input_that_nobody_takes_any_more_is_refused(host):
    async with host.stream("exec 0<&-; echo closed; sleep 99", stdin_open=True) as events:
        exec_id = (await anext(events))[1]["exec_id"]
        assert (await anext(events)) == ("stdout", b"closed\n")
        async with host.client.post(f"/exec/{exec_id}/stdin", data=b"x") as answer:
            assert answer.status == 409
    async with host.stream("sleep 99") as events:
        exec_id = (await anext(events))[1]["exec_id"]
        async with host.client.post(f"/exec/{exec_id}/stdin", data=b"x") as answer:
            assert answer.status == 409
        async with host.client.post(f"/exec/{exec_id}/resize", json={}) as answer:
            assert answer.status == 409
        async with host.client.post(f"/exec/{exec_id}/signal", json={"signal": "SIGNONE"}) as answer:
            assert answer.status == 422
        async with host.client.post(f"/exec/{exec_id}/signal", json={"name": "INT"}) as answer:
            assert answer.status == 422
    for path in ("stdin", "resize", "signal"):
        async with host.client.post(
            f"/exec/unknown/{path}", json={} if path == "resize" else {"signal": "INT"}
        ) as answer:
            assert answer.status == 404


async def test_a_writer_is_let_go_when_the_command_ends(host):
    async with host.stream("sleep 0.3; sleep 2 & exit 5", stdin_open=True) as events:
        exec_id = (await anext(events))[1]["exec_id"]
        async with host.client.post(f"/exec/{exec_id}/stdin", data=b"x" * 1_000_000) as answer:
            assert answer.status == 409
        assert (await anext(events))[1]["exit_code"] == 5


async def test_a_signal_reaches_the_command(host):
    async with host.stream("trap 'echo got it; exit 9' INT; echo ready; while :; do sleep 0.05; done") as events:
        exec_id = (await anext(events))[1]["exec_id"]
        assert await anext(events) == ("stdout", b"ready\n")
        async with host.client.post(f"/exec/{exec_id}/signal", json={"signal": "SIGINT"}) as answer:
            assert answer.status == 204
        assert await anext(events) == ("stdout", b"got it\n")
        assert (await anext(events))[1]["exit_code"] == 9


async def test_the_command_waits_for_a_slow_reader_and_loses_nothing(host):
    before = (await host.facts())["rss"]
    done = host.workspace / "done"
    async with host.stream("for i in $(seq 300); do head -c 100000 /dev/zero; echo >> done; done") as events:
        await anext(events)
        seen = -1
        while seen != (seen := done.stat().st_size if done.exists() else 0):
            for _ in range(100):  # each lets the server read on, if it would
                await host.facts()
        assert seen < 100
        assert (await host.facts())["rss"] - before < 10_000_000
        assert sum([len(data) async for name, data in events if name == "stdout"]) == 30_000_000


@pytest.mark.parametrize("stream", [True, False])
async def test_hanging_up_kills_the_tree(host, stream):
    pid_file = host.workspace / "1.pid"
    command = "setsid sleep 99 & echo $! > 1.pid; sleep 99"
    calling = asyncio.create_task(host.client.post("/exec", json={"command": command, "stream": stream}))
    await host.until(lambda: pid_file.exists() and pid_file.read_text())
    assert host.alive(int(pid_file.read_text()))
    if stream:
        (await calling).close()
    else:
        calling.cancel()
    await host.until(lambda: not host.alive(int(pid_file.read_text())))


async def test_a_terminal_is_one(host):
    async with terminal(
        host, "tty; test -t 0 -a -t 1 -a -t 2 && echo yes; echo $TERM; stty size; echo hi >/dev/tty"
    ) as tty:
        result = await tty.exit()
        assert result["exit_code"] == 0
        assert tty.seen.replace("\r", "").splitlines()[1:] == ["yes", "xterm-256color", "40 100", "hi"]
        assert tty.seen.startswith("/dev/pts/")


async def test_a_program_that_is_missing_is_told_on_the_terminal(host):
    async with terminal(host, ["no-such-program"]) as tty:
        assert (await tty.exit())["exit_code"] == 127
        assert tty.seen == "no-such-program: command not found\r\n"


async def test_a_terminal_belongs_to_the_agent(two_users):
    async with terminal(two_users, "stat -c %u $(tty)") as tty:
        await tty.exit()
        assert tty.seen.strip() == "10001"


async def test_a_terminal_can_be_resized(host):
    async with terminal(host, "trap 'stty size' WINCH; echo ready; while :; do sleep 0.05; done") as tty:
        await tty.until("ready")
        async with host.client.post(f"/exec/{tty.id}/resize", json={"rows": 50, "columns": 132}) as answer:
            assert answer.status == 204
        await tty.until("50 132")


async def test_ctrl_c_interrupts_what_is_in_the_foreground_and_the_shell_lives(host):
    async with terminal(host, ["/bin/bash", "--norc", "-i"], env={"PS1": "prompt> "}) as tty:
        await tty.until("prompt> ")
        sleeper = "sh -c 'echo in the fore\"\"ground; exec sleep 99'\n"
        await tty.type(sleeper)
        await tty.until("in the foreground")
        await tty.type("\x03")
        await tty.until("prompt> ")
        await tty.type("echo code $?\n")
        await tty.until("code 130")
        await tty.type(sleeper)
        await tty.until("in the foreground")
        async with host.client.post(f"/exec/{tty.id}/signal", json={"signal": "INT"}) as answer:
            assert answer.status == 204
        await tty.until("prompt> ")
        await tty.type("exit 3\n")
        assert (await tty.exit())["exit_code"] == 3


async def test_end_of_input_on_a_terminal_ends_a_shell(host):
    async with terminal(host, ["/bin/cat"]) as tty:
        await tty.type("line\n", eof="1")
        result = await tty.exit()
        assert result["exit_code"] == 0, result
        assert tty.seen.replace("\r", "") == "line\nline\n"


async def test_a_command_that_closes_its_terminal_before_it_ends_is_not_hung_up(host):
    with host.gate() as tell:
        async with terminal(host, "echo bye; exec 0<&- 1>&- 2>&-; read line < gate; exit $line") as tty:
            await tty.until("bye")
            for _ in range(100):  # each lets the server see that nothing more will come
                await host.facts()
            tell("3")
            result = await tty.exit()
    assert result["exit_code"] == 3, result


async def test_all_output_of_a_terminal_arrives_before_its_end(host):
    for _ in range(10):
        async with terminal(host, "seq 2000") as tty:
            await tty.exit()
            assert tty.seen.replace("\r", "").split() == [str(number) for number in range(1, 2001)]


async def test_a_background_child_on_a_terminal_does_not_delay_the_end(host):
    async with terminal(host, "trap '' HUP; sleep 99 & echo done") as tty:
        result = await tty.exit()
        assert result["exit_code"] == 0 and "done" in tty.seen
    await host.kill_all()


async def test_a_stream_whose_supervisor_dies_ends_with_an_error(host):
    async with host.stream(
        "kill -9 $PPID; echo $?; sleep 99" if not host.two_users else "echo $PPID; sleep 99"
    ) as events:
        await anext(events)
        if host.two_users:
            os.kill(int((await anext(events))[1]), signal.SIGKILL)
        assert [name async for name, _ in events if name != "stdout"] == ["error"]
