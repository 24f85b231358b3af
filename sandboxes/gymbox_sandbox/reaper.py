"""Reaper: the life of a command, from fork to the last of its descendants.

Each command has a reaper to itself, between it and the supervisor; one whose command has left nothing behind takes the
next, which saves a fork. It runs as the supervisor's user, so the command cannot end it, and adopts the command's
orphans, so no descendant gets away. It tells how the command ended the moment
it does. Background children of a command that ended by itself live on, as a shell's user expects of `server &`; they
end with the leash. A command that runs out of time, or whose caller hangs up, goes with its whole tree.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import resource
import select
import signal
import socket
import struct
import termios
import time
from collections.abc import Sequence

from gymbox_sandbox import prctl, transfer
from gymbox_sandbox.options import User
from gymbox_sandbox.process_tree import foreground_group, kill_descendants, reap_children, standing_still
from gymbox_sandbox.spawn import SIGNAL, Spawn

_DEFAULT_SIGNALS = (
    signal.SIGPIPE,
    signal.SIGXFSZ,
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGQUIT,
    signal.SIGCHLD,
)
"""What Python or the supervisor changed, and a program expects as it is by default."""


def reap(control: socket.socket, leash: int, agent: User | None) -> None:
    """Run the commands that `control` asks for, one after the other, until it closes or one leaves children behind;
    then stay until none of these is left.

    Args:
        leash: A descriptor; when its other end closes, everything is killed.
        agent: Who runs the commands; None for the user that this process has.
    """
    prctl.adopt_orphans()
    woken = wake_on_children()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    poll = select.poll()
    for fd in (control.fileno(), leash):
        poll.register(fd, select.POLLIN)
    while True:
        if leash in dict(poll.poll()) or (received := _next(control)) is None:
            return
        spawn, stdio = received
        started = time.monotonic()
        try:
            pid = os.fork()
        except OSError as error:
            _tell(control, f"refused unavailable no process could be started: {error.strerror}")
            return
        if pid == 0:
            _become(spawn, stdio, agent, control)
        for fd in stdio:
            os.close(fd)
        reaper = _Reaper(control, leash, woken, pid, started)
        with standing_still(agent) if spawn.state else contextlib.nullcontext():
            is_free = reaper.wait(started + spawn.timeout)
        if not is_free:
            return


def _next(control: socket.socket) -> tuple[Spawn, list[int]] | None:
    try:
        return Spawn.receive(control)
    except ConnectionError:  # the server hung up without reading all that it was told
        return None


class _Reaper:
    def __init__(self, control: socket.socket, leash: int, woken: int, pid: int, started: float) -> None:
        self._control = control
        self._leash = leash
        self._woken = woken
        self._pid = pid
        self._started = started
        self._status: int | None = None

    def wait(self, deadline: float) -> bool:
        """Wait for the command's end, and whether another can follow."""
        poll = select.poll()
        for fd in (self._control.fileno(), self._leash, self._woken):
            poll.register(fd, select.POLLIN)
        while self._status is None:
            ready = dict(poll.poll(max(0.0, deadline - time.monotonic()) * 1000))
            if not ready:
                self._kill(timed_out=True)
                return False
            if self._leash in ready or (self._control.fileno() in ready and not self._obey()):
                self._kill()
                return False
            if self._woken in ready:
                os.read(self._woken, 512)
                self._reap()
        free = not self._reap()
        self._tell_end(free=free)
        if free:
            return True
        poll.unregister(self._control)
        self._control.close()
        while self._reap():
            if self._leash in dict(poll.poll()):
                kill_descendants(self._reap)
                return False
            os.read(self._woken, 512)
        return False

    def _obey(self) -> bool:
        """Pass on the signals that the server asks for; False if it hung up."""
        try:
            message = self._control.recv(2, socket.MSG_WAITALL)
        except ConnectionError:  # it hung up without reading all that we told
            return False
        for number in message[1:]:
            group = foreground_group(self._pid)
            with contextlib.suppress(OSError):
                os.killpg(group if group > 0 else self._pid, number)
        return message[:1] == SIGNAL

    def _kill(self, *, timed_out: bool = False) -> None:
        kill_descendants(self._reap)
        self._tell_end(timed_out=timed_out)

    def _reap(self) -> bool:
        return reap_children(self._note)

    def _note(self, pid: int, status: int) -> None:
        if pid == self._pid:
            self._status = status

    def _tell_end(self, *, timed_out: bool = False, free: bool = False) -> None:
        code = -signal.SIGKILL if self._status is None else os.waitstatus_to_exitcode(self._status)
        _tell(self._control, f"ended {code} {int(timed_out)} {int(free)} {time.monotonic() - self._started:.6f}")


def change_user(user: User | None) -> None:
    """Become `user` for good, without any other group; None changes nothing."""
    if user is not None:
        os.setgroups([])
        os.setresgid(user.gid, user.gid, user.gid)
        os.setresuid(user.uid, user.uid, user.uid)


def _become(spawn: Spawn, stdio: Sequence[int], agent: User | None, control: socket.socket) -> None:
    """Turn this process into the command; never returns."""
    try:
        os.setsid()
        os.umask(0o022)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if spawn.transfer:
            transfer.load(spawn.argv[0])
        if not spawn.state:
            _be_first_to_go(agent)
            change_user(agent)
        prctl.signal_when_parent_dies(signal.SIGKILL)
        os.chdir(spawn.cwd)
        # told from here, since only now nothing can be refused any more
        started = f"started {os.getpid()}\n".encode()
        if spawn.terminal is None:
            control.sendall(started)
        else:
            master, slave = _terminal(spawn.terminal)
            socket.send_fds(control, [started], [master])
            stdio = [slave, slave, slave, *stdio]
        for target, fd in enumerate(stdio):
            os.dup2(fd, target)
            os.set_inheritable(target, True)  # where it was there already, dup2 changes nothing
        signal.set_wakeup_fd(-1)
        for number in _DEFAULT_SIGNALS:
            signal.signal(number, signal.SIG_DFL)
    except OSError as error:
        kind = "invalid" if error.filename == spawn.cwd else "unavailable"
        _tell(control, f"refused {kind} {error.filename or 'the command'}: {error.strerror}")
        os._exit(126)
    server = User(*struct.unpack("3i", control.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[1:])
    os.closerange(len(stdio), most_descriptors())
    if spawn.state:
        from gymbox_sandbox import state_archive

        os._exit(state_archive.main(spawn.argv, agent, server))
    if spawn.transfer:
        os._exit(transfer.main(spawn.argv))
    try:
        os.execvpe(spawn.argv[0], list(spawn.argv), spawn.env)
    except OSError as error:
        # as a shell says it, so that a model that knows shells knows what to do
        missing = error.errno in (errno.ENOENT, errno.ENOTDIR) or not _is_somewhere(spawn)
        text = "command not found" if missing and "/" not in spawn.argv[0] else error.strerror
        with contextlib.suppress(OSError):
            os.write(2, os.fsencode(f"{spawn.argv[0]}: {text}\n"))
        os._exit(127 if missing else 126)


def _be_first_to_go(agent: User | None) -> None:
    """When memory is short, let the kernel end this process and its children before the server and its reaper."""
    with contextlib.suppress(OSError):  # where /proc does not allow it, the kernel chooses by size
        if agent is None:  # a process whose memory is hidden has files in /proc that are root's
            prctl.show_memory()
        fd = os.open("/proc/self/oom_score_adj", os.O_WRONLY)
        try:
            os.write(fd, b"1000")
        finally:
            os.close(fd)


def _is_somewhere(spawn: Spawn) -> bool:
    """Whether there is such a program at all: exec says otherwise where a folder of PATH is closed to the agent."""
    folders = [""] if "/" in spawn.argv[0] else spawn.env.get("PATH", "").split(":")
    return any(os.path.exists(os.path.join(folder, spawn.argv[0])) for folder in folders)


def _terminal(size: tuple[int, int]) -> tuple[int, int]:
    """Both sides of a new terminal, which belongs to this process's session and user."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", *size, 0, 0))
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    return master, slave


def _tell(control: socket.socket, line: str) -> None:
    # nobody may be listening any more; there is nobody to tell that either
    with contextlib.suppress(OSError):
        control.sendall(os.fsencode(line.replace("\n", " ") + "\n"))


def wake_on_children() -> int:
    """A descriptor that is readable whenever a child has ended."""
    read, write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(write, warn_on_full_buffer=False)
    return read


def most_descriptors() -> int:
    return min(os.sysconf("SC_OPEN_MAX"), 1 << 20)
