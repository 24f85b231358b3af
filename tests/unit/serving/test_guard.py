"""Guard: who is let in, and how the others are told."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from gymbox.errors import AtCapacity, ConfigError, Forbidden, Unauthorized
from gymbox.guard import Guard, base_url, is_bearer, is_loopback, refusal, request_id

TOKEN = "a-token-for-tests-only"


@pytest.mark.parametrize(
    ("hosts", "host", "allowed"),
    [
        (("localhost",), "localhost:8710", True),
        (("localhost",), "LOCALHOST", True),
        (("localhost",), "localhost.evil", False),
        (("box:1",), "box:1", True),
        (("box:1",), "box:2", False),
        (("[::1]",), "[::1]:80", True),
        (("localhost",), "", False),
        (("*",), "anything", True),
    ],
)
def test_hosts_are_an_allow_list(hosts, host, allowed):
    headers = [(b"Host", host.encode())]
    if allowed:
        Guard(hosts=hosts).check("/", headers)
    else:
        with pytest.raises(Forbidden):
            Guard(hosts=hosts).check("/", headers)


def test_origins_are_an_allow_list_and_each_of_several_counts():
    guard = Guard(origins=("https://mine",))
    headers = [(b"host", b"localhost"), (b"origin", b"https://mine")]
    guard.check("/", headers)
    with pytest.raises(Forbidden):
        guard.check("/", [*headers, (b"origin", b"https://evil")])


@pytest.mark.parametrize("value", [b"", b"Bearer", b"Bearer wrong", b"Basic x", "Bearer ü".encode("latin-1")])
def test_only_the_token_lets_in(value):
    headers = [(b"host", b"localhost"), (b"authorization", value)]
    with pytest.raises(Unauthorized):
        Guard(token=TOKEN).check("/x", headers)
    Guard(token=TOKEN).check("/healthz", headers)


def test_a_key_where_clients_of_models_put_it_opens_servers_of_models_only():
    headers = [(b"host", b"localhost"), (b"X-Api-Key", TOKEN.encode())]
    Guard(token=TOKEN, takes_api_key=True).check("/x", headers)
    with pytest.raises(Unauthorized):
        Guard(token=TOKEN).check("/x", headers)
    with pytest.raises(Unauthorized, match="this token is not known here"):
        Guard(token=TOKEN, takes_api_key=True).check("/x", [headers[0], (b"x-api-key", b"another")])


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (b"", "a bearer token is needed"),
        (b"Basic x", "a bearer token is needed"),
        (b"Bearer another", "this token is not known here"),
    ],
)
def test_a_wrong_token_is_told_from_a_missing_one(value, said):
    with pytest.raises(Unauthorized, match=said):
        Guard(token=TOKEN).check("/x", [(b"host", b"localhost"), (b"authorization", value)])


@pytest.mark.parametrize(
    ("origin", "host", "allowed"),
    [
        (b"http://localhost:8710", b"localhost:8710", True),
        (b"http://localhost:3000", b"localhost:8710", False),
        (b"http://evil", b"evil", False),
        (b"null", b"localhost:8710", False),
    ],
)
def test_pages_of_the_servers_own_may_call_it_where_it_has_some(origin, host, allowed):
    headers = [(b"host", host), (b"origin", origin)]
    with pytest.raises(Forbidden):
        Guard().check("/", headers)
    if allowed:
        Guard(own_pages=True).check("/", headers)
    else:
        with pytest.raises(Forbidden):
            Guard(own_pages=True).check("/", headers)


def test_who_answers_to_any_host_trusts_no_page():
    with pytest.raises(Forbidden):
        Guard(own_pages=True, hosts=("*",)).check("/", [(b"host", b"evil"), (b"origin", b"http://evil")])


@pytest.mark.parametrize("token", ["", " ", "\n"])
def test_an_empty_token_opens_nothing(token):
    with pytest.raises(ConfigError, match="token is empty"):
        Guard(token=token, takes_api_key=True)
    assert not any(is_bearer(value, token.strip()) for value in (b"", b"Bearer", b"Bearer ", b"Basic x"))


def test_a_guard_does_not_show_its_token():
    assert TOKEN not in repr(Guard(token=TOKEN))


def test_a_wildcard_address_is_called_as_loopback():
    assert base_url("0.0.0.0", 80) == "http://127.0.0.1:80"
    assert base_url("::", 80) == "http://[::1]:80"
    assert base_url("10.0.0.1", 80) == "http://10.0.0.1:80"


@pytest.mark.parametrize("given", [None, "", "two words", "x" * 129, "naïve", "line\nbreak"])
def test_an_id_that_is_not_fit_for_a_log_is_replaced(given):
    assert request_id("as-given.1") == "as-given.1"
    assert len(request_id(given)) == 16


def test_a_refusal_says_when_to_come_back_in_whole_seconds():
    status, headers, body = refusal(AtCapacity("full", retry_after=1.2))

    assert (status, headers["Retry-After"], json.loads(body)["retry_after"]) == (429, "2", 1.2)


@pytest.mark.parametrize(
    ("host", "loopback"), [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("box", False)]
)
def test_loopback_is_told_from_the_rest(host, loopback):
    assert is_loopback(host) is loopback


@pytest.mark.parametrize("module", ["gymbox.proxy", "gymbox.guard", "gymbox.lifetime"])
def test_the_proxy_loads_no_web_framework_beside_its_own(module):
    look = f"import sys, {module}; sys.exit(', '.join({{'fastapi', 'uvicorn', 'starlette'}} & set(sys.modules)))"

    assert subprocess.run([sys.executable, "-c", look], capture_output=True, text=True).stderr.strip() == ""
