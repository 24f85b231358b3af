"""What a sandbox's policy names is reached, and what it does not name is not: each with the other as its control."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import aiohttp
import pytest
from gymbox.egress.tunnels import tunnel

GOOD = b"GET http://good.test/path?a=b HTTP/1.1\r\nHost: good.test\r\n\r\n"


def told(answer: bytes) -> dict[str, Any]:
    return dict(json.loads(answer.partition(b"\r\n\r\n")[2]))


async def test_a_listed_host_is_reached_over_http_and_another_is_not(world: Any) -> None:
    sandbox = await world("good.test")
    found = told(await sandbox.said(GOOD))
    assert found["line"] == "GET /path?a=b HTTP/1.1" and found["headers"]["host"] == "good.test"
    refused = await sandbox.said(GOOD.replace(b"good", b"other"))
    assert refused.startswith(b"HTTP/1.1 403 ") and b"other.test:80: the host is not listed" in refused
    assert sandbox.refusals == [("proxy", "other.test:80", "the host is not listed, or not with this port")]
    assert (sandbox.ledger.let_through, sandbox.ledger.refused) == (1, 1)
    assert sandbox.places.asked == ["good.test"]  # the other's name was not even looked up


async def test_a_listed_host_is_reached_over_tls_and_another_is_not(world: Any) -> None:
    sandbox = await world("good.test")
    assert (await sandbox.secure("good.test", sni="good.test", connect="good.test:443"))["line"].startswith("GET /")
    with pytest.raises(ConnectionRefusedError, match="403"):
        await sandbox.secure("other.test", sni="other.test", connect="other.test:443")


async def test_programs_that_know_no_proxy_reach_listed_hosts_too(world: Any) -> None:
    sandbox = await world("good.test")
    plain = b"GET /x HTTP/1.1\r\nHost: good.test\r\n\r\n"
    assert told(await sandbox.said(plain, "web"))["line"] == "GET /x HTTP/1.1"
    assert (await sandbox.secure("good.test", sni="good.test"))["headers"]["host"] == "good.test"
    assert b"403" in await sandbox.said(plain.replace(b"good", b"other"), "web")
    with pytest.raises((ConnectionError, EOFError, OSError)):
        await sandbox.secure("other.test", sni="other.test")
    assert [(kind, target) for kind, target, _ in sandbox.refusals] == [
        ("http", "other.test:80"),
        ("tls", "other.test:443"),
    ]


async def test_a_wildcard_opens_what_is_below_the_name_and_not_itself(world: Any) -> None:
    sandbox = await world("*.wild.test")
    assert told(await sandbox.said(GOOD.replace(b"good.test", b"sub.wild.test")))["headers"]["host"] == "sub.wild.test"
    assert b" 403 " in await sandbox.said(GOOD.replace(b"good.test", b"wild.test"))
    assert b" 403 " in await sandbox.said(GOOD.replace(b"good.test", b"evilwild.test"))


async def test_an_entry_with_a_port_opens_that_port_alone(world: Any) -> None:
    sandbox = await world("good.test:8080")
    sandbox.places.ports[8080] = sandbox.places.ports[80]
    asked = b"GET http://good.test:8080/ HTTP/1.1\r\nHost: good.test:8080\r\n\r\n"
    assert told(await sandbox.said(asked))["headers"]["host"] == "good.test:8080"
    assert b" 403 " in await sandbox.said(GOOD)


async def test_everything_public_is_reached_where_the_network_is_open_and_nothing_private(world: Any) -> None:
    sandbox = await world(everything=True)
    assert told(await sandbox.said(GOOD.replace(b"good", b"other")))["headers"]["host"] == "other.test"
    assert told(await sandbox.said(GOOD.replace(b"good.test", b"127.0.0.2")))["headers"]["host"] == "127.0.0.2"
    assert b"which is private" in await sandbox.said(GOOD.replace(b"good", b"inside"))


async def test_bodies_and_large_answers_pass_whole(world: Any) -> None:
    sandbox = await world("good.test")
    proxy = f"http://127.0.0.1:{sandbox.ports.proxy}"
    async with aiohttp.ClientSession() as session:
        async with session.post("http://good.test/in", proxy=proxy, data=b"y" * 200_000) as answer:
            assert len((await answer.json(content_type=None))["body"]) == 200_000
        async with session.get("http://good.test/large", proxy=proxy) as answer:
            assert len(await answer.read()) == 1_000_000


async def test_a_programs_own_credentials_pass_and_the_proxys_do_not(world: Any) -> None:
    sandbox = await world("good.test")
    headers = b"Authorization: Bearer mine\r\nProxy-Authorization: Basic eA==\r\nProxy-Connection: keep-alive\r\n\r\n"
    found = told(await sandbox.said(GOOD.removesuffix(b"\r\n") + headers))["headers"]
    assert found["authorization"] == "Bearer mine" and not {name for name in found if name.startswith("proxy-")}


async def test_curl_finds_the_relay_by_its_environment_variables(world: Any) -> None:
    sandbox = await world("good.test")
    from gymbox_sandbox.relay import variables

    process = await asyncio.create_subprocess_exec(
        *("curl", "-sS", "--cacert", str(sandbox.authority), "http://good.test/", "https://good.test/"),
        env={"PATH": "/usr/bin:/bin", **variables("hosts", sandbox.ports)},
        stdout=asyncio.subprocess.PIPE,
    )
    out, _ = await process.communicate()
    assert out.count(b'"line": "GET / HTTP/1.1"') == 2


async def test_a_client_that_waits_for_leave_to_send_its_body_gets_it(world: Any) -> None:
    sandbox = await world("good.test")
    head = b"POST http://good.test/ HTTP/1.1\r\nHost: good.test\r\nContent-Length: 4\r\nExpect: 100-continue\r\n\r\n"
    answer = await sandbox.said(head, more=b"body")
    assert answer.startswith(b"HTTP/1.1 100 ") and b'"body": "body"' in answer


@pytest.mark.parametrize("said", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 103 Early Hints\r\n\r\n"])
async def test_a_host_that_gives_no_answer_is_told_as_a_bad_gateway(world: Any, said: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(said)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.2", 0)
    sandbox = await world("good.test")
    sandbox.places.ports[80] = server.sockets[0].getsockname()[1]
    refused = await sandbox.said(GOOD)
    assert refused.startswith(b"HTTP/1.1 502 ") and b"good.test:80: it gave no answer" in refused
    server.close()


async def test_an_answer_that_breaks_off_is_broken_off(world: Any) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1000)
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.2", 0)
    sandbox = await world("good.test")
    sandbox.places.ports[80] = server.sockets[0].getsockname()[1]
    found = await sandbox.said(GOOD)
    assert b"content-length: 100" in found and found.endswith(b"half")  # shorter than it says: no client takes it
    server.close()


async def test_a_silent_tunnel_is_closed_after_a_while(certificate: Any) -> None:
    async def never(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1)
        writer.close()

    server = await asyncio.start_server(never, "127.0.0.2", 0)
    port = server.sockets[0].getsockname()[1]
    near, far = [await asyncio.open_connection("127.0.0.2", port) for _ in range(2)]
    async with asyncio.timeout(5):
        await tunnel(near, far, b"first", idle=0.2)
    assert near[1].is_closing() and far[1].is_closing()
    server.close()
