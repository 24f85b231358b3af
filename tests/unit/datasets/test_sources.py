from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any

import pytest
from gymbox.datasets.sources import JSON_COLUMNS, Source, needed, rows_of
from gymbox.errors import ConfigError
from gymbox.faults import Faults


def told(source: Source) -> tuple[list[tuple[int, dict[str, Any]]], list[str]]:
    faults = Faults()
    rows = [(row.line, row.fields) for row in rows_of(source, faults)]
    return rows, [f"{fault.line}: {fault.field}: {fault.reason}" for fault in faults.shown]


def csv(folder: Path, text: str | bytes, name: str = "rows.csv") -> Source:
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    return Source(str(folder / name))


def test_a_jsonl_row_ends_at_the_newline_byte_and_nowhere_else(tmp_path: Path) -> None:
    text = "a\u2028b\u2029c\u0085d"
    (tmp_path / "rows.jsonl").write_bytes(
        json.dumps({"text": text}, ensure_ascii=False).encode() + b'\n\n{"text": "e"}'
    )
    assert told(Source(str(tmp_path / "rows.jsonl"))) == ([(1, {"text": text}), (3, {"text": "e"})], [])


def test_what_cannot_be_read_is_told_and_the_rest_is_read(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": 1}{"a": 2}\n[1]\n{"a": NaN}\n{"a": 4}\n')
    rows, faults = told(Source(str(tmp_path / "rows.jsonl")))
    assert rows == [(4, {"a": 4})]
    assert faults == [
        "1: (row): holds more than one JSON value",
        "2: (row): is a list, not an object",
        "3: (row): holds NaN, Infinity or a number too large",
    ]


def test_csv_rows_have_the_line_in_which_they_begin(tmp_path: Path) -> None:
    source = csv(tmp_path, '\ufeffquestion,tools\r\n"one\ntwo","[{""type"": ""x""}]"\r\nthree\u2028four,\r\n')
    rows, faults = told(source)
    assert rows == [
        (2, {"question": "one\ntwo", "tools": [{"type": "x"}]}),
        (4, {"question": "three\u2028four", "tools": ""}),
    ]
    assert not faults


def test_tsv_is_cut_at_tabs(tmp_path: Path) -> None:
    assert told(csv(tmp_path, "a\tb\n1,2\t3\n", "rows.tsv"))[0] == [(2, {"a": "1,2", "b": "3"})]


def test_a_column_is_json_where_that_is_said(tmp_path: Path) -> None:
    source = Source(csv(tmp_path, "a,b\n1,[1]\nx,[2]\n").name, json_fields=("a",))
    rows, [fault] = told(source)
    assert rows == [(2, {"a": 1, "b": "[1]"})]
    assert fault.startswith("3: a: expected value")


def test_csv_with_too_few_cells_is_told_by_line(tmp_path: Path) -> None:
    rows, faults = told(csv(tmp_path, "a,b\n1\n1,2\n"))
    assert rows == [(3, {"a": "1", "b": "2"})]
    assert faults == ["2: (row): has 1 cells where the header names 2"]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "the header is missing"),
        (b"a,a\n1,2\n", r"the header names \['a'\] twice"),
        (b"a\n\xff\n", "is not UTF-8"),
        (b'a\n"x"y\n', "is not CSV"),
    ],
)
def test_csv_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        told(csv(tmp_path, content))


def test_a_source_that_is_not_there_is_told_with_the_nearest(tmp_path: Path) -> None:
    csv(tmp_path, "a\n1\n", "questions.csv")
    with pytest.raises(ConfigError, match=r"no such file; did you mean 'questions\.csv'"):
        told(Source(str(tmp_path / "question.csv")))
    with pytest.raises(ConfigError, match="no such file; known: none"):
        told(Source(str(tmp_path / "nowhere" / "question.csv")))


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="rows are read from .jsonl"):
        told(csv(tmp_path, "x", "rows.xlsx"))


def test_an_extra_that_is_missing_is_named() -> None:
    with pytest.raises(ConfigError, match=r"pip install 'gymbox\[datasets\]'"):
        needed("no_such_module")


def test_parquet_rows_are_as_json_has_them(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    messages = [[{"role": "user", "content": "hi", "name": None}], [{"role": "user", "content": "ho", "name": "me"}]]
    table = arrow.table({"messages": messages, "day": [datetime.date(2020, 1, 2), None], "x": [0.5, 2.0]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    rows, faults = told(Source(str(tmp_path / "rows.parquet")))
    assert rows == [
        (1, {"messages": [{"role": "user", "content": "hi"}], "day": "2020-01-02", "x": 0.5}),
        (2, {"messages": [{"role": "user", "content": "ho", "name": "me"}], "day": None, "x": 2.0}),
    ]
    assert not faults


def test_what_json_has_not_is_told_by_row_and_column(tmp_path: Path) -> None:
    arrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    table = arrow.table({"image": [b"x", None, None], "score": [1.0, float("nan"), 2.0]})
    parquet.write_table(table, tmp_path / "rows.parquet")
    rows, faults = told(Source(str(tmp_path / "rows.parquet")))
    assert rows == [(3, {"image": None, "score": 2.0})]
    assert faults == ["1: image: is bytes, which JSON has not", "2: score: is NaN or infinite, which JSON has not"]


def test_parquet_that_is_none_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    (tmp_path / "rows.parquet").write_bytes(b"PAR1 or not")
    with pytest.raises(ConfigError, match="cannot be read as Parquet"):
        told(Source(str(tmp_path / "rows.parquet")))
    assert JSON_COLUMNS


def test_a_saved_hugging_face_dataset_is_read(tmp_path: Path) -> None:
    hugging = pytest.importorskip("datasets")
    whole = hugging.Dataset.from_list([{"question": "a"}, {"question": "b"}])
    whole.save_to_disk(tmp_path / "one")
    hugging.DatasetDict({"train": whole, "test": whole.select([1])}).save_to_disk(tmp_path / "two")
    assert told(Source(str(tmp_path / "one")))[0] == [(1, {"question": "a"}), (2, {"question": "b"})]
    assert told(Source(str(tmp_path / "two"), split="test"))[0] == [(1, {"question": "b"})]
    with pytest.raises(ConfigError, match=r"has several splits; name one \(--split\); known: train, test"):
        told(Source(str(tmp_path / "two")))
    with pytest.raises(ConfigError, match="has no split 'tset'.*did you mean 'test'"):
        told(Source(str(tmp_path / "two"), split="tset"))
    with pytest.raises(ConfigError, match="holds no splits"):
        told(Source(str(tmp_path / "one"), split="test"))
    (tmp_path / "one" / "state.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as a saved dataset"):
        told(Source(str(tmp_path / "one")))


def test_a_folder_of_data_files_is_read_as_hugging_face_reads_it(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    csv(tmp_path, "question\na\nb\n", "train.csv")
    assert told(Source(str(tmp_path)))[0] == [(1, {"question": "a"}), (2, {"question": "b"})]


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    with pytest.raises(ConfigError, match="cannot be read"):
        told(Source(str(tmp_path)))
