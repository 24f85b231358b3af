from __future__ import annotations

import random
from pathlib import Path

import pytest
from gymbox.datasets.sources import Source
from gymbox.datasets.split import Splitting, write_splits
from gymbox.errors import ConfigError

from tests.unit.datasets.conftest import Rows, read, task

SHARES = {"train": 0.8, "validation": 0.1, "test": 0.1}


def test_the_same_rows_and_seed_give_the_same_bytes_whatever_their_order(rows: Rows, tmp_path: Path) -> None:
    given = [task(f"question {number}") for number in range(100)]
    mixed = random.Random(3).sample(given, len(given))
    one = write_splits(Source(str(rows(*given))), Splitting(SHARES), tmp_path / "one")
    again = write_splits(Source(str(rows(*given))), Splitting(SHARES), tmp_path / "again")
    other = write_splits(Source(str(rows(*given))), Splitting(SHARES, seed=1), tmp_path / "other")
    write_splits(Source(str(rows(*mixed))), Splitting(SHARES), tmp_path / "mixed")
    assert [written.rows for written in one] == [80, 10, 10]
    assert [written.sha256 for written in one] == [written.sha256 for written in again]
    assert one[0].sha256 != other[0].sha256
    for name in SHARES:
        assert sorted(map(str, read(tmp_path / "one" / f"{name}.jsonl"))) == sorted(
            map(str, read(tmp_path / "mixed" / f"{name}.jsonl"))
        )


def test_every_row_is_in_one_split_as_the_bytes_it_was(rows: Rows, tmp_path: Path) -> None:
    lines = [
        f'{{"n":  {number}.10, "responses_create_params": {{"input": "x{number}"}}}}'.encode() for number in range(9)
    ]
    path = rows(*lines)
    write_splits(Source(str(path)), Splitting({"a": 0.5, "b": 0.5}), tmp_path / "out")
    found = b"".join((tmp_path / "out" / f"{name}.jsonl").read_bytes() for name in "ab")
    assert sorted(found.split(b"\n")) == sorted(path.read_bytes().split(b"\n"))


def test_rows_that_are_the_same_stay_together(rows: Rows, tmp_path: Path) -> None:
    path = rows(*(task(f"Q{number % 20}" if number % 2 else f"q{number % 20}  ") for number in range(80)))
    write_splits(Source(str(path)), Splitting({"a": 0.5, "b": 0.5}), tmp_path / "out")
    one, other = ({str(row).lower() for row in read(tmp_path / "out" / f"{name}.jsonl")} for name in "ab")
    assert one and other and not one & other


def test_rows_of_one_value_stay_together(rows: Rows, tmp_path: Path) -> None:
    path = rows(*(task(f"q{number}", source=number % 7) for number in range(70)))
    write_splits(Source(str(path)), Splitting({"a": 0.5, "b": 0.5}, by="source"), tmp_path / "out")
    one, other = ({row["source"] for row in read(tmp_path / "out" / f"{name}.jsonl")} for name in "ab")
    assert one | other == set(range(7)) and not one & other


def test_each_split_gets_its_share_of_each_value(rows: Rows, tmp_path: Path) -> None:
    path = rows(*(task(f"q{number}", level="hard" if number < 20 else "easy") for number in range(100)))
    write_splits(Source(str(path)), Splitting({"a": 0.75, "b": 0.25}, stratify="level"), tmp_path / "out")
    found = read(tmp_path / "out" / "b.jsonl")
    assert sum(row["level"] == "hard" for row in found) == 5 and len(found) == 25


def test_csv_can_be_split_too(tmp_path: Path) -> None:
    (tmp_path / "rows.csv").write_text("q\na\nb\n")
    write_splits(Source(str(tmp_path / "rows.csv")), Splitting({"a": 0.5, "b": 0.5}), tmp_path / "out")
    assert read(tmp_path / "out" / "a.jsonl") + read(tmp_path / "out" / "b.jsonl") in (
        [{"q": "a"}, {"q": "b"}],
        [{"q": "b"}, {"q": "a"}],
    )


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"a": 0.5, "b": 0.4}, r"add up to 1; they are a=0\.5, b=0\.4"),
        ({"a": 1.5, "b": -0.5}, "above 0"),
        ({"../a": 0.5, "b": 0.5}, "'../a' is no name for a split"),
    ],
)
def test_shares_that_are_wrong_are_refused(shares: dict[str, float], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Splitting(shares)


def test_nothing_is_written_where_a_split_is_empty_or_a_row_is_wrong(rows: Rows, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="1 rows give split 'validation' none"):
        write_splits(Source(str(rows(task("x")))), Splitting(SHARES), tmp_path / "out")
    with pytest.raises(ConfigError, match=r"rows.jsonl:2: sourc: missing; did you mean 'source'"):
        path = rows(task("x", sourc=1), task("y", source=1))
        write_splits(Source(str(path)), Splitting(SHARES, by="sourc"), tmp_path / "out")
    with pytest.raises(ConfigError, match=r"rows.jsonl:1: \(row\): ends in the middle"):
        write_splits(Source(str(rows(b'{"a": '))), Splitting(SHARES), tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]
