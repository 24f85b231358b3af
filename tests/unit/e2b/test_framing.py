"""Connect's envelopes, cut anywhere and made by anyone."""

from __future__ import annotations

import json
import struct
from collections.abc import AsyncIterator

import pytest
from gymbox.e2b.framing import MOST, Envelopes, deadline, ending, envelope, messages
from gymbox.e2b.refusals import Code, Refused
from hypothesis import given
from hypothesis import strategies as st

MESSAGES = st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=20), max_size=3), max_size=6)


@given(MESSAGES, st.lists(st.integers(0, 400), max_size=12))
def test_messages_are_the_same_however_their_bytes_are_cut(sent: list[dict[str, str]], cuts: list[int]) -> None:
    stream = b"".join(map(envelope, sent))
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    envelopes, found = Envelopes(), []
    for begin, end in zip(places, places[1:], strict=False):
        found += envelopes.add(stream[begin:end])
    envelopes.end()
    assert [json.loads(message) for message in found] == sent


@given(st.binary(max_size=200))
def test_any_bytes_are_messages_or_refused(stream: bytes) -> None:
    envelopes = Envelopes()
    try:
        envelopes.add(stream)
        envelopes.end()
    except Refused as error:
        assert error.code in (Code.INVALID_ARGUMENT, Code.RESOURCE_EXHAUSTED)


def test_a_message_longer_than_it_may_be_is_refused_before_it_comes() -> None:
    assert Envelopes().add(struct.pack(">BI", 0, MOST)) == []
    with pytest.raises(Refused, match=f"more than {MOST}") as raised:
        Envelopes().add(struct.pack(">BI", 0, MOST + 1))
    assert raised.value.code == Code.RESOURCE_EXHAUSTED


@pytest.mark.parametrize("flags", [1, 2, 3, 0x80])
def test_only_plain_envelopes_are_read(flags: int) -> None:
    with pytest.raises(Refused, match="flags"):
        Envelopes().add(struct.pack(">BI", flags, 2) + b"{}")


def test_a_stream_that_ends_in_the_midst_is_refused() -> None:
    for cut in (1, 5, 6):
        envelopes = Envelopes()
        envelopes.add(envelope({"a": 1})[:cut])
        with pytest.raises(Refused, match="midst"):
            envelopes.end()


async def test_messages_come_as_soon_as_they_are_whole() -> None:
    async def parts() -> AsyncIterator[bytes]:
        yield envelope({"n": 1}) + envelope({"n": 2})[:3]
        yield envelope({"n": 2})[3:]

    assert [json.loads(message) async for message in messages(parts())] == [{"n": 1}, {"n": 2}]


def test_the_last_envelope_says_how_it_ended() -> None:
    assert ending() == b"\x02\0\0\0\x02{}"
    told = ending(Refused(Code.NOT_FOUND, "no such thing"))
    assert told[0] == 2 and json.loads(told[5:]) == {"error": {"code": "not_found", "message": "no such thing"}}


def test_a_deadline_is_a_number_of_milliseconds() -> None:
    assert (deadline(None), deadline("1500"), deadline("0")) == (None, 1.5, 0)
    for wrong in ("", "-1", "1.5", "x", "12345678901", "١"):
        with pytest.raises(Refused, match="ten digits"):
            deadline(wrong)
