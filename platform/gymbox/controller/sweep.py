"""Sweep: removing what the controllers of runs left behind when they were killed."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from gymbox.controller.state import StateDirectory
from gymbox.providers import SandboxProvider

log = logging.getLogger(__name__)

SETTLES = 2.0
"""Seconds in which an engine mostly finishes what a killed process had asked of it."""


async def sweep_abandoned(parent: Path, provider: SandboxProvider) -> None:
    """Remove what controllers of runs left behind when they were killed. What cannot be removed is left to the sweeps
    that follow, and so is what a busy engine makes only later, though it was asked for it before the end; what
    another provider made is left to its own sweeps. To be called while the provider is not open.

    Raises:
        Unavailable: the provider's technology does not answer.
    """
    for state in StateDirectory.abandoned(parent):
        state.ephemeral = False  # it stays unless this sweep is seen through
        try:
            state.ephemeral = await _sweep(state, provider)
            if state.ephemeral and not state.swept():
                await asyncio.sleep(SETTLES)  # an engine with little else to do is done by then
                await _sweep(state, provider)
        finally:
            state.close()


async def _sweep(state: StateDirectory, provider: SandboxProvider) -> bool:
    """Whether it was this provider's to sweep."""
    try:
        await provider.open(state.id, lambda id, ended: None)
        if state.provider not in (None, provider.name):
            return False
        for id in {found.id for found in await provider.list()} | state.intended_deletes():
            log.warning("removing %s, left behind by a run that is no more", id)
            state.intend_delete(id)
            try:
                await provider.stop(id)
            except Exception as error:
                log.warning("container %s is left to the next sweep: %s", id, error)
            else:
                state.deleted(id)
        if not state.intended_deletes():
            state.clear_sockets()
        return True
    finally:
        await provider.close()
