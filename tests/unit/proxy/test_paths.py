"""The path that is judged is the path that is forwarded."""

from __future__ import annotations

from urllib.parse import unquote

import pytest
from gymbox.errors import NotFound
from gymbox.proxy.paths import CONTROL, Kind, Malformed, Scope, Target, canonical
from hypothesis import given
from hypothesis import strategies as st

REFUSED = [
    "",
    "*",
    "sandboxes/a/verify",
    "http://evil.example/sandboxes/a/verify",
    "//evil.example/sandboxes/a",
    "/sandboxes//a/verify",
    "/sandboxes/a//verify",
    "/sandboxes/a/./verify",
    "/sandboxes/a/../b/verify",
    "/sandboxes/a/tools/..",
    "/sandboxes/a/%2e%2e/b/verify",
    "/sandboxes/a/%2E./verify",
    "/sandboxes/a/tools%2f..%2fverify",
    "/sandboxes/a/tools%2Fx",
    "/sandboxes/a/tools\\..\\verify",
    "/sandboxes/a/tools%5c..%5cverify",
    "/sandboxes/a/%00verify",
    "/sandboxes/a/verify%0d%0aX-Evil:1",
    "/sandboxes/a/%zz",
    "/sandboxes/a/%",
    "/sandboxes/a/%ff",
    "/sandboxes/a/x#y",
    "/sandboxes/a/x?y#z",
    "/sandboxes/a/tools/é",
    "/sandboxes/a/a b",
    "/sandboxes/a/\x00",
]


@pytest.mark.parametrize("raw", REFUSED)
def test_a_path_that_two_servers_could_read_differently_is_refused(raw: str) -> None:
    with pytest.raises(Malformed):
        Target.parse(raw)


@pytest.mark.parametrize(
    "raw",
    [
        "/",
        "/sandboxes",
        "/sandboxes/",
        "/sandboxes/@evil.example/verify",
        "/sandboxes/-a/x",
        "/sandboxes/%61%40b/x",
        f"/sandboxes/{'a' * 101}/x",
        "/Sandboxes/a/x",
        "/admin/routes",
        "/routes",
    ],
)
def test_what_is_none_of_the_proxys_is_not_found(raw: str) -> None:
    with pytest.raises(NotFound):
        Target.parse(raw)


@pytest.mark.parametrize("first", sorted(CONTROL))
@pytest.mark.parametrize("form", ["/{}", "/{}/", "/{}/more", "/{}?x=/tools/y"])
def test_what_stands_under_control_needs_the_control_token(first: str, form: str) -> None:
    assert Target.parse("/sandboxes/a" + form.format(first)).scope is Scope.CONTROL


@pytest.mark.parametrize(
    "path", ["", "/", "/tools", "/tools/verify", "/healthz", "/own/exec", "/verifying", "/exec.txt"]
)
def test_tools_and_an_authors_own_routes_need_the_tools_token(path: str) -> None:
    assert Target.parse("/sandboxes/a" + path).scope is Scope.TOOLS


def test_an_encoded_control_route_is_judged_by_what_it_says_and_forwarded_so() -> None:
    target = Target.parse("/sandboxes/a/%76erif%79?path=%2e%2e/x")
    assert (target.scope, target.path, target.query) == (Scope.CONTROL, "/verify", "?path=%2e%2e/x")


def test_a_path_with_any_text_is_forwarded_in_one_encoding() -> None:
    target = Target.parse("/sandboxes/a/tools/caf%c3%a9%20%25%7e")
    assert target.path == "/tools/caf%C3%A9%20%25~"
    assert unquote(target.path) == "/tools/café %~"


def test_a_target_knows_its_parts() -> None:
    assert Target.parse("/models/local/v1/responses?a=b") == Target(
        Kind.MODEL, "local", "/v1/responses", "?a=b", Scope.TOOLS
    )
    assert Target.parse("/agents/x").prefix == "/agents/x"


@given(st.text(alphabet="/.%2eEfF5cC\\verify-a?#@", max_size=40))
def test_no_path_leaves_its_sandbox_or_hides_a_control_route(tail: str) -> None:
    try:
        target = Target.parse("/sandboxes/a/" + tail)
    except (Malformed, NotFound):
        return
    decoded = unquote(target.path)
    segments = decoded.split("/")
    assert ".." not in segments and "." not in segments and "\\" not in decoded
    assert decoded.startswith("/") and not decoded.startswith("//")
    assert (target.scope is Scope.CONTROL) == (segments[1].lower() in CONTROL)
    assert canonical(target.prefix + target.path) == (target.prefix + target.path, "")
