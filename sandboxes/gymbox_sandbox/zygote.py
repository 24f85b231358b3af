"""Zygote: a process that has imported everything once and forks a server for each sandbox, in milliseconds.

    engine (root, or the caller's user)      starts the agents' commands, see engine.py
    zygote (server user)                     has the environment's code loaded
    └── server (server user), one a sandbox

Its input is a SOCK_SEQPACKET socket with one JSON object a packet; its output has one a line:

    {"start": ID, "agent": N, "options": {…}, "open_files": N}
                                    forks; the descriptor that comes along becomes the sandbox's output and errors;
                                    its commands run as the nth of the agents' users (see options.AGENTS)
    {"signal": NUMBER, "to": ID}    passed on, where ID still lives
    {"loaded": true}                once, before it looks at its input
    {"ended": ID, "status": N}      the exit code, negative for a signal; nothing that ID started is left by then
                                    (1 also where no process could be forked; its output says why)

When the input ends, so do all sandboxes and the zygote: none outlives whoever started it. It may be started with
signals blocked; it and all it forks hear them.
"""

from __future__ import annotations

import errno
import gc
import json
import os
import resource
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from gymbox_sandbox import prctl
from gymbox_sandbox.engine import close_all_but
from gymbox_sandbox.options import AGENTS, Options
from gymbox_sandbox.process_tree import (
    Descendants,
    children_of_this_thread,
    kill_descendants,
    parent_of,
    reap_children,
)
from gymbox_sandbox.reaper import change_user, wake_on_children
from gymbox_sandbox.supervisor import agent_environment, attach, start_engine

if TYPE_CHECKING:
    from gymbox_sandbox.resources import ResourcesServer


class Child(NamedTuple):
    """A server that was forked."""

    id: int
    link: socket.socket
    """Our copy of its link to the engine, which therefore stays open when the server ends."""


class Zygote:
    """Forks sandboxes of one environment; `arguments` are those of `serve` (see Options)."""

    def __init__(self, arguments: Sequence[str]) -> None:
        _hear_signals()
        options = Options.parse(arguments)
        server_user, self._agent = (options.server_user, options.agent_user) if os.getuid() == 0 else (None, None)
        # the engine is forked while this process is small, and before it gives up root
        self._engine = start_engine(self._agent, AGENTS)
        self._engine_pid = _only_child()
        self._engine_lives = True
        change_user(server_user)
        os.umask(0o007)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        prctl.forbid_new_privileges()
        prctl.hide_memory()
        prctl.adopt_orphans()
        self._children: dict[int, Child] = {}
        self._input = socket.socket(fileno=0)
        # what the author's code prints must not get between the lines of the output
        self._output = os.dup(1)
        os.dup2(2, 1)
        self._server = _preloaded(options.server)

    def run(self) -> int:
        """Fork until the input ends; the exit code."""
        woken = wake_on_children()
        # what is here now stays shared with every child, since no collection touches it any more
        gc.disable()
        gc.freeze()
        self._report({"loaded": True})
        poll = select.poll()
        for descriptor in (self._input.fileno(), woken):
            poll.register(descriptor, select.POLLIN)
        while True:
            ready = dict(poll.poll())
            if woken in ready:
                os.read(woken, 512)
                self._reap()
            if not self._engine_lives or (self._input.fileno() in ready and not self._obey()):
                break
        self._engine.close()  # and with it all commands end
        kill_descendants(reap_children)
        return 0 if self._engine_lives else 1

    def _obey(self) -> bool:
        """Do what the input says; False at its end."""
        data, descriptors, _, _ = socket.recv_fds(self._input, 1 << 16, 1, socket.MSG_CMSG_CLOEXEC)
        if not data:
            return False
        order = json.loads(data)
        if "start" in order:
            try:
                self._start(order, descriptors)
            except OSError as error:  # the machine allows no other, which those that live need not pay for
                for output in descriptors:
                    with suppress(OSError):
                        os.write(output, f"no server could be forked: {error.strerror}\n".encode())
                self._report({"ended": order["start"], "status": 1})
            finally:
                for output in descriptors:
                    os.close(output)
        else:
            self._signal(order["to"], order["signal"])
        return True

    def _start(self, order: dict[str, Any], descriptors: list[int]) -> None:
        if not descriptors:  # there was no number left for it
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        link = attach(self._engine, order["agent"])
        try:
            pid = os.fork()
        except OSError:
            link.close()
            raise
        if pid == 0:
            self._become(Options(**order["options"]), order["open_files"], link, descriptors[0])
        self._children[pid] = Child(order["start"], link)

    def _become(self, options: Options, open_files: int, link: socket.socket, output: int) -> NoReturn:
        """Turn this process into a sandbox's server."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            prctl.signal_when_parent_dies(signal.SIGKILL)
            self._input.detach()  # its number becomes another file
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.dup2(output, 1)
            os.dup2(output, 2)
            close_all_but({link.fileno()})
            resource.setrlimit(resource.RLIMIT_NOFILE, (open_files, open_files))
            gc.enable()
            from gymbox_sandbox.commands import Commands
            from gymbox_sandbox.serve import serve

            commands = Commands(link, options.workspace, agent_environment(options.workspace, self._agent))
            code = serve(options, commands, self._server)
        except BaseException:  # nothing may return into the zygote's loop
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def _signal(self, id: int, number: int) -> None:
        for pid, child in self._children.items():
            if child.id == id:
                os.kill(pid, number)

    def _reap(self) -> None:
        ended: list[tuple[Child, int]] = []

        def note(pid: int, status: int) -> None:
            if pid == self._engine_pid:
                self._engine_lives = False
            elif pid in self._children:
                ended.append((self._children.pop(pid), os.waitstatus_to_exitcode(status)))

        reap_children(note)
        if ended:
            # what the server itself had started is ours now
            while self._has_strangers() and Descendants(spare={self._engine_pid, *self._children}).kill():
                reap_children(note)
        for child, status in ended:
            _kill_commands(child.link)
            self._report({"ended": child.id, "status": status})

    def _has_strangers(self) -> bool:
        """Whether a process that a server had started is ours now; the whole of /proc is read only where it is."""
        children = children_of_this_thread()
        return children is None or not children <= {self._engine_pid, *self._children}

    def _report(self, report: dict[str, Any]) -> None:
        os.write(self._output, json.dumps(report).encode() + b"\n")


def _hear_signals() -> None:
    """Unblock what whoever started this process had blocked while it was in reach of a terminal; what came meanwhile
    was not for it. Everything forked from here hears signals, too."""
    for number in signal.pthread_sigmask(signal.SIG_BLOCK, ()):
        before = signal.signal(number, signal.SIG_IGN)  # which drops what waits
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {number})
        signal.signal(number, before or signal.SIG_DFL)


def _kill_commands(link: socket.socket) -> None:
    """Return when no command of a server that has ended is left."""
    with link:
        link.setblocking(True)
        with suppress(ConnectionError):  # the engine has ended, and all commands with it
            link.send(b"kzygote")
            while link.recv(64) not in (b"kzygote", b""):
                pass  # an answer that the server did not live to read


def _only_child() -> int:
    return next(pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if parent_of(pid) == os.getpid())


def _preloaded(target: str) -> type[ResourcesServer] | None:
    """The environment's server, to be shared by all; None if it cannot be loaded: then each sandbox says why."""
    from gymbox_sandbox import rehearsal, serve
    from gymbox_sandbox.problems import Problem

    try:
        server = serve.load(target)
    except Problem:
        return None
    rehearsal.rehearse(server)
    return server
