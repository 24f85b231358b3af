"""Names are answered in the sandbox itself: what is asked for never becomes a question of anyone else's."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest


def question(name: str, kind: int = 1) -> bytes:
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack(">HHHHHH", 7, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack(">HH", kind, 1)


async def asked(sandbox: Any, data: bytes, within: float = 5) -> bytes:
    loop = asyncio.get_running_loop()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        asker.setblocking(False)
        asker.connect(("127.0.0.1", sandbox.ports.names))
        await loop.sock_sendall(asker, data)
        async with asyncio.timeout(within):
            return await loop.sock_recv(asker, 1024)


def code(answer: bytes) -> int:
    return answer[3] & 15


async def test_a_listed_name_leads_to_the_sandboxs_own_relay_and_no_other_name_anywhere(world: Any) -> None:
    sandbox = await world("good.test", "*.wild.test")
    for name in ("good.test", "GOOD.test", "x.wild.test"):
        answer = await asked(sandbox, question(name))
        assert code(answer) == 0 and answer.endswith(socket.inet_aton("127.0.0.1")) and answer[:2] == b"\0\7"
    for name in ("other.test", "wild.test", "inside.test", "localhost"):
        assert code(await asked(sandbox, question(name))) == 3
    assert sandbox.places.asked == []
    counts = sandbox.ledger.report()
    assert (counts["let_through"], counts["names_answered"], counts["refused"]) == (0, 3, 4)


async def test_a_secret_in_a_subdomain_reaches_nobody(world: Any) -> None:
    sandbox = await world("good.test")
    assert code(await asked(sandbox, question("c2VjcmV0.good.test"))) == 3
    assert code(await asked(sandbox, question("c2VjcmV0.evil.test", 16))) == 3
    assert sandbox.places.asked == [] and sandbox.places.dialled == []
    assert ("dns", "c2vjcmv0.good.test", "the name is not listed") in sandbox.refusals


@pytest.mark.parametrize("kind", [28, 16, 15, 255])
async def test_a_listed_name_has_nothing_but_that_address(world: Any, kind: int) -> None:
    answer = await asked(await world("good.test"), question("good.test", kind))
    assert code(answer) == 0 and answer[6:8] == b"\0\0"


async def test_questions_over_tcp_are_answered_one_after_the_other(world: Any) -> None:
    sandbox = await world("good.test")
    reader, writer = await asyncio.open_connection("127.0.0.1", sandbox.ports.names)
    for name, expected in (("good.test", 0), ("other.test", 3)):
        data = question(name)
        writer.write(len(data).to_bytes(2) + data)
        answer = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
        assert code(answer) == expected
    writer.close()
    too_long = await sandbox.said((2000).to_bytes(2) + b"x" * 2000, "names")
    assert too_long == b"" and sandbox.refusals[-1][2] == "no question is so long"


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (question("good.test")[:-3], 1),
        (question("good.test")[:14], 1),
        (question("good.test")[:4] + b"\0\2" + question("good.test")[6:], 1),
        (question("good.test")[:12] + b"\xc0\x0c" + b"\0\1\0\1", 1),
        (b"\0\7\x28\0" + question("good.test")[4:], 4),
    ],
    ids=["cut short", "cut in the name", "two questions", "a pointer", "another operation"],
)
async def test_what_is_no_plain_question_is_answered_with_an_error(world: Any, data: bytes, expected: int) -> None:
    sandbox = await world("good.test")
    assert code(await asked(sandbox, data)) == expected
    assert code(await asked(sandbox, question("good.test"))) == 0


@pytest.mark.parametrize(
    "data", [b"", b"x", question("good.test")[:2] + b"\x81" + question("good.test")[3:], b"x" * 600]
)
async def test_what_is_no_question_has_no_answer(world: Any, data: bytes) -> None:
    sandbox = await world("good.test")
    with pytest.raises((TimeoutError, ConnectionError)):
        await asked(sandbox, data, within=0.3)
    assert code(await asked(sandbox, question("good.test"))) == 0
