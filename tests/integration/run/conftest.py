"""`gymbox run` as users have it: the real command in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

GYMBOX = Path(sys.executable).with_name("gymbox")
PATIENCE = 120


@dataclass
class Ended:
    code: int
    out: str
    err: str


@dataclass
class Command:
    """A running `gymbox run`."""

    process: asyncio.subprocess.Process
    arguments: tuple[str, ...] = ()
    seen: list[str] = field(default_factory=list)

    async def until(self, pattern: str, times: int = 1) -> str:
        """The `times`-th line on stderr that has the pattern."""
        assert self.process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while line := (await self.process.stderr.readline()).decode():
                self.seen.append(line)
                if re.search(pattern, line) and (times := times - 1) == 0:
                    return line
        raise AssertionError(f"ended without {pattern!r}:\n{''.join(self.seen)}")

    def tell(self, number: signal.Signals) -> None:
        """Send a signal; Ctrl-C goes to the whole group, as from a terminal."""
        if number == signal.SIGINT:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)

    async def ended(self) -> Ended:
        async with asyncio.timeout(PATIENCE):
            out, err = await self.process.communicate()
        assert self.process.returncode is not None
        return Ended(self.process.returncode, out.decode(), "".join(self.seen) + err.decode())


class Gymbox:
    """Starts `gymbox run` in a folder of its own, with a home of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.variables: dict[str, str] = {}
        self.started: list[Command] = []

    async def start(self, *arguments: str, command: tuple[str, ...] = ("run",)) -> Command:
        home = {"HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder / "config")}
        process = await asyncio.create_subprocess_exec(
            str(GYMBOX),
            *command,
            *arguments,
            cwd=self.folder,
            env={**os.environ, **home, **self.variables},
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=16 * 1024 * 1024,
            start_new_session=True,
        )
        begun = Command(process, arguments)
        self.started.append(begun)
        return begun

    async def run(self, *arguments: str) -> Ended:
        return await (await self.start(*arguments)).ended()

    async def shell(self, line: str) -> int:
        """The exit code of a line that a user pastes into a shell in which gymbox is not on the PATH."""
        variables = {**os.environ, "HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder / "config")}
        process = await asyncio.create_subprocess_shell(
            line, cwd=self.folder, env={**variables, "PATH": "/usr/bin:/bin"}, stdout=asyncio.subprocess.DEVNULL
        )
        async with asyncio.timeout(PATIENCE):
            return await process.wait()

    async def close(self) -> None:
        for command in self.started:
            if command.process.returncode is None:
                command.process.kill()
                await command.process.wait()

    def lines(self, output: str) -> list[dict[str, Any]]:
        path = self.folder / output / "rollouts.jsonl"
        return [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]

    def read(self, output: str, name: str) -> Any:
        return json.loads((self.folder / output / name).read_text())


@pytest.fixture
async def gymbox(tmp_path: Path) -> AsyncIterator[Gymbox]:
    found = Gymbox(tmp_path)
    yield found
    await found.close()
