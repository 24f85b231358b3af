"""Dataset index: large files in parts, and what is remembered of them."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from gymbox import dataset_index
from gymbox.dataset_index import Index, index_of
from gymbox.datasets.templates import Prompt, Template
from gymbox.errors import ConfigError
from gymbox.row_check import MAX_AGENTS, Mentions

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


def index(path: Path, cache: Path | None = None, prompt: Prompt | None = None) -> Index:
    with path.open("rb") as file:
        return index_of(path, file, ["expected"], cache, prompt)


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


def test_agents_that_rows_name_are_counted_over_all_parts_and_remembered(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [{**GOOD, "agent": f"agent-{number % 3}"} if number % 4 else GOOD for number in range(400)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    found = index(path, tmp_path / "cache")

    assert found.agents == {
        "agent-1": Mentions(line=2, rows=100),
        "agent-2": Mentions(line=3, rows=100),
        "agent-0": Mentions(line=4, rows=100),
    }
    monkeypatch.setattr(dataset_index, "scan", None)
    assert index(path, tmp_path / "cache") == found


def test_of_a_great_many_names_of_agents_only_some_are_kept(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_index, "PART", 1 << 40)
    rows = [{**GOOD, "agent": f"agent-{number}"} for number in range(MAX_AGENTS + 50)]
    path.write_text("".join(json.dumps(row) + "\n" for row in [*rows, rows[0]]))

    agents = index(path).agents

    assert len(agents) == MAX_AGENTS and agents["agent-0"].rows == 2


def test_every_part_is_filled_in_by_the_prompt_and_another_prompt_is_checked_anew(path: Path, tmp_path: Path) -> None:
    path.write_text("".join(json.dumps({"q": "x" if number != 150 else None}) + "\n" for number in range(200)))

    found = index(path, tmp_path / "cache", Prompt(Template(user="{q}"), "1"))

    assert [(fault.line, fault.field) for fault in found.faults.shown] == [(151, "q")]
    assert not index(path, tmp_path / "cache", Prompt(Template(user="always"), "2")).faults.count
    assert index(path, tmp_path / "cache", Prompt(Template(user="{p}"), "3")).faults.count == 200


def test_what_is_remembered_and_damaged_is_not_believed(path: Path, tmp_path: Path) -> None:
    found = index(path, tmp_path / "cache")
    [entry] = (tmp_path / "cache").iterdir()
    whole = entry.read_bytes()
    for damage in (b"", b"{}\n", b"[]\n" + b"0" * 16, whole[:-8], whole.replace(b"a", b"b", 1)):
        entry.write_bytes(damage)
        assert index(path, tmp_path / "cache") == found
