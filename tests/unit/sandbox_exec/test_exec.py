"""Exec: what a command gets, and what its caller gets back."""

from __future__ import annotations

import asyncio
import base64
import os
from pathlib import Path

import pytest


async def test_a_command_runs_and_its_output_and_exit_code_come_back(host):
    result = await host.exec("echo out; echo err >&2; exit 3")
    assert (result["exit_code"], result["signal"], result["timed_out"]) == (3, None, False)
    assert (result["stdout"], result["stderr"]) == ("out\n", "err\n")
    assert (result["stdout_bytes"], result["stderr_bytes"], result["truncated"]) == (4, 4, False)


async def test_a_list_is_run_as_it_is(host):
    assert (await host.exec(["/bin/echo", "$HOME", "a b", ""]))["stdout"] == "$HOME a b \n"


async def test_a_command_starts_in_the_workspace_or_where_it_is_told(host):
    assert (await host.exec("pwd"))["stdout"] == f"{host.workspace}\n"
    await host.exec("mkdir sub")
    assert (await host.exec("pwd", cwd="sub"))["stdout"] == f"{host.workspace}/sub\n"
    assert (await host.exec("pwd", cwd="/"))["stdout"] == "/\n"


async def test_a_command_sees_a_clean_environment_and_what_its_request_adds(host):
    result = await host.exec(["/usr/bin/env"], env={"A": "b=c", "EMPTY": ""})
    variables = dict(line.split("=", 1) for line in result["stdout"].splitlines())
    assert {name for name in variables if not name.startswith("COVERAGE")} == {"PATH", "HOME", "LANG", "A", "EMPTY"}
    assert (variables["A"], variables["HOME"]) == ("b=c", str(host.workspace))


async def test_a_command_gets_its_input_and_then_the_end(host):
    data = os.urandom(300_000)
    result = await host.exec("cat", stdin=data, encoding="base64")
    assert base64.b64decode(result["stdout"]) == data
    assert (await host.exec("cat; echo end"))["stdout"] == "end\n"


async def test_a_command_need_not_read_its_input(host):
    assert (await host.exec("exec 0<&-; echo done", stdin=b"x" * 1_000_000))["stdout"] == "done\n"


async def test_output_that_is_no_text_comes_byte_by_byte_as_base64_and_replaced_as_text(host):
    printing = r"printf '\377\000caf\303\251\355\240\200'"
    assert (
        base64.b64decode((await host.exec(printing, encoding="base64"))["stdout"]) == b"\xff\0caf\xc3\xa9\xed\xa0\x80"
    )
    text = (await host.exec(printing))["stdout"]
    assert text.startswith("\ufffd\0café\ufffd")
    text.encode()  # no lone surrogate


async def test_output_beyond_the_limit_is_counted_and_marked(host):
    result = await host.exec("head -c 100000 /dev/zero | tr '\\0' x; echo err >&2", output_limit=10)
    assert (result["stdout"], result["stdout_bytes"], result["truncated"]) == ("x" * 10, 100_000, True)
    assert result["stderr"] == "err\n"
    assert (await host.exec("printf 1234567890", output_limit=10))["truncated"] is False
    assert (await host.exec("printf x", output_limit=0))["truncated"] is True


async def test_no_answer_may_keep_more_than_a_small_sandbox_can_hold(host):
    assert (await host.exec("true", output_limit=8_000_001))["status"] == 422
    zeros = await host.exec("head -c 9000000 /dev/zero", output_limit=8_000_000)  # six bytes of JSON each
    assert (len(zeros["stdout"]), zeros["stdout_bytes"]) == (8_000_000, 9_000_000)


async def test_a_request_that_would_fill_the_memory_is_not_read(host):
    assert (await host.exec("true", stdin="A" * (65 << 20)))["status"] == 413


async def test_when_memory_is_short_the_kernel_ends_a_command_before_the_server(host):
    result = await host.exec("cat /proc/self/oom_score_adj; sh -c 'cat /proc/self/oom_score_adj'")
    assert result["stdout"] == "1000\n1000\n"
    server = (await host.facts())["pid"]
    assert int((await host.exec(f"cat /proc/{server}/oom_score_adj"))["stdout"]) < 1000


async def test_a_limit_that_cuts_a_character_leaves_it_out(host):
    assert (await host.exec("printf 'aé'", output_limit=2))["stdout"] == "a"


async def test_endless_output_neither_blocks_nor_grows_memory(host):
    before = await host.facts()
    result = await host.exec("yes", timeout=2, output_limit=1000)
    assert result["timed_out"] and result["truncated"] and result["stdout_bytes"] > 10_000_000
    assert len(result["stdout"]) == 1000
    assert (await host.facts())["rss"] - before["rss"] < 10_000_000


async def test_a_tight_loop_never_loses_output(host):
    for number in range(100):
        assert (await host.exec(["/bin/echo", str(number)]))["stdout"] == f"{number}\n"


async def test_many_at_once_all_answer(host):
    results = await asyncio.gather(*(host.exec(["/bin/echo", str(number)]) for number in range(100)))
    assert [result["stdout"] for result in results] == [f"{number}\n" for number in range(100)]


async def test_a_thousand_commands_leave_no_descriptor_open(host):
    await asyncio.gather(*(host.exec(["/bin/true"]) for _ in range(10)))  # each over a connection of its own
    before = (await host.facts())["fds"]
    for _ in range(100):
        await asyncio.gather(*(host.exec(["/bin/true"]) for _ in range(10)))
    assert (await host.facts())["fds"] <= before
    assert len(os.listdir(f"/proc/{(await host.facts())['supervisor']}/fd")) < 15


async def test_a_program_that_is_missing_or_not_executable_is_told_as_a_shell_tells_it(host):
    missing = await host.exec(["no-such-program"])
    assert (missing["exit_code"], missing["stderr"]) == (127, "no-such-program: command not found\n")
    missing = await host.exec(["/no/such"])
    assert (missing["exit_code"], missing["stderr"]) == (127, "/no/such: No such file or directory\n")
    await host.exec("echo hi > file; chmod 644 file")
    refused = await host.exec(["./file"])
    assert (refused["exit_code"], refused["stderr"]) == (126, "./file: Permission denied\n")
    assert (await host.exec("no-such-program"))["exit_code"] == 127


async def test_a_command_may_be_longer_than_the_kernel_takes_an_argument(host):
    text = "é" * 500_000
    result = await host.exec(f"cat > file <<'END'\n{text}\nEND\nwc -c < file; cat", stdin=b"input")
    assert result["stdout"] == f"{2 * 500_000 + 1}\ninput"
    too_long = await host.exec(["/bin/echo", text])
    assert (too_long["exit_code"], too_long["stderr"]) == (126, "/bin/echo: Argument list too long\n")


async def test_a_shell_speaks_for_itself(host):
    result = await host.exec("if true; then")
    assert result["exit_code"] != 0 and "syntax error" in result["stderr"].lower()


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ({"cwd": "missing"}, "missing: No such file or directory"),
        ({"env": {"A=B": "c"}}, "'A=B' cannot be the name"),
        ({"env": {"": "c"}}, "'' cannot be the name"),
        ({"env": {"A": "b\0c"}}, "nul byte"),
        ({"cwd": "a\0b"}, "nul byte"),
        ({"stdin": "%"}, "stdin is not base64"),
        ({"stdin_open": True}, "streamed exec"),
        ({"pty": {}}, "streamed exec"),
        ({"timeout": 0}, "timeout"),
        ({"unknown": 1}, "unknown"),
        ({"command": []}, "empty"),
        ({"command": [""]}, "empty"),
        ({"command": ["echo", "\0"]}, "nul byte"),
    ],
)
async def test_a_request_that_cannot_be_carried_out_is_refused(one_user, fields, detail):
    for stream in (False, True):
        if stream and detail == "streamed exec":
            continue
        problem = await one_user.exec(**{"command": "true", "stream": stream, **fields})
        assert (problem["status"], problem["kind"]) == (422, "invalid")
        assert detail in problem["detail"]


async def test_a_lone_surrogate_is_refused(one_user):
    async with one_user.client.post("/exec", data=b'{"command": ["echo", "\\ud800"]}') as answer:
        assert answer.status == 422


async def test_a_request_without_end_is_refused(one_user):
    async with one_user.client.post("/exec", data=b'{"command": "' + b"x" * (130 << 20)) as answer:
        assert answer.status == 413
        assert "send large input as a file" in (await answer.json())["detail"]


async def test_what_a_program_expects_of_signals_is_as_usual(host):
    result = await host.exec("yes | head -n1; grep SigIgn /proc/self/status; ulimit -c; umask")
    yes, ignored, core, mask = result["stdout"].splitlines()
    assert (yes, core, mask) == ("y", "0", "0022")
    # 32 and 33 are the C library's own: no program can set them, so they stay as this machine has them
    assert not int(ignored.split()[1], 16) & ~(0b11 << 31)


async def test_no_descriptor_of_ours_reaches_a_command(host):
    assert (await host.exec("ls /proc/self/fd"))["stdout"].split() == ["0", "1", "2", "3"]  # 3: the folder itself


async def test_the_two_users_are_kept_apart(two_users):
    facts = await two_users.facts()
    assert (facts["uid"], facts["groups"]) == (10002, [])
    status = await two_users.exec("id -u; id -g; cat /proc/self/status")
    uid, gid, *lines = status["stdout"].splitlines()
    fields = dict(line.split(":\t", 1) for line in lines)
    assert (uid, gid) == ("10001", "10001")
    assert fields["Uid"].split() == fields["Gid"].split() == ["10001"] * 4
    assert fields["Groups"].strip() == ""
    assert fields["NoNewPrivs"] == "1"
    assert {fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapAmb")} == {"0" * 16}
    assert fields["CapBnd"] == "00000000000000e0"  # setuid, setgid, kill: what the supervisor has of it


async def test_the_agent_can_neither_read_nor_signal_the_server_or_supervisor(two_users):
    facts = await two_users.facts()
    for pid in (facts["pid"], facts["supervisor"]):
        for file in ("environ", "mem", "maps", "fd/0"):
            result = await two_users.exec(f"cat /proc/{pid}/{file}")
            assert result["exit_code"] == 1 and "Permission denied" in result["stderr"]
            assert "canary" not in result["stdout"]
        killed = await two_users.exec(f"kill -9 {pid}")
        assert killed["exit_code"] == 1 and "not permitted" in killed["stderr"]
    assert (await two_users.exec("kill -9 $PPID"))["exit_code"] == 1  # its reaper
    assert (await two_users.exec("kill -9 -1; echo $?"))["signal"] in (9, None)
    assert (await two_users.facts())["pid"] == facts["pid"]


async def test_the_server_cannot_be_read_by_its_own_user_either(one_user):
    if os.getuid() == 0:
        pytest.skip("root may read everything")
    facts = await one_user.facts()
    assert (await one_user.exec(f"cat /proc/{facts['pid']}/mem"))["exit_code"] == 1


async def test_a_fork_bomb_is_bounded_and_killed(two_users):
    # as the pids limit of a container does
    bomb = "ulimit -u 60; f() { f | f & f; }; f 2>/dev/null; sleep 30"
    result = await two_users.exec(["/bin/bash", "-c", bomb], timeout=1.5)
    assert result["timed_out"] or result["exit_code"] is not None
    await two_users.kill_all()
    assert (await two_users.exec("echo alive"))["stdout"] == "alive\n"


async def test_commands_of_the_host_are_found_on_the_path(host):
    assert Path((await host.exec("command -v ls"))["stdout"].strip()).name == "ls"
