"""Headers: what is passed on in each direction, and what is not (RFC 9110, 7.6.1)."""

from __future__ import annotations

from collections.abc import Mapping

from gymbox_sandbox.wire import SESSION_HEADER
from multidict import CIMultiDict, CIMultiDictProxy

from gymbox.guard import REQUEST_ID_HEADER

HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
_NOT_FOR_UPSTREAM = HOP_BY_HOP | {
    # credentials: what is proven here is not for anyone behind
    "api-key",
    "authorization",
    "cookie",
    "x-api-key",
    # only the proxy says these
    "content-length",
    "expect",
    "forwarded",
    "host",
    "x-real-ip",
    REQUEST_ID_HEADER.lower(),
    SESSION_HEADER.lower(),
}
_NOT_FOR_CLIENT = HOP_BY_HOP | {
    "set-cookie",  # all sandboxes share the proxy's origin: one would set cookies for the others
    REQUEST_ID_HEADER.lower(),
}

Headers = CIMultiDictProxy[str] | CIMultiDict[str]


def for_upstream(headers: Headers, added: Mapping[str, str]) -> CIMultiDict[str]:
    """The headers of a client's request that go on, with those that the proxy adds."""
    passed = _without(headers, _NOT_FOR_UPSTREAM)
    for name in [name for name in passed if name.lower().startswith(("x-forwarded-", "sec-websocket-"))]:
        passed.popall(name, None)
    passed.update(added)
    return passed


def for_client(headers: Headers, *, origin: str, prefix: str, request: str) -> CIMultiDict[str]:
    """The headers of an upstream's answer that go back; a redirect within `origin` is told under `prefix`."""
    passed = _without(headers, _NOT_FOR_CLIENT)
    if "Location" in passed:
        location = passed["Location"].removeprefix(origin)
        if location.startswith("/") and not location.startswith("//"):
            passed["Location"] = prefix + location
    passed[REQUEST_ID_HEADER] = request
    return passed


def _without(headers: Headers, dropped: frozenset[str]) -> CIMultiDict[str]:
    named = headers.getall("Connection", None)
    if named:
        dropped = dropped | {token.strip().lower() for value in named for token in value.split(",")}
    passed: CIMultiDict[str] = CIMultiDict()
    for name, value in headers.items():
        if name.lower() not in dropped:
            passed.add(name, value if value.isascii() else _sendable(value))
    return passed


def _sendable(value: str) -> str:
    # bytes that are no UTF-8 come in as lone surrogates, which cannot go out again
    return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
