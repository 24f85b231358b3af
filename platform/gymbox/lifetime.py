"""Lifetime: how the process of a server begins and ends."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import resource
import signal
from collections.abc import AsyncIterator

log = logging.getLogger(__name__)

YOUNG = 10_000
"""New objects after which a server looks for garbage among them; Python's default is 700."""


@contextlib.asynccontextmanager
async def until_signalled() -> AsyncIterator[asyncio.Event]:
    """Within the block, SIGTERM and SIGINT set the event instead of ending the process; a second one ends it."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()

    def on_signal(number: signal.Signals) -> None:
        if stop.is_set():
            raise SystemExit(128 + number)
        log.info("%s: draining; again: end at once", number.name)
        stop.set()

    numbers = (signal.SIGTERM, signal.SIGINT)
    for number in numbers:
        loop.add_signal_handler(number, on_signal, number)
    try:
        yield stop
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


def raise_file_limit() -> None:
    """Let this process open as many files as it may: each connection is one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def spare_what_is_loaded() -> None:
    """Let the garbage collector pass over all that is there by now: modules, classes and settings, which stay.

    A busy server or run would have them looked through again and again, for a tenth of its time and more; and what is
    new there, requests and rollouts in flight, is hardly ever garbage that needs collecting, so that this happens less
    often, too.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG)
