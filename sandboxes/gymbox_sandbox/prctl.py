"""Prctl: the few switches of the kernel that Python has no function for."""

from __future__ import annotations

import ctypes
import os

_SET_PDEATHSIG, _SET_DUMPABLE, _SET_CHILD_SUBREAPER, _SET_NO_NEW_PRIVS = 1, 4, 36, 38
_libc = ctypes.CDLL(None, use_errno=True)


def signal_when_parent_dies(number: int) -> None:
    """Get signal `number` when the parent ends. Changing user clears this, so it comes after."""
    _prctl(_SET_PDEATHSIG, number)


def hide_memory() -> None:
    """No other process of the same user may read or trace this one, nor what it forks; ends with exec."""
    _prctl(_SET_DUMPABLE, 0)


def show_memory() -> None:
    """Undo `hide_memory`."""
    _prctl(_SET_DUMPABLE, 1)


def adopt_orphans() -> None:
    """Descendants whose parent ends become children of this process."""
    _prctl(_SET_CHILD_SUBREAPER, 1)


def forbid_new_privileges() -> None:
    """From here on no exec gains rights, set-uid or not; holds for all descendants."""
    _prctl(_SET_NO_NEW_PRIVS, 1)


def use_files_as(uid: int, gid: int) -> None:
    """What this thread opens and makes from here on is opened and made as this user; in all else it stays who it is,
    so the user can neither signal nor trace it. Needs SETUID and SETGID."""
    _libc.setfsgid(gid)
    _libc.setfsuid(uid)


def _prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), f"prctl {option}")
