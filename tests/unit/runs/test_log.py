from __future__ import annotations

from pathlib import Path

import pytest
from gymbox.errors import Conflict
from gymbox.runs.log import RunLog


def written(folder: Path, *lines: bytes) -> RunLog:
    (folder / "rollouts.jsonl").write_bytes(b"".join(lines))
    return RunLog(folder)


def test_lines_are_read_from_any_place_on_and_a_torn_one_is_left_for_later(tmp_path: Path) -> None:
    log = written(tmp_path, b"one\n", b"two\n", b"thr")

    assert [line.content for line in log.read(0)] == [b"one\n", b"two\n"]
    [two] = log.read(4)
    assert (two.start, two.end) == (4, 8)
    assert log.read(8) == []
    written(tmp_path, b"one\n", b"two\n", b"three\n")
    assert [line.content for line in log.read(8)] == [b"three\n"]


def test_what_is_not_acknowledged_yet_is_not_read(tmp_path: Path) -> None:
    log = written(tmp_path, b"one\n", b"two\n")

    assert [line.content for line in log.read(0, 4)] == [b"one\n"]
    assert log.read(4, 7) == []


def test_a_read_ends_after_so_many_bytes(tmp_path: Path) -> None:
    log = written(tmp_path, *[b"x" * 9 + b"\n"] * 10)

    assert len(log.read(0, at_once=25)) == 3
    last = log.end_of(0, None, 4)
    assert last is not None and last.end == 40
    assert log.part(30, 40) == b"x" * 9 + b"\n"
    assert log.end_of(100, None, 4) is None


def test_a_cursor_names_the_place_after_its_line(tmp_path: Path) -> None:
    log = written(tmp_path, b"one\n", b"two\n")
    one, two = log.read(0)

    assert (log.place(""), log.place(one.cursor), log.place(two.cursor)) == (0, 4, 8)


@pytest.mark.parametrize("cursor", ["x", "0-4", "4-4-00000000", "0-99-00000000", "0-4-00000000", "9-1-00000000"])
def test_a_cursor_of_no_line_is_told(tmp_path: Path, cursor: str) -> None:
    log = written(tmp_path, b"one\n", b"two\n")

    with pytest.raises(Conflict, match="begin anew"):
        log.place(cursor)


def test_a_cursor_does_not_outlive_a_rewrite_though_lines_are_of_one_length(tmp_path: Path) -> None:
    log = written(tmp_path, b"1 failed\n", b"2 scored\n", b"3 scored\n")
    first, second, _ = log.read(0)
    log = written(tmp_path, b"2 scored\n", b"3 scored\n", b"1 scored\n")

    for line in (first, second):
        with pytest.raises(Conflict):
            log.place(line.cursor)


def test_where_there_is_no_file_there_is_nothing(tmp_path: Path) -> None:
    log = RunLog(tmp_path)

    assert log.read(0) == [] and log.place("") == 0
    with pytest.raises(Conflict):
        log.place("0-4-00000000")
