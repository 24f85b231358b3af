"""Rehearsal: what every server does when it starts, done once before they are forked, so that they share it."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401  sync methods run in one
import socket
from contextlib import suppress
from typing import TYPE_CHECKING

from gymbox_sandbox import files, responses, serve, snapshots  # noqa: F401
from gymbox_sandbox.app import build
from gymbox_sandbox.commands import Commands
from gymbox_sandbox.options import Options
from gymbox_sandbox.resources import ResourcesServer, tools_of

if TYPE_CHECKING:
    from starlette.applications import Starlette


def rehearse(server: type[ResourcesServer]) -> None:
    """Import, compile and build what a server of this kind needs: routes, validators, the tools' schemas.

    The class is not instantiated: what that does has to happen in each sandbox anew.
    """
    for kind in (*responses.Wire.__subclasses__(), *responses.TypedItem.__subclasses__()):
        kind.model_rebuild()
    for tool in tools_of(server).values():
        with suppress(Exception):  # whoever asks for a definition that cannot be made hears why
            _ = tool.definition
    serve.config(_app()).load()


def _app() -> Starlette:
    """An app like theirs, for nobody."""
    link, other_end = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with other_end:
        commands = Commands(link, "/", {})
        try:
            routes = [*commands.routes(), *files.routes(commands, "/")]
            return build(ResourcesServer, Options("rehearsal", "", "/"), commands, routes)
        finally:
            commands.close()
