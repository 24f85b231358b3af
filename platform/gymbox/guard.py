"""Guard: who may call a server, on whatever framework it runs, and how a call is refused."""

from __future__ import annotations

import hmac
import ipaddress
import itertools
import json
import math
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from gymbox_sandbox.problems import MEDIA_TYPE

from gymbox.errors import ConfigError, Forbidden, Problem, Unauthorized

LOOPBACK_HOSTS = ("127.0.0.1", "localhost", "[::1]")
OPEN_PATHS = frozenset(
    {
        *("/healthz", "/readyz", "/openapi.json"),
        *("/docs", "/docs/swagger-ui-bundle.js", "/docs/swagger-ui.css", "/docs/favicon.png"),
    }
)
"""Answered without a token: they tell nothing about what a server holds."""
REQUEST_ID_HEADER = "X-Request-ID"
_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")
_PROCESS, _REQUESTS = secrets.token_hex(5), itertools.count(1)
"""Together they make ids: new ones for each request cost more."""


@dataclass(frozen=True, slots=True)
class Guard:
    """Who may call a server. Everything is an allow-list."""

    token: str | None = field(default=None, repr=False)
    """Bearer token that each request must carry, on localhost too (other local users, web pages and sandboxes reach
    loopback ports as well). None: the server checks tokens itself, or has nothing to protect."""
    hosts: tuple[str, ...] = LOOPBACK_HOSTS
    """Values of the Host header that are answered: `name`, with any port, or `name:port`. A page that rebinds its
    own name to this address is told by nothing else. `*` answers to any."""
    takes_api_key: bool = False
    """Whether the token may come as `x-api-key` instead, where clients of Anthropic's API put it: for models."""
    origins: tuple[str, ...] = ()
    """Values of the Origin header that are answered; a request without one comes from no web page."""
    own_pages: bool = False
    """Whether this server has pages, which may call it: an Origin is answered that is `http://` and the Host, where
    `hosts` is no `*`."""
    body_limit: int = 16 * 1024 * 1024
    """Bytes of a request's body; more is answered with 413. 0: no limit."""
    open_paths: frozenset[str] = OPEN_PATHS

    def __post_init__(self) -> None:
        """
        Raises:
            ConfigError: the token is empty, which every request would bring.
        """
        if self.token is not None and not self.token.strip():
            raise ConfigError("the token is empty: write one into its file or variable, or remove that")

    def check(self, path: str, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Let a request for `path` pass; the case of its headers' names does not matter.

        Raises:
            Forbidden: its Host or Origin is not on the list.
            Unauthorized: it needs the token and does not bring it.
        """
        host, origins, authorization, key = "", [], b"", b""
        for name, value in headers:
            match name.lower():
                case b"host":
                    host = value.decode("latin-1").lower()
                case b"origin":
                    origins.append(value.decode("latin-1"))
                case b"authorization":
                    authorization = value
                case b"x-api-key" if self.takes_api_key:
                    key = value
        if "*" not in self.hosts and host not in self.hosts and _without_port(host) not in self.hosts:
            raise Forbidden(f"this server does not answer to the host {host!r}")
        for origin in origins:
            own = self.own_pages and "*" not in self.hosts and origin == f"http://{host}"
            if not own and origin not in self.origins:
                raise Forbidden(f"requests from the web origin {origin!r} are not answered")
        if self.token is None or path in self.open_paths or is_bearer(authorization, self.token):
            return
        if key and hmac.compare_digest(key, self.token.encode()):
            return
        if key or bearer(authorization):
            raise Unauthorized("this token is not known here")
        raise Unauthorized("a bearer token is needed: 'Authorization: Bearer …'")

    def check_exposed(self, host: str, *, own_tokens: bool = False) -> None:
        """Let a server behind this guard listen on `host`; `own_tokens`: it checks tokens itself.

        Raises:
            ConfigError: the address can be reached from elsewhere and the guard is not up to that.
        """
        if is_loopback(host):
            return
        if self.token is None and not own_tokens:
            raise ConfigError(f"{host} can be reached from other machines: a token is needed to listen there")
        if "*" in self.hosts or set(self.hosts) <= set(LOOPBACK_HOSTS):
            raise ConfigError(
                f"{host} can be reached from other machines: name the hosts that clients may call it by "
                "(--allowed-host; allowed_hosts in settings)"
            )


def bearer(authorization: bytes) -> str:
    """The token in the value of an Authorization header, or `""`."""
    scheme, _, token = authorization.partition(b" ")
    return token.strip().decode("latin-1") if scheme.lower() == b"bearer" else ""


def is_bearer(authorization: bytes, token: str) -> bool:
    """Whether the header's value brings this token, compared in constant time; an empty one, nobody brings."""
    return token != "" and hmac.compare_digest(bearer(authorization).encode(), token.encode())


def is_loopback(host: str) -> bool:
    """Whether an address can be reached from this machine only."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def base_url(host: str, port: int) -> str:
    """Where a server that listens there is called from this machine; a wildcard address is told as loopback."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def is_id(given: str) -> bool:
    """Whether a caller's id may stand in logs and answers."""
    return _ID.fullmatch(given) is not None


def request_id(given: str | None) -> str:
    """The caller's id for a request, or a fresh one where there is none or it is not fit for a log."""
    return given if given and is_id(given) else f"{_PROCESS}{next(_REQUESTS):06x}"


def refusal(problem: Problem, status: int | None = None) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer that tells a client of `problem`."""
    content = problem.to_wire()
    if status is not None:
        content["status"] = status
    headers = {"Content-Type": MEDIA_TYPE}
    if problem.retry_after is not None:
        headers["Retry-After"] = str(math.ceil(problem.retry_after))
    if isinstance(problem, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return content["status"], headers, _encoded(content)


def _encoded(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=False, allow_nan=False).encode("utf-8", "replace")


def _without_port(host: str) -> str:
    return host if host.endswith("]") else host.rpartition(":")[0] or host
