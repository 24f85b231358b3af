"""Snapshots: a sandbox's files and what its instance knows, saved for other sandboxes to begin with.

The files go through a file in the sandbox's directory, which the controller makes and takes: they pass no connection,
and whoever has but a token cannot ask for them.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager

from gymbox_sandbox.author import deadline, failing_as
from gymbox_sandbox.options import Options
from gymbox_sandbox.problems import Conflict, Invalid, NotFound
from gymbox_sandbox.resources import can_be_restored
from gymbox_sandbox.saved import Instance, LoadRequest, Saved, SaveRequest
from gymbox_sandbox.sessions import AgentCommands, Session, Sessions
from gymbox_sandbox.supervisor import AGENT_HOME

LONGEST = 3600.0
"""Seconds that saving or loading the files may take; whoever asks waits for less."""


class Snapshots:
    """Saves this sandbox, or makes it what another one was."""

    def __init__(self, sessions: Sessions, commands: AgentCommands, options: Options) -> None:
        self._sessions = sessions
        self._commands = commands
        self._options = options
        self._lock = asyncio.Lock()
        self.loaded = ""
        """Id of the snapshot that is in place."""

    async def save(self, request: SaveRequest) -> Saved:
        """Save the files, and what the instance knows.

        Raises:
            Invalid: the sandbox serves several tasks, which share its files.
            NotFound: the file is not there.
            Conflict: a tool runs, verify has begun, or the instance cannot be saved.
            Internal: the author's `snapshot` raised, or gave what JSON cannot hold.
            TimedOut: that took longer than a tool may.
        """
        self._refuse_if_shared()
        async with self._lock:
            session = self._sessions.open("")
            async with session.still():
                instance = None if request.files_only else await self._told(session)
                with self._opened(request.file, os.O_WRONLY) as file:
                    arguments = ["save", str(request.bytes), *self._places()]
                    said = await self._commands.archive(arguments, file, timeout=LONGEST)
                files, left_out = map(int, said.split())
                return Saved(files=files, left_out=left_out, was_reset=session.was_reset, instance=instance)

    async def _told(self, session: Session) -> Instance | None:
        """What its instance knows; None where there was no reset."""
        if session.task is None:
            return None
        instance = session.instance
        name = type(instance).__name__
        if not can_be_restored(type(instance)):
            raise Conflict(
                f"{name} has no snapshot() and restore(), so what it knows of its task would be lost: write both, "
                "save before reset, or keep the files alone (files_only), with which a new reset begins",
                cause="no_hooks",
            )
        async with deadline(self._options.tool_timeout, "snapshot"), failing_as("internal", "snapshot"):
            await instance._no_thread_works()
            state = await instance._finish(instance.snapshot)
            return Instance(task=session.task, state=json.loads(json.dumps(state, allow_nan=False)))

    async def load(self, request: LoadRequest) -> None:
        """Put the files in place and restore the instance, where one was saved. The same again is fine.

        Raises:
            Invalid: the sandbox serves several tasks.
            NotFound: the file is not there.
            Conflict: it was used already, or has no room.
        """
        self._refuse_if_shared()
        async with self._lock:
            if self.loaded == request.id:
                return
            session = self._sessions.get("")
            if self.loaded or (session is not None and session.was_reset):
                raise Conflict("this sandbox was used already: nothing can be restored into it")
            with self._opened(request.file, os.O_RDONLY) as file:
                await self._commands.archive(["load", *self._places()], file, timeout=LONGEST)
            if request.instance is not None:
                await self._sessions.open("").restore(request.instance.task, request.instance.state)
            self.loaded = request.id

    def _refuse_if_shared(self) -> None:
        if self._options.max_sessions > 1:
            raise Invalid("tasks that share a sandbox share its files: a snapshot needs sessions: 1")

    def _places(self) -> list[str]:
        """What is saved: in a container all that can be written to, elsewhere the workspace alone."""
        own = {"tmp": "/tmp", "home": AGENT_HOME} if os.path.ismount(AGENT_HOME) else {}
        return [f"{label}={path}" for label, path in {"workspace": self._options.workspace, **own}.items()]

    @contextmanager
    def _opened(self, name: str, flags: int) -> Iterator[int]:
        try:
            file = os.open(os.path.join(self._options.directory, name), flags | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise NotFound(f"there is no file {name!r} beside this sandbox: {error.strerror}") from error
        try:
            yield file
        finally:
            os.close(file)
