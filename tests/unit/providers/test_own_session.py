"""Own session: Ctrl-C ends none of the processes that are just being started."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gymbox.providers.own_session import OF_A_TERMINAL, in_own_session

STARTS = 150
SHOWERED = f"""
import asyncio, json, os, signal, threading, time
from gymbox.providers.own_session import in_own_session

async def main():
    over = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, lambda: None)

    def shower():
        while not over.is_set():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                os.killpg(0, number)
            time.sleep(0.0005)  # or the handlers would leave no time for starts

    showering = threading.Thread(target=shower)
    showering.start()
    try:
        return [await (await in_own_session("true")).wait() for _ in range({STARTS})]
    finally:
        over.set()
        showering.join()  # while the handlers are still there

print(json.dumps(asyncio.run(main())))
"""


def test_signals_to_the_whole_group_end_nothing_that_is_being_started() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOWERED], capture_output=True, text=True, timeout=120, start_new_session=True
    )
    assert json.loads(done.stdout) == [0] * STARTS, done.stderr


async def test_it_leads_a_session_of_its_own_and_we_hear_signals_as_before() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    process = await in_own_session("cat", stdin=-1)
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before
    session, blocked = _session_and_blocked(process.pid)
    await process.communicate()
    assert session == process.pid
    assert blocked >= set(OF_A_TERMINAL)


async def test_what_cannot_be_started_leaves_signals_as_they_were() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(FileNotFoundError):
        await in_own_session("/no/such/program")
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def _session_and_blocked(pid: int) -> tuple[int, set[int]]:
    session = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[3])
    status = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    mask = int(status["SigBlk"], 16)
    return session, {number for number in range(1, 65) if mask >> (number - 1) & 1}
