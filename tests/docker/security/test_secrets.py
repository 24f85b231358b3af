"""What the agent may not read: the server's memory, its directory, secrets of the one who started it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import uuid
from pathlib import Path
from typing import Any

import pytest
from gymbox.errors import Unavailable

READ_MEMORY = """
import os, re
wanted = b"-".join([b"the", b"hidden", b"answer", b"{nonce}"])
seen = denied = 0
for pid in filter(str.isdigit, os.listdir("/proc")):
    if int(pid) == os.getpid():
        continue
    try:
        with open(f"/proc/{{pid}}/maps") as maps, open(f"/proc/{{pid}}/mem", "rb") as memory:
            for line in maps:
                start, end, mode = re.match(r"(\\w+)-(\\w+) (\\S+)", line).groups()
                if mode.startswith("rw"):
                    try:
                        memory.seek(int(start, 16))
                        if wanted in memory.read(int(end, 16) - int(start, 16)):
                            print("OPEN")
                    except (OSError, OverflowError, ValueError):
                        pass
    except PermissionError:
        denied += 1
    except OSError:
        pass
print("denied", denied)
"""
HOLD = "import sys, time; held = '-'.join(['the', 'hidden', 'answer', sys.argv[1]]); time.sleep(60)"


async def test_the_agent_cannot_read_the_servers_memory(
    sandboxes: Any, guarded: Any, run_in: Any, connected: Any, plainly: Any
) -> None:
    nonce = uuid.uuid4().hex
    script = READ_MEMORY.format(nonce=nonce)
    started = await sandboxes.start(guarded)
    async with connected(started) as session:
        async with session.post("/reset", json={"task": {"nonce": nonce}}) as answer:
            assert answer.status == 200
    plainly(f'python3 -c "{HOLD}" {nonce} >/dev/null 2>&1 &', user="10001")
    assert "OPEN" in plainly(script, user="10001")  # under one user, as without the second one
    shown = (await run_in(started, ["python3", "-c", script]))["stdout"]
    assert "OPEN" not in shown and int(shown.split()[-1]) >= 2  # supervisor and server


async def test_the_agent_can_neither_signal_nor_trace_the_server(as_agent: Any) -> None:
    script = """
    import ctypes, os
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if os.stat(f"/proc/{pid}").st_uid != os.getuid():
            try:
                os.kill(int(pid), 0)
                print("OPEN: signal", pid)
            except PermissionError:
                print("refused")
            if ctypes.CDLL(None).ptrace(16, int(pid), 0, 0) == 0:
                print("OPEN: trace", pid)
    """
    shown = await as_agent(script)
    assert "OPEN" not in shown and "refused" in shown


async def test_the_agent_can_neither_reach_nor_replace_the_servers_socket(
    sandboxes: Any, guarded: Any, run_in: Any, engine: Any
) -> None:
    started = await sandboxes.start(guarded)
    script = "import socket\nsocket.socket(1).connect('/run/gymbox/server.sock'); print('OPEN')"
    control = engine.containers.get(started.id).exec_run(["python3", "-c", script], user="10002:10003")
    assert b"OPEN" in control.output
    for attack in (
        script,
        "import os\nos.symlink('/x', '/run/gymbox/s'); print('OPEN')",
        "import os\nos.listdir('/run/gymbox'); print('OPEN')",
    ):
        done = await run_in(started, ["python3", "-c", attack])
        assert "OPEN" not in done["stdout"] and "Permission denied" in done["stderr"]


async def test_n14_a_symlink_in_the_sockets_place_leads_nowhere(
    sandboxes: Any, guarded: Any, connected: Any, tmp_path: Path
) -> None:
    started = await sandboxes.start(guarded)
    victim = str(tmp_path / "victim.sock")
    server = await asyncio.start_unix_server(lambda reader, writer: writer.close(), victim)
    folder = os.open(os.path.dirname(started.socket), os.O_PATH)
    os.unlink(started.socket)
    os.symlink(victim, started.socket)
    async with server:
        with socket.socket(socket.AF_UNIX) as naive:
            naive.connect(f"/proc/self/fd/{folder}/server.sock")  # the control: an ordinary connect follows it
        with pytest.raises(Unavailable, match="not a socket"):
            async with connected(started):
                pass
    os.close(folder)


async def test_s01_and_s02_no_secret_of_the_starter_is_in_the_container(
    sandboxes: Any, guarded: Any, run_in: Any, plainly: Any, engine: Any, image: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    canary = f"canary{uuid.uuid4().hex}"
    look = "cat /proc/*/environ /proc/*/cmdline 2>/dev/null | tr '\\0' '\\n' | grep -c '^KEY=canary'"
    control = engine.containers.run(image, ["sh", "-c", look], environment={"KEY": canary}, remove=True)
    assert int(control) > 0
    monkeypatch.setenv("KEY", canary)
    started = await sandboxes.start(guarded)
    assert (await run_in(started, look))["stdout"].strip() == "0"
    assert canary not in json.dumps(engine.containers.get(started.id).attrs)
