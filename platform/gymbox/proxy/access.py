"""Access: which token may call what. Tokens are compared as SHA-256, in constant time; the proxy knows no token."""

from __future__ import annotations

import hmac
from collections.abc import Iterable

from gymbox_sandbox.lifecycle import Route, fingerprint

from gymbox.errors import Forbidden, NotFound, Unauthorized
from gymbox.proxy.paths import Scope

_NOBODY = "0" * 64


def digest(token: str) -> str:
    """The form in which tokens are kept.

    Raises:
        Unauthorized: there is no token.
    """
    if not token:
        raise Unauthorized("a bearer token is needed: 'Authorization: Bearer …'")
    return fingerprint(token)


def check_sandbox(token: str, route: Route | None, name: str, scope: Scope, admin: str) -> Route:
    """The route of the sandbox `name`, if `token` may make a call of this scope there; `admin` is a SHA-256.

    A token that is not for this sandbox is told the same as if there were none of that name.

    Raises:
        Unauthorized: no token.
        NotFound: no such sandbox, or not for this token.
        Forbidden: the token may call its tools, but not this.
    """
    presented = digest(token)
    is_admin = hmac.compare_digest(presented, admin)
    may_control = hmac.compare_digest(presented, route.control_token if route else _NOBODY)
    may_call_tools = hmac.compare_digest(presented, route.tools_token if route else _NOBODY)
    if route is None or not (is_admin or may_control or may_call_tools):
        raise NotFound(f"there is no sandbox {name!r} for this token", sandbox=name)
    if scope is Scope.CONTROL and not (is_admin or may_control):
        raise Forbidden("this token may call the sandbox's tools and nothing else")
    return route


def check_client(token: str, admin: str, clients: Iterable[str]) -> None:
    """Let `token` call models and agents.

    Raises:
        Unauthorized: no token, or none of theirs.
    """
    presented = digest(token)
    allowed = [hmac.compare_digest(presented, known) for known in (admin, *clients)]
    if not any(allowed):
        raise Unauthorized("this token is not known here as one that may call models and agents")


def check_admin(token: str, admin: str) -> None:
    """Let `token` see what the proxy counts.

    Raises:
        Unauthorized: no token, or not the admin's.
    """
    if not hmac.compare_digest(digest(token), admin):
        raise Unauthorized("only the admin token may do this")
