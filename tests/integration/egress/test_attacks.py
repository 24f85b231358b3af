"""Ways around a policy. In each test the same request without the trick gets through."""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from typing import Any

import pytest

GOOD = b"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\n\r\n"
OK = b"HTTP/1.1 200 "


def get(target: str, host: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()


@pytest.mark.parametrize(
    "host", ["127.0.0.2", "2130706434", "0x7f000002", "0177.0.0.2", "127.2", "[::ffff:127.0.0.2]", "[::1]"]
)
async def test_an_address_is_not_reached_in_any_notation(world: Any, host: str) -> None:
    sandbox = await world("good.test")
    assert (await sandbox.said(GOOD)).startswith(OK)
    assert b" 403 " in await sandbox.said(get(f"http://{host}/", host))
    assert b" 403 " in await sandbox.said(f"CONNECT {host}:443 HTTP/1.1\r\nHost: {host}:443\r\n\r\n".encode())
    assert sandbox.places.dialled == ["127.0.0.2"] and sandbox.ledger.refused == 2


@pytest.mark.parametrize("host", ["127.0.0.3", "2130706435", "0177.0.0.3", "[::ffff:127.0.0.3]", "169.254.169.254"])
async def test_in_an_open_network_private_addresses_are_not_reached_in_any_notation(world: Any, host: str) -> None:
    sandbox = await world(everything=True)
    assert (await sandbox.said(get("http://127.0.0.2/", "127.0.0.2"))).startswith(OK)
    assert b"which is private" in await sandbox.said(get(f"http://{host}/", host))
    assert sandbox.places.dialled == ["127.0.0.2"]


@pytest.mark.parametrize("name", ["inside.test", "metadata.test", "mapped.test", "odd.test"])
async def test_a_listed_name_that_leads_to_a_private_address_is_refused(world: Any, name: str) -> None:
    sandbox = await world("good.test", name)
    assert (await sandbox.said(GOOD)).startswith(OK)
    assert b"which is private" in await sandbox.said(get(f"http://{name}/", name))
    assert sandbox.places.dialled == ["127.0.0.2"]


async def test_of_several_addresses_only_the_public_one_is_dialled(world: Any) -> None:
    sandbox = await world("both.test")
    assert (await sandbox.said(get("http://both.test/", "both.test"))).startswith(OK)
    assert sandbox.places.dialled == ["127.0.0.2"]


async def test_a_name_that_changes_its_address_gains_nothing(world: Any) -> None:
    sandbox = await world("moving.test")
    sandbox.places.changes["moving.test"] = ["127.0.0.2", "127.0.0.3"]
    asked = get("http://moving.test/", "moving.test")
    assert (await sandbox.said(asked)).startswith(OK)
    assert sandbox.places.asked == ["moving.test"]  # one look-up a connection: what is checked is what is dialled
    assert b"which is private" in await sandbox.said(asked)
    assert sandbox.places.dialled == ["127.0.0.2"]


async def test_connect_reaches_no_port_that_is_not_listed(world: Any) -> None:
    sandbox = await world("good.test")
    assert await sandbox.secure("good.test", sni="good.test", connect="good.test:443")
    for port in (22, 25, 80, 8443):
        asked = f"CONNECT good.test:{port} HTTP/1.1\r\nHost: good.test:{port}\r\n\r\n".encode()
        assert (await sandbox.said(asked)).startswith(b"HTTP/1.1 403 ")
    for target in ("good.test", "good.test:", "good.test:0", "good.test:99999", ":443", "good.test:443@other.test"):
        asked = f"CONNECT {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        assert (await sandbox.said(asked)).split(b" ")[1] in (b"400", b"403")
    assert sandbox.places.dialled == ["127.0.0.2"]


async def test_a_host_header_unlike_the_address_is_refused(world: Any) -> None:
    sandbox = await world("good.test")
    assert b"its Host header says other.test:80" in await sandbox.said(get("http://good.test/", "other.test"))
    assert b" 400 " in await sandbox.said(get("http://good.test/", "good.test:81"))
    two = b"GET http://good.test/ HTTP/1.1\r\nHost: good.test\r\nHost: other.test\r\n\r\n"
    assert (await sandbox.said(two)).startswith(b"HTTP/1.1 400 ")


async def test_a_second_request_on_the_same_connection_goes_nowhere(world: Any) -> None:
    sandbox = await world("good.test")
    answer = await sandbox.said(GOOD + get("http://other.test/", "other.test"))
    assert answer.count(b"HTTP/1.1 ") == 1 and sandbox.places.asked == ["good.test"]
    smuggled = b"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nContent-Length: 0\r\nTransfer-Encoding: chunked"
    assert b" 400 " in await sandbox.said(smuggled + b"\r\n\r\n0\r\n\r\n" + get("/", "other.test"))


async def test_tls_for_another_name_than_the_connections_is_cut(world: Any) -> None:
    sandbox = await world("good.test")
    for sni in ("other.test", "inside.test"):
        with pytest.raises((ConnectionError, EOFError, ssl.SSLError)):
            await sandbox.secure("good.test", sni=sni, connect="good.test:443")
    assert [why for _, _, why in sandbox.refusals] == ["its TLS asks for 'other.test'"]  # the same again is counted
    assert sandbox.ledger.refused == 2 and sandbox.ledger.let_through == 0


async def test_what_is_no_tls_is_cut_on_its_port(world: Any) -> None:
    sandbox = await world("good.test")
    connect = b"CONNECT good.test:443 HTTP/1.1\r\nHost: good.test:443\r\n\r\n"
    for first in (b"SSH-2.0-x\r\n", b"GET / HTTP/1.1\r\nHost: other.test\r\n\r\n", b"\x16\x03\x01" + b"\xff" * 300):
        answer = await sandbox.said(connect, more=first)
        assert answer.count(b"HTTP/1.1") == 1  # nothing came back but the 200
        assert await sandbox.said(first, "tls") == b""
    assert sandbox.ledger.let_through == 0 and sandbox.ledger.refused == 6


async def test_tls_without_a_name_leads_nowhere_without_a_proxy(world: Any) -> None:
    sandbox = await world("good.test")
    with pytest.raises((ConnectionError, EOFError, ssl.SSLError)):
        await sandbox.secure("good.test")
    assert sandbox.refusals == [("tls", "(tls)", "it says no server's name")]
    assert await sandbox.secure("good.test", connect="good.test:443")  # by CONNECT it is clear where to


async def test_a_redirect_to_a_private_host_is_refused_when_it_is_followed(world: Any) -> None:
    sandbox = await world("good.test", "inside.test")
    moved = await sandbox.said(get("http://good.test/away", "good.test"))
    assert moved.startswith(b"HTTP/1.1 302 ") and b"http://inside.test/" in moved
    assert b"which is private" in await sandbox.said(get("http://inside.test/", "inside.test"))


@pytest.mark.parametrize(
    "target",
    [
        "http://good.test@other.test/",
        "http://user:secret@good.test/",
        "http://good.test%2f@other.test/",
        "http://good.test\\@other.test/",
        "http://good.test:80:81/",
        "http:///",
        "https://good.test/",
        "ftp://good.test/",
        "file:///etc/passwd",
        "/",
        "*",
        "http://good.test#@other.test/",
    ],
)
async def test_addresses_with_users_and_other_tricks_are_refused(world: Any, target: str) -> None:
    sandbox = await world("good.test")
    assert (await sandbox.said(GOOD)).startswith(OK)
    answer = await sandbox.said(get(target, "good.test"))
    assert answer.split(b" ")[1] in (b"400", b"403") or sandbox.places.dialled == ["127.0.0.2"] * 2
    assert not {"127.0.0.3"} & set(sandbox.places.dialled) and sandbox.places.asked.count("other.test") == 0


async def test_huge_headers_are_refused(world: Any) -> None:
    sandbox = await world("good.test")
    assert (await sandbox.said(GOOD[:-2] + b"X-Long: " + b"x" * 8_000 + b"\r\n\r\n")).startswith(OK)
    huge = await sandbox.said(GOOD[:-2] + b"X-Long: " + b"x" * 40_000 + b"\r\n\r\n")
    assert huge.startswith(b"HTTP/1.1 431 ")


async def test_a_head_that_does_not_come_to_its_end_is_given_up(world: Any) -> None:
    sandbox = await world("good.test", head_within=0.3)
    assert (await sandbox.said(GOOD)).startswith(OK)
    assert (await sandbox.said(GOOD[:20])).startswith(b"HTTP/1.1 408 ")
    assert await sandbox.said(b"\x16\x03\x01", "tls") == b""
    assert [why for _, _, why in sandbox.refusals] == [
        "its head did not come within 0.3 s",
        "no TLS client began within 0.3 s",
    ]


async def test_connections_are_bounded_and_others_get_through_once_they_are_gone(world: Any) -> None:
    sandbox = await world("good.test", most=8, head_within=30)
    held = [await asyncio.open_connection("127.0.0.1", sandbox.ports.proxy) for _ in range(8)]
    for _ in range(100):
        await asyncio.sleep(0.02)
        if len(sandbox.ways._open) == 8:
            break
    assert await sandbox.said(GOOD) == b""
    assert ("any", "(connection)", "there are 8 already") in sandbox.refusals
    for _, writer in held:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()
    for _ in range(100):
        await asyncio.sleep(0.02)
        if not sandbox.ways._open:
            break
    assert (await sandbox.said(GOOD)).startswith(OK)


async def test_a_thousand_refusals_are_all_counted_and_not_all_kept(world: Any) -> None:
    sandbox = await world("good.test")
    for number in range(150):
        await sandbox.said(get(f"http://host-{number}.test/", f"host-{number}.test"))
    assert sandbox.ledger.refused == 150 and len(sandbox.ledger.news) == 100


@pytest.mark.parametrize("host", ["good.test:x", "good.test:99999", "", "good.test/", "a b", "user@good.test"])
async def test_a_host_header_that_is_none_is_refused(world: Any, host: str) -> None:
    sandbox = await world("good.test")
    assert (await sandbox.said(b"GET / HTTP/1.1\r\nHost: good.test\r\n\r\n", "web")).startswith(OK)
    asked = f"GET / HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
    assert (await sandbox.said(asked, "web")).startswith(b"HTTP/1.1 400 ")
    assert len(sandbox.places.dialled) == 1


@pytest.mark.parametrize("data", [b"", b"GET", b"\0\0\0\0", b"GET http://good.test/ HTTP/1.1\r\n\r\n"])
async def test_what_is_no_request_reaches_nobody(world: Any, data: bytes) -> None:
    sandbox = await world("good.test")
    assert (await sandbox.said(data, end=True)).split(b" ")[1:2] in ([], [b"400"])
    assert sandbox.places.dialled == []


async def test_a_port_of_thousands_of_digits_is_refused(world: Any) -> None:
    sandbox = await world("good.test")
    port = "8" * 5000
    for asked in (
        f"CONNECT good.test:{port} HTTP/1.1\r\nHost: good.test\r\n\r\n".encode(),
        get(f"http://good.test:{port}/", "good.test"),
        get("http://good.test/", f"good.test:{port}"),
    ):
        assert (await sandbox.said(asked)).startswith(b"HTTP/1.1 400 ")
    assert sandbox.ledger.refused == 3 and sandbox.places.asked == []


async def test_what_no_one_has_foreseen_is_a_refusal_too(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    sandbox = await world("good.test")

    async def broken(host: str, port: int) -> list[str]:
        raise RuntimeError("a fault")

    with monkeypatch.context() as patch:
        patch.setattr(sandbox.places, "_resolve", broken)
        assert await sandbox.said(GOOD) == b""
    assert sandbox.refusals == [("proxy", "(connection)", "it cannot be served (RuntimeError)")]
    assert (await sandbox.said(GOOD)).startswith(OK)
