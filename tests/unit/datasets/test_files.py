from __future__ import annotations

import json
from pathlib import Path

import pytest
from gymbox.datasets.files import json_line, new_file, new_folder
from gymbox.errors import ConfigError
from hypothesis import given
from hypothesis import strategies as st

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(st.dictionaries(st.text(), JSON))
def test_a_row_is_one_line_to_every_reader(fields: dict[str, object]) -> None:
    line = json_line(fields)
    assert json.loads(line) == fields
    assert len(line.decode().splitlines()) == 1 + sum(line.decode().count(c) for c in "\x0b\x0c\x1c\x1d\x1e")


def test_nothing_is_left_where_writing_fails(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), new_file(tmp_path / "rows.jsonl") as beside:
        beside.write_text("half")
        raise RuntimeError
    with pytest.raises(RuntimeError), new_folder(tmp_path / "folder") as beside:
        (beside / "rows.jsonl").write_text("half")
        raise RuntimeError
    assert not list(tmp_path.iterdir())


def test_what_is_there_stays_unless_it_is_to_be_replaced(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("old")
    with pytest.raises(ConfigError, match="is there already.*--force"), new_file(path):
        raise AssertionError("unreachable")
    with new_file(path, force=True) as beside:
        beside.write_text("new")
    assert path.read_text() == "new"
    with pytest.raises(ConfigError, match="is there already"), new_folder(tmp_path):
        raise AssertionError("unreachable")


def test_an_empty_folder_gives_way(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with new_folder(tmp_path / "folder") as beside:
        (beside / "sub").mkdir()
        (beside / "sub" / "rows").write_text("x")
    assert (tmp_path / "folder" / "sub" / "rows").read_text() == "x"


def test_a_place_that_cannot_be_written_to_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigError, match="cannot be written: .*"), new_file(tmp_path / "file" / "rows.jsonl"):
        raise AssertionError("unreachable")
    with pytest.raises(ConfigError, match="cannot be written: .*"), new_folder(tmp_path / "file" / "folder"):
        raise AssertionError("unreachable")
