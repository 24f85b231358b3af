"""Supervisor: the small process above a sandbox's server. It may become other users; the server may not.

    supervisor (root, or the caller's user)      starts commands for the server, outlives nobody
    ├── server (server user)                     the environment's code; cannot be read by the agent
    │   └── relay (server user)                  only where a network policy lets something out
    └── reaper (as the supervisor), one a command
        └── command (agent user), or a snapshot's archive (as the supervisor; see state_archive)

It forks the server before anything heavy is imported and stays about as small as Python itself. In a container it
needs SETUID, SETGID and KILL. Without root all run as the caller's user, and the agent's code could end the others:
that mode isolates nothing.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NoReturn

from gymbox_sandbox import prctl
from gymbox_sandbox.engine import Engine, new_link
from gymbox_sandbox.options import Options, User
from gymbox_sandbox.reaper import change_user

if TYPE_CHECKING:
    from gymbox_sandbox.commands import Commands

AGENT_HOME = "/home/agent"
DEFAULT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def run(options: Options, serve: Callable[[Options, Commands], int | None]) -> int:
    """Run a sandbox's server under a supervisor, which this process becomes.

    Args:
        serve: Called in the server's process, as the server's user; what it returns is the exit code.

    Returns:
        The server's exit code (128 + n if signal n ended it), when nothing that it or the agent started is left.
        SIGTERM is passed on to it. When this process is killed, server and commands die too.
    """
    root = os.getuid() == 0
    server_user, agent_user = (options.server_user, options.agent_user) if root else (None, None)
    prctl.forbid_new_privileges()
    prctl.hide_memory()
    ours, theirs = new_link()
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        theirs.close()
        _become_server(options, serve, ours, server_user, agent_user, supervisor)
    ours.close()
    return Engine(theirs, agent_user).run(pid)


def start_engine(agent: User | None = None, agents: int = 1) -> socket.socket:
    """Fork an engine for servers that this process will fork; call it before anything heavy is imported.

    Commands run as `agent` or one of the users after it, `agents` in all; None for the user that this process has.

    Each server gets a link of its own by `attach`. When the returned socket closes, all that the engine started dies.
    """
    ours, theirs = new_link()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            ours.close()
            os.setsid()  # a terminal's Ctrl-C is for the one who started us
            prctl.forbid_new_privileges()
            prctl.hide_memory()
            status = Engine(theirs, agent, agents).run()
        except BaseException:
            sys.excepthook(*sys.exc_info())
        finally:
            _exit(status)
    theirs.close()
    return ours


def attach(engine: socket.socket, agent: int = 0) -> socket.socket:
    """A new link to the engine, for one server: make its `Commands` from it. They run as the engine's nth agent."""
    ours, theirs = new_link()
    with theirs:
        socket.send_fds(engine, [b"a" + agent.to_bytes(2)], [theirs.fileno()])
    return ours


def agent_environment(workspace: str, agent: User | None = None, variables: str = "") -> Mapping[str, str]:
    """Environment variables of commands: the image's PATH and LANG, a HOME, and nothing else of this process's; with a
    file of the image's (see Options), all of them."""
    given = _variables_in(variables) if variables else os.environ
    return {
        **(given if variables else {}),
        "PATH": given.get("PATH") or DEFAULT_PATH,
        "HOME": AGENT_HOME if agent is not None and os.path.isdir(AGENT_HOME) else workspace,
        "LANG": given.get("LANG") or "C.UTF-8",
    }


def _variables_in(path: str) -> Mapping[str, str]:
    with open(path, "rb") as file:
        found = [os.fsdecode(variable).partition("=") for variable in file.read().split(b"\0") if variable]
    return {name: value for name, _, value in found}


def _become_server(
    options: Options,
    serve: Callable[[Options, Commands], int | None],
    link: socket.socket,
    server_user: User | None,
    agent_user: User | None,
    supervisor: int,
) -> NoReturn:
    status = 1
    try:
        change_user(server_user)
        os.umask(0o007)
        prctl.hide_memory()
        prctl.signal_when_parent_dies(signal.SIGKILL)
        if os.getppid() != supervisor:
            _exit(status)
        variables = dict(agent_environment(options.workspace, agent_user, options.variables))
        if options.network:
            from gymbox_sandbox import relay

            relay.start(options.network, options.directory, services=options.services)
            variables |= relay.variables(options.network, services=options.services)
        from gymbox_sandbox.commands import Commands

        commands = Commands(link, options.workspace, variables)
        status = serve(options, commands) or 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        _exit(status)


def _exit(status: int) -> NoReturn:
    """End without what the parent's stack would still run, and without waiting for threads."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
