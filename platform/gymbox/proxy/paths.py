"""Paths: what a request's target names, and which right it needs, decided on exactly the path that is forwarded.

A path is decoded once, judged, and encoded again in one way; the result is what goes on. Whatever could be read
differently by the next server (dot segments, empty segments, encoded slashes, backslashes, absolute URIs) is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote, unquote_to_bytes

from gymbox_sandbox.lifecycle import ID_PATTERN

from gymbox.errors import Invalid, NotFound

CONTROL = frozenset({"archive", "exec", "files", "reset", "seed_session", "session", "sessions", "snapshot", "verify"})
"""First segments that only the control token may call; see `gymbox_sandbox.wire`. `session` is one of earlier servers,
which may have been adopted."""
_TARGET = re.compile(r"(/[A-Za-z0-9\-._~!$&'()*+,;=:@%/]*)(\?[!-\"$-~]*)?")
_SAFE = "-._~!$&'()*+,;=:@/"
_PLAIN = re.compile(rf"[A-Za-z0-9{re.escape(_SAFE)}]*")
_BAD_ESCAPE = re.compile(r"%(?![0-9A-Fa-f]{2})")
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\\]")
_ID = re.compile(ID_PATTERN)


class Malformed(Invalid):
    """The request itself is not what HTTP allows here."""

    status = 400


class Kind(StrEnum):
    """What stands behind a path."""

    SANDBOX = "sandboxes"
    MODEL = "models"
    AGENT = "agents"


class Scope(StrEnum):
    """Which right a call to a sandbox needs."""

    TOOLS = "tools"
    CONTROL = "control"


@dataclass(frozen=True, slots=True)
class Target:
    """`/{kind}/{name}{path}{query}`: where a request goes."""

    kind: Kind
    name: str
    path: str
    """Starts with `/`; canonically encoded."""
    query: str
    """With its `?`, as it came; or empty."""
    scope: Scope

    @property
    def prefix(self) -> str:
        return f"/{self.kind}/{self.name}"

    @classmethod
    def parse(cls, raw: str) -> Target:
        """What the target of a request line names.

        Raises:
            Malformed: it is no plain path, or one that the next server could read in another way.
            NotFound: nothing of the proxy's has that path.
        """
        path, query = canonical(raw)
        _, kind, *rest = path.split("/", 3)
        name = rest[0] if rest else ""
        if kind not in Kind or not _ID.fullmatch(name):
            raise NotFound(f"there is no {path!r} here; paths start with /sandboxes/ID, /models/NAME or /agents/NAME")
        inner = "/" + (rest[1] if len(rest) > 1 else "")
        first = inner.split("/", 2)[1].lower()
        return cls(Kind(kind), name, inner, query, Scope.CONTROL if first in CONTROL else Scope.TOOLS)


def canonical(raw: str) -> tuple[str, str]:
    """The path of a request's target, encoded in the one way that is forwarded, and its query.

    Raises:
        Malformed: see `Target.parse`.
    """
    found = _TARGET.fullmatch(raw)
    if found is None:
        raise Malformed("the request target must be a path of RFC 3986, in ASCII, without fragment")
    path, query = found[1], found[2] or ""
    if not _PLAIN.fullmatch(path):
        path = _recoded(path)
    # a slash at the very end is fine, an empty segment anywhere else is not
    segments = path.removesuffix("/").split("/")[1:]
    if not all(segments) or "." in segments or ".." in segments:
        raise Malformed("the path has an empty or a dot segment")
    return path, query


def _recoded(path: str) -> str:
    if _BAD_ESCAPE.search(path):
        raise Malformed("the path has a % that begins no escape")
    try:
        decoded = unquote_to_bytes(path).decode()
    except UnicodeDecodeError:
        raise Malformed("the path is not UTF-8") from None
    if decoded.count("/") != path.count("/") or _UNSAFE.search(decoded):
        raise Malformed("the path has an encoded slash, a backslash or a control character")
    return quote(decoded, safe=_SAFE)
