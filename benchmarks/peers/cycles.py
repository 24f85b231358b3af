"""Cycles: what every driver of a peer does, in the peer's own venv, told by one line at a time on standard input.

A line `{"cycles": 24, "concurrency": 8}` is answered by one on standard output: seconds for all of them, seconds for
each, and what went wrong in those that failed. Standard library only.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

Cycle = Callable[[], Awaitable[str]]


async def _do(cycle: Cycle, cycles: int, concurrency: int, *, threads: bool) -> dict[str, Any]:
    left = iter(range(cycles))
    each: list[float] = []
    failures: list[str] = []

    async def work() -> None:
        for _ in left:
            began = time.perf_counter()
            try:
                said = await cycle()
                if said.strip() != "hi":
                    raise RuntimeError(f"`echo hi` said {said!r}")
                each.append(time.perf_counter() - began)
            except Exception as error:  # whatever a peer raises: it is counted, and the others go on
                failures.append(f"{type(error).__name__}: {error}"[:300])

    def workers() -> Iterator[Awaitable[None]]:
        for _ in range(concurrency):
            yield asyncio.to_thread(lambda: asyncio.run(work())) if threads else work()

    began = time.perf_counter()
    await asyncio.gather(*workers())
    return {"seconds": time.perf_counter() - began, "each": each, "failures": failures}


async def serve(cycle: Cycle, *, threads: bool = False) -> None:
    """Answer lines until there are no more.

    Args:
        cycle: makes a sandbox, returns what `echo hi` says in it, and removes it.
        threads: give each of the cycles that run at once a thread and a loop of its own.
    """
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what a peer prints is not for whoever reads the answers
    while line := await asyncio.to_thread(sys.stdin.readline):
        answers.write(json.dumps(await _do(cycle, **json.loads(line), threads=threads)) + "\n")
