"""The parts of a form, cut anywhere."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from gymbox.e2b.multipart import Parts, boundary_of
from gymbox.errors import Invalid
from hypothesis import given
from hypothesis import strategies as st

BOUNDARY = b"the-boundary"


async def cut(body: bytes, size: int) -> AsyncIterator[bytes]:
    for at in range(0, len(body), size):
        yield body[at : at + size]


async def parts_of(body: bytes, size: int = 7) -> list[tuple[str, bytes]]:
    parts, found = Parts(cut(body, size), BOUNDARY), []
    while (name := await parts.next()) is not None:
        found.append((name, b"".join([piece async for piece in parts.pieces()])))
    return found


def form(*files: tuple[str, bytes]) -> bytes:
    pieces = [
        b'--%b\r\nContent-Disposition: form-data; name="file"; filename="%b"\r\nX: y\r\n\r\n%b\r\n'
        % (BOUNDARY, name.encode(), content)
        for name, content in files
    ]
    return b"".join(pieces) + b"--%b--\r\n" % BOUNDARY


@given(st.lists(st.binary(max_size=80), max_size=4), st.integers(1, 50))
async def test_contents_are_the_same_however_the_body_is_cut(contents: list[bytes], size: int) -> None:
    files = [(f"f{n}", content.replace(BOUNDARY, b"")) for n, content in enumerate(contents)]
    assert await parts_of(form(*files), size) == files


@pytest.mark.parametrize(
    "content", [b"", b"\r\n", b"\r\n--", b"\r\n--the-boundar", b"--the-boundary", b"\r\n\r\n", b"--"]
)
async def test_what_is_nearly_a_boundary_is_content(content: bytes) -> None:
    for size in (1, 2, 5, 1000):
        assert await parts_of(form(("a", content), ("b", content)), size) == [("a", content), ("b", content)]


async def test_names_are_what_was_meant_before_they_were_escaped() -> None:
    assert [name for name, _ in await parts_of(form(("%22a%22\\\\%0D%0Aé%41", b"")))] == ['"a"\\\r\né%41']


async def test_a_part_that_is_not_read_is_skipped() -> None:
    parts = Parts(cut(form(("a", b"1" * 100), ("b", b"2")), 3), BOUNDARY)
    assert (await parts.next(), await parts.next()) == ("a", "b")
    assert await parts.next() is None


async def test_a_body_that_is_not_whole_is_refused() -> None:
    whole = form(("a", b"1"))
    for end in range(len(whole) - 4):
        with pytest.raises(Invalid, match="not whole"):
            await parts_of(whole[:end])


def test_a_boundary_is_there_and_short() -> None:
    assert boundary_of('multipart/form-data; boundary="a b"') == b"a b"
    for wrong in (
        "multipart/form-data",
        "multipart/form-data; boundary=",
        f"multipart/form-data; boundary={'x' * 201}",
    ):
        with pytest.raises(Invalid, match="boundary"):
            boundary_of(wrong)
