"""Options: what a sandbox's server is started with. Light, because the supervisor imports it too."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn


class User(NamedTuple):
    """Numeric ids of one of the two users."""

    uid: int
    gid: int

    def __str__(self) -> str:
        return f"{self.uid}:{self.gid}"


AGENTS = 40_000
"""How many agents' users a zygote has, from its `agent_user` on."""


class Options(NamedTuple):
    """How to serve one sandbox."""

    name: str
    """The environment's name."""
    server: str
    """`/path/to/server.py`, or `…:Class` where the file defines several."""
    directory: str = "/run/gymbox"
    """Where its sockets are."""
    workspace: str = "/workspace"
    server_user: User | None = None
    """Who serves, when started as root."""
    agent_user: User | None = None
    """Who runs the agent's commands, when started as root."""
    variables: str = ""
    """A file with the environment variables that the image has for its programs, where this process's are not those:
    NAME=VALUE, each ended by a nul byte."""
    network: str = ""
    """What of `relay.WAYS` leads out, with commas between; empty: nothing."""
    services: str = ""
    """Names of the containers beside this one, where something leads out, too; with commas between."""
    max_sessions: int = 1
    tool_timeout: float = 60
    """Seconds, as the next two."""
    reset_timeout: float = 60
    verify_timeout: float = 120

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Options:
        """The options that a command line gives, as `--field-name value` pairs.

        Raises:
            SystemExit: one is unknown, missing or wrong; it says which, and the exit code is 2.
        """
        # no argparse: it would stay in the supervisor of every sandbox, a fifth of its memory
        given: dict[str, Any] = {}
        words = iter(arguments)
        for word in words:
            field = word.removeprefix("--").replace("-", "_")
            if not word.startswith("--") or field not in cls._fields:
                _refuse(f"{word!r} is no option")
            value = next(words, None)
            if value is None:
                _refuse(f"{word} needs a value")
            try:
                given[field] = _READ.get(field, str)(value)
            except ValueError:
                _refuse(f"{word}: {value!r} is not right")
        if missing := [field for field in ("name", "server") if field not in given]:
            _refuse(f"--{missing[0]} is missing")
        return cls(**given)


def _user(text: str) -> User:
    uid, _, gid = text.partition(":")
    return User(int(uid), int(gid or uid))


_READ: dict[str, Callable[[str], Any]] = {
    "server_user": _user,
    "agent_user": _user,
    "max_sessions": int,
    "tool_timeout": float,
    "reset_timeout": float,
    "verify_timeout": float,
}


def _refuse(why: str) -> NoReturn:
    names = " ".join(f"[--{field.replace('_', '-')} …]" for field in Options._fields[2:])
    print(f"usage: python -m gymbox_sandbox serve --name NAME --server FILE.py[:Class] {names}", file=sys.stderr)
    print(f"python -m gymbox_sandbox serve: {why}", file=sys.stderr)
    sys.exit(2)
