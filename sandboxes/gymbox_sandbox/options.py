"""Options: what a sandbox's server is started with. Light, because the supervisor imports it too."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any, NamedTuple


class User(NamedTuple):
    """Numeric ids of one of the two users."""

    uid: int
    gid: int


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
    max_sessions: int = 1
    tool_timeout: float = 60
    """Seconds, as the next two."""
    reset_timeout: float = 60
    verify_timeout: float = 120

    @classmethod
    def parse(cls, arguments: Sequence[str]) -> Options:
        """The options that a command line gives; a wrong one ends the process with exit code 2."""
        import json

        parser = argparse.ArgumentParser(prog="python -m gymbox_sandbox serve", allow_abbrev=False)
        parser.add_argument("--name", required=True)
        parser.add_argument("--server", required=True, metavar="FILE.py[:Class]")
        parser.add_argument("--directory", default=cls._field_defaults["directory"])
        parser.add_argument("--workspace", default=cls._field_defaults["workspace"])
        parser.add_argument("--server-user", type=_user, metavar="UID:GID")
        parser.add_argument("--agent-user", type=_user, metavar="UID:GID")
        parser.add_argument("--max-sessions", type=int, default=1, metavar="N")
        parser.add_argument("--limits-json", default="{}", help="seconds: tool_timeout, reset_timeout, verify_timeout")
        given: dict[str, Any] = vars(parser.parse_args(arguments))
        try:
            limits: dict[str, Any] = {k: float(v) for k, v in json.loads(given.pop("limits_json")).items()}
            return cls(**given, **limits)
        except (ValueError, TypeError, AttributeError) as error:
            parser.error(f"--limits-json: {error}")


def _user(text: str) -> User:
    uid, _, gid = text.partition(":")
    try:
        return User(int(uid), int(gid or uid))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not UID:GID") from None
