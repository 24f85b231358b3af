"""Names: answers to a sandbox's questions about names. None of them goes any further.

A listed name has the sandbox's own loopback as its address, where its relay listens; all others do not exist. So what
is asked tells nobody anything, however it is spelled, and a real address is looked up only here, for a connection.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

from gymbox.network import Way, canonical

ADDRESS = bytes((127, 0, 0, 1))
TTL = 60
LONGEST = 512
"""Bytes of a question; ours to answer have far fewer."""
_IN, _A, _AAAA = 1, 1, 28
_OK, _MALFORMED, _NO_SUCH_NAME, _NOT_HERE = 0, 1, 3, 4


class Answer(NamedTuple):
    """What to send back, and for which name."""

    data: bytes
    name: str
    known: bool


def answer(question: bytes, way: Way) -> Answer | None:
    """The answer to a DNS message; None where it cannot have one."""
    if not 12 <= len(question) <= LONGEST or question[2] & 0x80:
        return None
    opcode, count = question[2] >> 3 & 15, int.from_bytes(question[4:6])
    read = _question(question) if count == 1 else None
    if opcode or read is None:
        return Answer(_message(question, b"", _NOT_HERE if opcode else _MALFORMED), "?", False)
    name, kind, end = read
    asked = question[12:end]
    if not way.knows(name):
        return Answer(_message(question, asked, _NO_SUCH_NAME), name, False)
    record = b""
    if kind == (_A, _IN):
        record = struct.pack(">HHHIH", 0xC00C, _A, _IN, TTL, len(ADDRESS)) + ADDRESS
    return Answer(_message(question, asked, _OK, record), name, True)


def _question(data: bytes) -> tuple[str, tuple[int, int], int] | None:
    """Name, type and class of a message's first question, and where it ends."""
    labels, place = [], 12
    while place < len(data) and (length := data[place]):
        if length > 63 or place + length >= len(data):
            return None
        labels.append(data[place + 1 : place + 1 + length])
        place += 1 + length
    if place + 5 > len(data):
        return None
    kind = struct.unpack(">HH", data[place + 1 : place + 5])
    return canonical(b".".join(labels).decode("latin-1")), (kind[0], kind[1]), place + 5


def _message(question: bytes, asked: bytes, code: int, record: bytes = b"") -> bytes:
    # an answer, authoritative, with the question's "recursion desired", and recursion available
    flags = 0x8480 | (question[2] & 1) << 8 | code
    return question[:2] + struct.pack(">HHHHH", flags, bool(asked), bool(record), 0, 0) + asked + record
