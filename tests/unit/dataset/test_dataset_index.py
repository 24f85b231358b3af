"""Dataset index: large files in parts, and what is remembered of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from gymbox import dataset_index
from gymbox.dataset_index import Index, index_of
from gymbox.errors import ConfigError

GOOD = {"responses_create_params": {"input": "hello"}}


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_index, "PART", 1000)
    monkeypatch.setattr(dataset_index, "_RACY_NS", 0)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    rows = [{**GOOD, "id": f"task-{number}", "text": "x\u2028" * (number % 7)} for number in range(500)]
    path = tmp_path / "rows.jsonl"
    path.write_text("\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n")
    return path


def index(path: Path, cache: Path | None = None) -> Index:
    with path.open("rb") as file:
        return index_of(path, file, ["expected"], cache)


def test_parts_make_the_same_index_as_one_look(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    in_parts = index(path)
    monkeypatch.setattr(dataset_index, "PART", 1 << 40)

    assert in_parts == index(path)
    assert len(in_parts.offsets) == 500


def test_faults_of_later_parts_name_their_lines_in_the_whole_file(path: Path) -> None:
    with path.open("a") as file:
        file.write('[]\n{"responses_create_params": {"input": "hello"}, "id": "task-3"}\n')

    shown = [str(fault).partition(": ")[2] for fault in index(path).faults.shown]

    assert shown[0].startswith("(row): is a list")
    assert [fault.line for fault in index(path).faults.shown] == [1000, 1001]
    assert shown[1].startswith("id: 'task-3' stands in line 7 already")


def test_a_file_that_was_found_right_is_not_read_again(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = index(path, tmp_path / "cache")
    monkeypatch.setattr(dataset_index, "scan", None)  # to read it would fail

    assert index(path, tmp_path / "cache") == found


def test_a_changed_file_is_read_again(path: Path, tmp_path: Path) -> None:
    index(path, tmp_path / "cache")
    content = path.read_bytes()
    path.write_bytes(content[:-2] + b"!\n")

    assert index(path, tmp_path / "cache").faults.count == 1


def test_what_was_found_wrong_or_only_just_written_is_not_remembered(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dataset_index, "_RACY_NS", 10**15)
    index(path, tmp_path / "cache")
    monkeypatch.setattr(dataset_index, "_RACY_NS", 0)
    with path.open("ab") as file:
        file.write(b"[]\n")
    index(path, tmp_path / "cache")

    assert not (tmp_path / "cache").exists()


def test_a_damaged_memory_counts_for_nothing(path: Path, tmp_path: Path) -> None:
    found = index(path, tmp_path / "cache")
    [entry] = (tmp_path / "cache").iterdir()
    content = bytearray(entry.read_bytes())
    content[-9] ^= 1
    entry.write_bytes(content)

    assert index(path, tmp_path / "cache") == found


def test_only_the_newest_are_remembered(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_index, "MOST_REMEMBERED", 2)
    for number in range(4):
        with path.open("ab") as file:
            file.write(b"\n" * (number + 1))
        index(path, tmp_path / "cache")

    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_cache_that_cannot_be_written_does_no_harm(path: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file, no folder")

    assert len(index(path, tmp_path / "cache").offsets) == 500


def test_a_file_that_changes_while_it_is_checked_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = dataset_index._sha256

    def touched(path: Path) -> str:
        os.utime(path, (1, 1))
        return whole(path)

    monkeypatch.setattr(dataset_index, "_sha256", touched)

    with pytest.raises(ConfigError, match="was changed while it was checked"):
        index(path)


def test_a_check_whose_process_dies_is_an_error(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.executable", "/bin/false")

    with pytest.raises(ConfigError, match="ended with 1"):
        index(path)
