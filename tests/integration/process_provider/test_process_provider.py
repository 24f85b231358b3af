"""Sandboxes as processes: real zygotes, servers and commands, with bubblewrap and without."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from gymbox.environment import Environment
from gymbox.errors import NotFound, StartFailed, Unavailable
from gymbox.http import HttpClient
from gymbox.providers import Found, StartSpec, process
from gymbox.providers.bubblewrap import why_not
from gymbox.providers.docker import DockerProvider
from gymbox.providers.process import ProcessProvider
from gymbox_sandbox.lifecycle import Ended

HAS_BUBBLEWRAP = asyncio.run(why_not()) is None
AS_ROOT = os.getuid() == 0
isolated = pytest.mark.skipif(not HAS_BUBBLEWRAP, reason="bubblewrap does not work here")

SERVER = '''
import os
import signal
import subprocess
import sys
from gymbox_sandbox import ResourcesServer, Response, Task, tool

print("loaded by", os.getpid(), flush=True)

class Keeper(ResourcesServer):
    async def reset(self, task: Task) -> None:
        self.kept: list[str] = []

    @tool
    async def keep(self, word: str) -> int:
        """Keep a word."""
        self.kept.append(word)
        return len(self.kept)

    @tool
    async def run(self, command: str) -> str:
        """Run a command."""
        return (await self.exec(command)).stdout.strip()

    @tool
    async def pid(self) -> int:
        """The server's own."""
        return os.getpid()

    @tool
    async def end(self, signal: int = 0, code: int = 0) -> None:
        """End the server, and leave a child behind."""
        subprocess.Popen(["sleep", "86399"])
        print("last words", file=sys.stderr, flush=True)
        if signal:
            os.kill(os.getpid(), signal)
        os._exit(code)

    async def verify(self, task: Task, response: Response) -> bool:
        return self.kept == task.verifier_metadata["expected"]
'''


class Bench:
    """An open provider, its room, and what it has reported."""

    def __init__(self, provider: ProcessProvider, room: Path, http: HttpClient) -> None:
        self.provider = provider
        self.room = room
        self.http = http
        self.ended: dict[str, Ended] = {}
        self.anything = asyncio.Event()
        self.phases: list[str] = []
        self.environment = self.write(SERVER)

    def write(self, server: str, name: str = "keeper", **manifest: Any) -> Environment:
        folder = self.room / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o755)
        (folder / "server.py").write_text(server)
        (folder / "environment.yaml").write_text(json.dumps({"name": name, "description": "For tests.", **manifest}))
        return Environment.load(folder)

    def on_end(self, id: str, ended: Ended) -> None:
        assert id not in self.ended
        self.ended[id] = ended
        self.anything.set()

    async def until_ended(self, count: int = 1) -> None:
        async with asyncio.timeout(20):
            while len(self.ended) < count:
                self.anything.clear()
                await self.anything.wait()

    def spec(self, id: str, environment: Environment | None = None, labels: dict[str, str] | None = None) -> StartSpec:
        directory = self.room / "sandboxes" / id
        return StartSpec(id=id, environment=environment or self.environment, directory=directory, labels=labels or {})

    async def start(self, id: str, environment: Environment | None = None) -> str:
        started = await self.provider.start(self.spec(id, environment), self.phases.append)
        assert started.socket is not None
        return started.socket

    async def call(self, socket: str, path: str, body: Any) -> Any:
        return await self.http.json("POST", f"http://sandbox{path}", json=body, socket=socket, retry=False)

    async def tool(self, socket: str, name: str, **arguments: Any) -> str:
        await self.call(socket, "/reset", {"task": {}})
        output: str = (await self.call(socket, f"/tools/{name}", arguments))["output"]
        return output

    async def tool_that_ends_it(self, socket: str, **arguments: Any) -> None:
        with pytest.raises(Unavailable):
            await self.tool(socket, "end", **arguments)

    def processes(self) -> list[str]:
        """Command lines of whatever has to do with this bench, on the whole machine."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdecimal():
                try:
                    line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
                except OSError:
                    continue
                if str(self.room) in line or "sleep 86399" in line:
                    found.append(line)
        return found

    def agent(self, id: str) -> int:
        """Uid of those who run a sandbox's commands."""
        return self.spec(id).directory.with_name(f"{id}.workspace").stat().st_uid

    def left(self) -> list[str]:
        room = self.room / "sandboxes"
        return sorted(path.name for path in room.iterdir()) if room.exists() else []


@pytest.fixture
def room() -> Iterator[Path]:
    # not pytest's own, which no other user may enter
    folder = Path(tempfile.mkdtemp(prefix="gymbox-test-"))
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(
    params=[pytest.param(True, marks=isolated, id="bubblewrap"), pytest.param(False, id="plain")],
)
async def bench(request: pytest.FixtureRequest, room: Path, variables: dict[str, str]) -> AsyncIterator[Bench]:
    provider = ProcessProvider(bubblewrap=request.param, variables=variables)
    async with HttpClient() as http:
        found = Bench(provider, room, http)
        await provider.open("tests", found.on_end)
        yield found
    await provider.close()
    assert found.left() == []
    assert found.processes() == []


@pytest.fixture
def variables() -> dict[str, str]:
    """What coverage needs to measure inside; nothing where it does not run."""
    return {name: value for name, value in os.environ.items() if name.startswith("COVERAGE_")}


async def test_a_task_goes_from_reset_to_verdict(bench: Bench) -> None:
    socket = await bench.start("one")
    assert bench.phases == ["created", "started"]
    assert await bench.tool(socket, "keep", word="a") == "1"
    verdict = await bench.call(
        socket, "/verify", {"task": {"verifier_metadata": {"expected": ["a"]}}, "response": {"output": []}}
    )
    assert verdict["reward"] == 1.0


async def test_each_sandbox_has_a_process_and_a_workspace_of_its_own(bench: Bench) -> None:
    sockets = [await bench.start(id) for id in ("one", "two")]
    pids = {await bench.tool(socket, "pid") for socket in sockets}
    assert len(pids) == 2
    await bench.tool(sockets[0], "run", command="echo mine > file")
    assert await bench.tool(sockets[1], "run", command="ls") == ""


async def test_starting_a_running_id_adopts_it(bench: Bench) -> None:
    socket = await bench.start("one")
    await bench.tool(socket, "keep", word="a")
    assert await bench.start("one") == socket
    assert (await bench.call(socket, "/tools/keep", {"word": "b"}))["output"] == "2"


async def test_two_who_start_the_same_id_get_the_same_sandbox(bench: Bench) -> None:
    first, second = await asyncio.gather(bench.start("one"), bench.start("one"))
    assert first == second
    assert bench.phases == ["created", "started"]


async def test_list_shows_what_runs_with_its_labels(bench: Bench) -> None:
    await bench.provider.start(bench.spec("one", labels={"gymbox.lease": "3"}), bench.phases.append)
    socket = await bench.start("two")
    await bench.tool_that_ends_it(socket, code=3)
    await bench.until_ended()
    (found,) = await bench.provider.list()
    assert isinstance(found, Found)
    assert (found.id, found.environment, found.labels) == ("one", "keeper", {"gymbox.lease": "3"})
    assert found.socket == str(bench.room / "sandboxes" / "one" / "server.sock")


async def test_stop_leaves_no_process_and_no_folder(bench: Bench) -> None:
    socket = await bench.start("one")
    await bench.tool(
        socket, "run", command="(setsid sleep 86399 >/dev/null 2>&1 &) ; mkdir shut; touch shut/a; chmod 0 shut"
    )
    assert any("sleep 86399" in line for line in bench.processes())
    await bench.provider.stop("one")
    assert not any("sleep 86399" in line for line in bench.processes())
    assert bench.left() == []
    assert bench.ended == {}


async def test_stop_of_what_never_was_is_fine(bench: Bench) -> None:
    await bench.provider.stop("nobody")


async def test_stop_kills_a_server_that_does_not_want_to_end(bench: Bench) -> None:
    stubborn = bench.write(
        "import signal, time\nfrom gymbox_sandbox import ResourcesServer, tool\n"
        "class Stubborn(ResourcesServer):\n"
        "    @tool\n"
        "    async def block(self) -> None:\n"
        "        signal.signal(signal.SIGTERM, signal.SIG_IGN)\n",
        name="stubborn",
    )
    socket = await bench.start("one", stubborn)
    await bench.tool(socket, "block")
    await bench.provider.stop("one")
    assert bench.left() == []


async def test_stop_while_it_starts_ends_the_start(bench: Bench) -> None:
    slow = bench.write("import time\ntime.sleep(600)\n", name="slow")
    start = asyncio.create_task(bench.start("one", slow))
    await until(lambda: bench.phases == ["created", "started"])
    start.cancel()
    with pytest.raises(asyncio.CancelledError):
        await start
    assert bench.left() == []


async def test_a_server_that_is_killed_is_reported_with_its_last_words(bench: Bench) -> None:
    socket = await bench.start("one")
    await bench.tool_that_ends_it(socket, signal=int(signal.SIGKILL))
    await bench.until_ended()
    ended = bench.ended["one"]
    assert (ended.cause, ended.exit_code) == ("killed", 137)
    assert "SIGKILL" in ended.detail
    assert ended.logs.endswith("last words")
    assert (await bench.provider.logs("one")).endswith("last words")
    assert not any("sleep 86399" in line for line in bench.processes())


async def test_a_server_that_exits_is_reported_with_its_code(bench: Bench) -> None:
    socket = await bench.start("one")
    await bench.tool_that_ends_it(socket, code=7)
    await bench.until_ended()
    assert (bench.ended["one"].cause, bench.ended["one"].exit_code) == ("exited", 7)


async def test_the_end_of_one_server_leaves_the_others_alone(bench: Bench) -> None:
    one, two = [await bench.start(id) for id in ("one", "two")]
    await bench.tool(two, "run", command="sleep 86399 >/dev/null 2>&1 &")
    await bench.tool_that_ends_it(one, signal=int(signal.SIGKILL))
    await bench.until_ended()
    assert await bench.tool(two, "run", command="jobs; echo still here") == "still here"
    assert list(bench.ended) == ["one"]


async def test_a_crash_is_told_as_an_end_by_itself(bench: Bench) -> None:
    socket = await bench.start("one")
    await bench.tool_that_ends_it(socket, signal=int(signal.SIGSEGV))
    await bench.until_ended()
    assert (bench.ended["one"].cause, bench.ended["one"].exit_code) == ("exited", 139)


async def test_a_stop_that_does_not_come_through_is_unavailable_and_may_be_tried_again(room: Path) -> None:
    async with HttpClient() as http:
        provider = ProcessProvider(bubblewrap=False)
        bench = Bench(provider, room, http)
        await provider.open("tests", bench.on_end)
        await bench.start("one")
        (zygote,) = provider._zygotes.values()
        zygote._process.send_signal(signal.SIGSTOP)
        with pytest.raises(Unavailable, match="one has not ended"):
            await provider.stop("one")
        assert bench.processes() != [] and await provider.list() == []
        zygote._process.send_signal(signal.SIGCONT)
        await provider.stop("one")
        assert bench.left() == [] and bench.ended == {}
        await provider.close()


async def test_an_order_that_a_zygote_cannot_take_is_unavailable_and_ends_nobody(room: Path) -> None:
    async with HttpClient() as http:
        provider = ProcessProvider(bubblewrap=False)
        bench = Bench(provider, room, http)
        await provider.open("tests", bench.on_end)
        socket = await bench.start("one")
        (zygote,) = provider._zygotes.values()
        zygote._process.send_signal(signal.SIGSTOP)
        server = provider._processes["one"].server
        assert server is not None
        with pytest.raises(Unavailable, match="cannot end one"):
            for _ in range(100_000):
                zygote.signal(server, 0)
        with pytest.raises(Unavailable, match="cannot fork two"):
            await bench.start("two")
        zygote._process.send_signal(signal.SIGCONT)
        assert await bench.tool(socket, "keep", word="a") == "1"
        assert await bench.tool(await bench.start("three"), "keep", word="a") == "1"
        await provider.close()
        assert bench.ended == {} and bench.left() == []


async def test_an_id_can_be_used_again_once_it_has_ended(bench: Bench) -> None:
    socket = await bench.start("one")
    await bench.tool_that_ends_it(socket, code=1)
    await bench.until_ended()
    await bench.http.forget(socket)
    assert await bench.tool(await bench.start("one"), "keep", word="a") == "1"


async def test_the_end_of_a_zygote_is_the_end_of_all_its_sandboxes(bench: Bench) -> None:
    for id in ("one", "two"):
        await bench.start(id)
    (zygote,) = bench.provider._zygotes.values()
    zygote._process.kill()
    await bench.until_ended(2)
    assert {ended.cause for ended in bench.ended.values()} == {"killed"}
    assert "forked from ended (signal SIGKILL)" in bench.ended["one"].detail
    # and the next start gets a new one
    assert await bench.tool(await bench.start("three"), "keep", word="a") == "1"


@pytest.mark.parametrize(
    ("server", "told", "logged"),
    [
        (
            "import nothing_of_that_name\n",
            "server.py cannot be loaded: ModuleNotFoundError",
            "import nothing_of_that_name",
        ),
        ("raise SystemExit(3)\n", "server.py cannot be loaded: SystemExit: 3", "Traceback"),
        ("x = 1\n", "0 ResourcesServers", "it has: none"),
        (
            "from gymbox_sandbox import ResourcesServer, tool\n"
            "class A(ResourcesServer):\n    @tool\n    def t(self, x): ...\n",
            "argument 'x' needs a type",
            "TypeError",
        ),
        ("import os\nos._exit(5)\n", "exit code 5", ""),
    ],
)
async def test_a_server_that_cannot_be_loaded_fails_at_once_and_says_why(
    bench: Bench, server: str, told: str, logged: str
) -> None:
    broken = bench.write(server, name="broken")
    async with asyncio.timeout(15):
        with pytest.raises(StartFailed) as caught:
            await bench.start("one", broken)
    assert caught.value.ended.cause == "failed_to_start"
    assert told in caught.value.detail
    assert logged in caught.value.ended.logs
    assert bench.left() == []
    assert bench.ended == {}


async def test_a_server_that_is_not_ready_in_time_fails_at_the_deadline(bench: Bench) -> None:
    slow = bench.write("import time\ntime.sleep(600)\n", name="slow", timeouts={"start": 0.2})
    with pytest.raises(StartFailed, match=r"did not answer in 0\.2 s"):
        await bench.start("one", slow)


async def test_twenty_start_at_once(bench: Bench) -> None:
    sockets = await asyncio.gather(*(bench.start(f"s{n}") for n in range(20)))
    assert len({await bench.tool(socket, "pid") for socket in sockets}) == 20
    await asyncio.gather(*(bench.provider.stop(f"s{n}") for n in range(20)))
    assert bench.left() == []


async def test_an_environment_that_changes_gets_a_new_zygote(bench: Bench) -> None:
    await bench.start("one")
    changed = bench.write(SERVER.replace("return len(self.kept)", "return -1"))
    assert await bench.tool(await bench.start("two", changed), "keep", word="a") == "-1"


async def test_servers_and_commands_hear_every_signal(bench: Bench) -> None:
    socket = await bench.start("one")
    server = await bench.tool(socket, "pid")
    command = f"grep -h SigBlk /proc/self/status /proc/{server}/status"
    assert (await bench.tool(socket, "run", command=command)).split() == ["SigBlk:", "0" * 16] * 2


async def test_servers_and_commands_inherit_no_secrets(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-of-the-caller")
    socket = await bench.start("one")
    assert "secret-of-the-caller" not in await bench.tool(socket, "run", command="env")


async def test_an_environment_with_a_network_is_refused(bench: Bench) -> None:
    with pytest.raises(Unavailable, match=r"online asks for a network \(internal\), which needs provider=docker"):
        await bench.provider.prepare(bench.write(SERVER, name="online", network="internal"))
    allowed = bench.write(SERVER, name="listed", network={"allow": ["example.org"]})
    with pytest.raises(Unavailable, match=r"listed asks for a network \(allow: example.org\)"):
        await bench.provider.prepare(allowed)


async def test_an_environment_with_services_is_refused(bench: Bench) -> None:
    with pytest.raises(Unavailable, match=r"shop asks for services \(db\), which need provider=docker"):
        await bench.provider.prepare(bench.write(SERVER, name="shop", services={"db": {"image": "db:1"}}))


async def test_logs_of_nobody_are_not_found(bench: Bench) -> None:
    with pytest.raises(NotFound):
        await bench.provider.logs("nobody")


async def test_a_deep_directory_is_no_obstacle(bench: Bench) -> None:
    id = "x" * 100
    bench.room.joinpath("sandboxes").mkdir(mode=0o711)
    spec = StartSpec(id=id, environment=bench.environment, directory=bench.room / "sandboxes" / ("d" * 90) / id)
    started = await bench.provider.start(spec, bench.phases.append)
    assert started.socket is not None
    assert (await bench.http.json("GET", "http://sandbox/healthz", socket=started.socket))["status"] == "ok"
    await bench.provider.stop(id)
    spec.directory.parent.rmdir()


async def test_close_ends_everything_and_reports_nothing(bench: Bench) -> None:
    await bench.start("one")
    await bench.provider.close()
    await bench.provider.close()
    assert bench.ended == {}
    assert bench.processes() == []


@isolated
async def test_bubblewrapped_sandboxes_see_no_files_no_network_and_no_processes_of_the_machine(
    room: Path,
) -> None:
    (room / "secret").write_text("of the user")
    async with HttpClient() as http:
        provider = ProcessProvider()
        bench = Bench(provider, room, http)
        await provider.open("tests", bench.on_end)
        try:
            socket = await bench.start("one")

            async def run(command: str) -> str:
                return await bench.tool(socket, "run", command=command)

            assert await run(f"cat {room}/secret 2>&1") == f"cat: {room}/secret: No such file or directory"
            assert await run("ls -A /root /home /run /etc/shadow 2>/dev/null | grep -v :") in ("", ".pyenv")
            assert await run("ls /sys/class/net 2>/dev/null; cat /proc/net/dev | grep -c :") == "1"
            assert await run(f"ls /proc | grep -cx {os.getpid()}") == "0"
            assert "Read-only" in await run("touch /x /usr/x 2>&1")
            assert await run("touch /tmp/x && echo ok") == "ok"
            assert "share" in provider.isolation_note
        finally:
            await provider.close()


@pytest.mark.skipif(not AS_ROOT, reason="two users need root")
@isolated
async def test_under_root_server_and_commands_are_two_users_without_rights(room: Path) -> None:
    async with HttpClient() as http:
        provider = ProcessProvider()
        bench = Bench(provider, room, http)
        await provider.open("tests", bench.on_end)
        try:
            socket = await bench.start("one")
            pid = await bench.tool(socket, "pid")

            async def run(command: str) -> str:
                return await bench.tool(socket, "run", command=command)

            assert await run("id -u; id -g; id -G") == "\n".join([str(bench.agent("one"))] * 3)
            assert await run(f"grep -E '^(Uid|Gid)' /proc/{pid}/status | tr -s '\\t' ' '") == (
                "Uid: 10002 10002 10002 10002\nGid: 10003 10003 10003 10003"
            )
            assert await run("grep -E '^Cap(Eff|Prm)' /proc/self/status | cut -f2 | sort -u") == "0" * 16
            assert await run(f"grep -E '^Cap(Eff|Prm|Amb)' /proc/{pid}/status | cut -f2 | sort -u") == "0" * 16
            directory = bench.spec("one").directory
            assert "Permission denied" in await run(f"ls {directory} 2>&1")
            assert "Permission denied" in await run(f"cat /proc/{pid}/mem 2>&1")
            assert "not permitted" in await run(f"kill -9 {pid} 2>&1")
            assert (directory.stat().st_uid, directory.stat().st_mode & 0o7777) == (10002, 0o2770)
            assert (directory / "server.sock").stat().st_mode & 0o777 == 0o660
        finally:
            await provider.close()


@pytest.mark.skipif(not AS_ROOT, reason="users of their own need root")
async def test_under_root_the_commands_of_one_sandbox_have_no_power_over_those_of_another(bench: Bench) -> None:
    if bench.provider._users is None:
        pytest.skip("not every user may run this Python")
    one, two = await bench.start("one"), await bench.start("two")
    users = [await bench.tool(socket, "run", command="echo kept > file; id -u; id -g") for socket in (one, two)]
    assert len(set(users)) == 2 and all(20_000 <= int(id) < 60_000 for user in users for id in user.split())
    await bench.tool(one, "run", command="sleep 86399 >/dev/null 2>&1 &")
    found = "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline | grep -q '^sleep 86399' && echo $p; done"
    (target,) = (await bench.tool(two, "run", command=found)).split()
    tried = await bench.tool(two, "run", command=f"kill -STOP {target[6:]} 2>&1; head -c 1 {target}/mem 2>&1")
    assert "not permitted" in tried and "Permission denied" in tried
    workspace = bench.room / "sandboxes" / "one.workspace"
    assert "Permission denied" in await bench.tool(two, "run", command=f"cat {workspace}/file 2>&1")
    assert await bench.tool(one, "run", command=f"cat {workspace}/file") == "kept"
    await bench.provider.stop("one")  # which still ends what is not of the server's user
    assert await bench.tool(two, "run", command=found) == ""


async def test_the_note_says_what_is_lost_without_bubblewrap_and_is_logged_once_in_a_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process.warned.cache_clear()
    for provider in [ProcessProvider(bubblewrap=False)] * 2 + [ProcessProvider(bubblewrap=False)]:
        await provider.open("tests", lambda *_: None)
        await provider.close()
    assert "WITHOUT ISOLATION" in provider.isolation_note
    assert [record.getMessage() for record in caplog.records] == [provider.isolation_note]


async def test_bubblewrap_that_hangs_is_given_up(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\nexec sleep 86399\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    async with asyncio.timeout(10):
        assert "did not end within 0.1 s" in str(await why_not(within=0.1))


async def test_bubblewrap_that_is_asked_for_and_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(Unavailable, match="not installed"):
        await ProcessProvider(bubblewrap=True).open("tests", lambda *_: None)


async def test_bubblewrap_that_does_not_work_is_done_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho no namespaces for you >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    provider = ProcessProvider()
    await provider.open("tests", lambda *_: None)
    assert "no namespaces for you" in provider.isolation_note


async def test_elsewhere_than_on_linux_it_says_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    for provider in (ProcessProvider(), DockerProvider()):
        with pytest.raises(Unavailable, match="docker compose") as refused:
            await provider.open("tests", lambda *_: None)
        assert "provider=" not in refused.value.detail  # neither sends to the other, which refuses too


CONTROLLER = """
import asyncio, sys
from pathlib import Path
from gymbox.environment import Environment
from gymbox.providers import StartSpec
from gymbox.providers.process import ProcessProvider

async def main():
    room, bubblewrap = Path(sys.argv[1]), sys.argv[2] == "True"
    provider = ProcessProvider(bubblewrap=bubblewrap)
    await provider.open("c", print)
    environment = Environment.load(room / "keeper")
    await provider.start(StartSpec("one", environment, room / "sandboxes" / "one"), lambda phase: None)
    print("up", flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@pytest.mark.parametrize("bubblewrap", [pytest.param(True, marks=isolated), False])
async def test_nothing_outlives_a_controller_that_is_killed(room: Path, bubblewrap: bool) -> None:
    async with HttpClient() as http:
        bench = Bench(ProcessProvider(), room, http)
        controller = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CONTROLLER, str(room), str(bubblewrap), stdout=subprocess.PIPE
        )
        assert controller.stdout is not None
        assert await controller.stdout.readline() == b"up\n"
        assert len(bench.processes()) > 2
        controller.kill()
        await controller.wait()
        await until(lambda: bench.processes() == [])


async def until(condition: Callable[[], bool]) -> None:
    """Wait for what another process does, of which nothing tells us."""
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
