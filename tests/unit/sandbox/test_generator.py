"""A generator writes the rows that it was asked for, where it was told."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gymbox_sandbox.generator import call_item, message_item, write_dataset
from gymbox_sandbox.responses import Response


def rows(seed: int, count: int) -> list[dict[str, Any]]:
    return [{"id": f"{seed}-{index}", "city": "Zürich"} for index in range(count)]


def test_seed_rows_and_output_are_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = tmp_path / "rows.jsonl"
    monkeypatch.setattr("sys.argv", ["generate.py", "--seed", "7", "--rows", "2", "--output", str(output)])
    write_dataset(rows, beside=__file__)
    assert output.read_text("utf-8") == '{"id": "7-0", "city": "Zürich"}\n{"id": "7-1", "city": "Zürich"}\n'


def test_rows_go_beside_the_generator_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "data").mkdir()
    monkeypatch.setattr("sys.argv", ["generate.py"])
    write_dataset(rows, beside=str(tmp_path / "generate.py"))
    lines = (tmp_path / "data" / "example.jsonl").read_bytes().splitlines()
    assert len(lines) == 24 and json.loads(lines[0])["id"] == "1-0"


def test_gold_items_are_what_a_response_consists_of() -> None:
    response = Response.model_validate({"output": [call_item("c", "look", {"city": "Zürich"}), message_item("Cold.")]})
    call, message = response.dump()["output"]
    assert (call["name"], json.loads(call["arguments"])) == ("look", {"city": "Zürich"})
    assert message["content"][0]["text"] == "Cold."
