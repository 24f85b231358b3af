"""Paths: E2B's home of the user is the workspace here, and the one user that commands have is theirs."""

from __future__ import annotations

import base64
import binascii
import posixpath

from gymbox.e2b.refusals import Code, Refused, Unserved

E2B_HOME = "/home/user"
USERS = ("", "user")
"""Who may be asked for: nobody, and E2B's own default."""
LONGEST = 4095
"""Bytes that the kernel takes."""


def in_sandbox(path: str, home: str) -> str:
    """An absolute path in the sandbox: what is relative, or below `~` or E2B's home, is below `home`. It may lead
    anywhere in the sandbox; what the user may do there is its kernel's matter.

    Raises:
        Refused: it is no path.
    """
    if "\0" in path or len(path.encode("utf-8", "surrogatepass")) > LONGEST:
        raise Refused(Code.INVALID_ARGUMENT, f"{path!r:.100} is no path")
    for begin in ("~", E2B_HOME):
        if path == begin or path.startswith(f"{begin}/"):
            path = path[len(begin) :].lstrip("/")
            break
    # `..` stays: where it leads is the kernel's to say, as of a link before it
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return "/" + "/".join(parts) if path.startswith("/") else posixpath.join(home, *parts)


def check_user(name: str | None) -> None:
    """
    Raises:
        Unserved: there is no such user here.
    """
    if (name or "") not in USERS:
        raise Unserved(f"there is no user {name!r:.60} here: all is done as the sandbox's own unprivileged user")


def user_of(authorization: str) -> str:
    """The user that an Authorization header names; E2B's SDK asks for one so.

    Raises:
        Refused: the header is wrong.
    """
    scheme, _, value = authorization.partition(" ")
    if scheme.lower() != "basic":
        return ""
    try:
        return base64.b64decode(value, validate=True).decode().partition(":")[0]
    except (binascii.Error, ValueError) as error:
        raise Refused(Code.UNAUTHENTICATED, "the Authorization header is wrong") from error
