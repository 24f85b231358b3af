"""Server-sent events: read however the bytes are cut, and written so that they are read again."""

from collections.abc import AsyncIterator

import pytest
from gymbox.errors import Invalid
from gymbox.models import sse
from gymbox.models.sse import Reader, ServerSentEvent, event_bytes, objects_in
from hypothesis import given
from hypothesis import strategies as st

STREAM = (
    b"\xef\xbb\xbf: a comment\r\n\r\nevent: one\r\ndata: a\r\ndata:  b\r\nid: 7\r\n\r\n"
    b"data\n\ndata:\xc3\xbc\r\rretry: 5\nevent: lost\n\ndata: \xe2\x80\xa8 kept\n\ndata: no empty line"
)
EVENTS = [
    ServerSentEvent("a\n b", "one", "7"),
    ServerSentEvent("", id="7"),  # an id lasts until the next one
    ServerSentEvent("ü", id="7"),
    ServerSentEvent("\u2028 kept", id="7"),
    ServerSentEvent("no empty line", id="7", ended=False),
]


def read(parts: list[bytes]) -> list[ServerSentEvent]:
    reader = Reader()
    found = [event for part in parts for event in reader.add(part)]
    return found + reader.end()


@given(st.lists(st.integers(0, len(STREAM)), max_size=20))
def test_events_are_the_same_however_their_bytes_are_cut(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(STREAM)]
    assert read([STREAM[begin:end] for begin, end in zip(places, places[1:], strict=False)]) == EVENTS


def test_an_event_is_given_as_soon_as_it_is_whole() -> None:
    reader = Reader()
    assert reader.add(b"data: a\n") == []
    assert reader.add(b"\n") == [ServerSentEvent("a")]
    assert reader.end() == []


@pytest.mark.parametrize("line", [b"x" * 11, b"data: 1\ndata: 2\ndata: 3"])
def test_an_event_has_a_largest_size(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "LARGEST_EVENT", 10)
    with pytest.raises(Invalid, match="larger"):
        Reader().add(line)


async def stream(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def test_objects_end_with_done_and_take_their_type_from_the_events_name() -> None:
    written = event_bytes({"text": "ü\n\u2028"}, event="named") + b"data:\n\n" + sse.DONE + b"data: {}\n\n"
    assert [found async for found in objects_in(stream(written))] == [{"text": "ü\n\u2028", "type": "named"}]


@pytest.mark.parametrize("rest", [b'data: {"text": "b', b"event: x\ndata: ", b"dat", b'data: {"text": "\xc3'])
async def test_an_object_that_the_stream_broke_off_in_is_none(rest: bytes) -> None:
    whole = event_bytes({"text": "a"})
    assert [found async for found in objects_in(stream(whole + rest))] == [{"text": "a"}]


async def test_an_object_is_whole_though_the_line_after_it_is_missing() -> None:
    assert [found async for found in objects_in(stream(b'data: {"text": "a"}'))] == [{"text": "a"}]


@pytest.mark.parametrize(("data", "why"), [(b"data: [1]\n\n", "object"), (b"data: {nonsense\n\n", "no JSON")])
async def test_what_is_no_object_is_refused(data: bytes, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        assert [found async for found in objects_in(stream(data))]
