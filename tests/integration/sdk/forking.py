"""Forks while sandboxes are open: `python forking.py ENVIRONMENTS STATE CACHE` prints what each process has found.

A process of its own: one that is forked of a test's would go on with the tests.
"""

from __future__ import annotations

import json
import multiprocessing
import sys
from collections.abc import Callable
from pathlib import Path

from gymbox import SyncSandbox
from gymbox.runs.loop_thread import LoopThread
from gymbox.runs.places import Places

environments, state, cache = map(Path, sys.argv[1:4])
places = Places((environments,), state, cache, "token")
queue = multiprocessing.get_context("fork").SimpleQueue()


def own() -> str:
    """What a sandbox of this process says."""
    with SyncSandbox(provider="process", places=places) as box:
        return box.exec("echo mine").stdout


def error_of(act: Callable[[], object]) -> str:
    try:
        return f"no error: {act()!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def forked(act: Callable[[], object]) -> object:
    """What is found by a process that is forked here."""
    process = multiprocessing.get_context("fork").Process(target=lambda: queue.put(act()))
    process.start()
    found = queue.get()
    process.join()
    return found


def leave(block: SyncSandbox) -> str:
    block.__exit__(None, None, None)
    return own()


async def nothing() -> None:
    return None


told = {}
with SyncSandbox.host("process", places=places):
    told["under a host"] = forked(own)
    told["the host's own"] = own()
with SyncSandbox(provider="process", places=places) as box:
    told["beside an open one"] = forked(own)
    told["the parent's"] = forked(lambda: error_of(lambda: box.exec("true")))
    told["after leaving the parent's"] = forked(lambda: leave(box))
    told["the parent's, afterwards"] = box.exec("echo still here").stdout
told["after all"] = forked(own)
loop = LoopThread("another")
told["any loop's"] = forked(lambda: error_of(lambda: loop.call(nothing())))
told["closed by a child"] = forked(loop.close)
loop.call(nothing())
loop.close()
print(json.dumps(told))
