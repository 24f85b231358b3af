"""What is passed on in each direction."""

from __future__ import annotations

from gymbox.proxy.headers import for_client, for_upstream
from multidict import CIMultiDict


def test_hop_by_hop_headers_end_here_also_those_named_by_connection() -> None:
    request = CIMultiDict(
        [
            ("Connection", "keep-alive, X-Mine"),
            ("connection", "X-Other"),
            ("Keep-Alive", "5"),
            ("TE", "trailers"),
            ("Trailer", "X"),
            ("Proxy-Authorization", "Basic x"),
            ("X-Mine", "1"),
            ("x-other", "2"),
            ("X-Stays", "3"),
            ("x-stays", "4"),
        ]
    )
    assert list(for_upstream(request, {}).items()) == [("X-Stays", "3"), ("x-stays", "4")]


def test_credentials_and_what_only_the_proxy_says_never_reach_an_upstream() -> None:
    sent = CIMultiDict(
        {
            "Authorization": "Bearer x",
            "Cookie": "a=b",
            "X-Api-Key": "k",
            "Host": "evil",
            "Forwarded": "for=1",
            "X-Forwarded-For": "1",
            "x-forwarded-anything": "1",
            "X-Gymbox-Session": "another",
            "X-Request-ID": "given",
            "Content-Length": "5",
            "Expect": "100-continue",
            "X-Gymbox-Rollout": "r1",
        }
    )
    passed = for_upstream(sent, {"X-Gymbox-Session": "mine", "X-Request-ID": "checked"})
    assert dict(passed) == {"X-Gymbox-Rollout": "r1", "X-Gymbox-Session": "mine", "X-Request-ID": "checked"}


def test_a_header_named_by_connection_cannot_take_away_what_the_proxy_adds() -> None:
    sent = CIMultiDict({"Connection": "X-Gymbox-Session"})
    assert for_upstream(sent, {"X-Gymbox-Session": "mine"})["X-Gymbox-Session"] == "mine"


def test_an_answer_sets_no_cookie_and_names_the_request() -> None:
    answer = CIMultiDict({"Set-Cookie": "a=b", "Connection": "close", "Content-Encoding": "br", "X-Request-ID": "its"})
    passed = for_client(answer, origin="http://sandbox", prefix="/sandboxes/a", request="ours")
    assert dict(passed) == {"Content-Encoding": "br", "X-Request-ID": "ours"}


def test_a_redirect_stays_under_the_prefix_and_one_elsewhere_is_left_alone() -> None:
    def told(location: str) -> str:
        headers = CIMultiDict({"Location": location})
        return for_client(headers, origin="http://sandbox", prefix="/sandboxes/a", request="r")["Location"]

    assert told("http://sandbox/tools/") == "/sandboxes/a/tools/"
    assert told("/tools/") == "/sandboxes/a/tools/"
    assert told("next") == "next"
    assert told("//evil.example/x") == "//evil.example/x"
    assert told("https://evil.example/x") == "https://evil.example/x"


def test_a_value_that_is_no_utf8_can_still_be_sent() -> None:
    passed = for_upstream(CIMultiDict({"X-Name": b"caf\xe9".decode("utf-8", "surrogateescape")}), {})
    assert passed["X-Name"].encode() == "caf\ufffd".encode()
