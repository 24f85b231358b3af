"""Rollouts as a table."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import load_dataset
from gymbox.datasets.sources import Source, rows_of
from gymbox.errors import ConfigError
from gymbox.evaluation.rollouts import RunReader
from gymbox.exports import rollout_table
from gymbox.exports.dataset_folder import export_folder
from gymbox.exports.rollout_table import COLUMNS, export_parquet
from gymbox.faults import Faults

from tests.unit.exports.conftest import answered, called, result, said

Run = Callable[..., Path]


@pytest.fixture
def ended(run: Run) -> Path:
    more: dict[str, Any] = {
        "verifier_metadata": {"answer": 4},
        "metrics": {"steps": 2.0},
        "usage": {"input_tokens": 5, "output_tokens": 3},
        "calls": {"cost": 0.25, "count": 2},
        "agent_ref": {"name": "ToolLoop"},
        "mask_sample": False,
        "_ng_task_index": 7,
        "_ng_rollout_index": 1,
    }
    good = answered("a", 0, 1.0, called(), result(), said("4"), **more)
    good["response"] |= {"model": "m", "metadata": {"stop_reason": "completed"}}
    return run(good, answered("b", 0, None), rows=2)


def table(runs: list[Path], to: Path, **more: Any) -> list[dict[str, Any]]:
    export_parquet([RunReader(run) for run in runs], to, **more)
    found: list[dict[str, Any]] = pq.read_table(to).to_pylist()
    return found


def test_each_rollout_is_a_row_with_null_for_what_is_unknown(ended: Path, tmp_path: Path) -> None:
    good, bad = table([ended], tmp_path / "r.parquet")
    assert list(good) == list(COLUMNS)
    expected = {
        "environment": "counter",
        "task": "a",
        "task_index": 7,
        "repeat": 1,
        "reward": 1.0,
        "error": None,
        "stop_reason": "completed",
        "input_tokens": 5,
        "output_tokens": 3,
        "cost": 0.25,
        "seconds": 2.0,
        "turns": 2,
        "tool_calls": 1,
        "agent": "ToolLoop",
        "model": "m",
        "mask_sample": False,
        "question": "do a",
        "answer": "4",
    }
    assert {name: good[name] for name in expected} == expected
    assert json.loads(good["metrics"]) == {"steps": 2.0}
    assert json.loads(good["row"]) == {"verifier_metadata": {"answer": 4}}
    assert [item["type"] for item in json.loads(good["response"])["output"]] == [
        *("function_call", "function_call_output", "message"),
    ]
    unknown = ("reward", "cost", "task_index", "mask_sample", "model", "answer", "input_tokens")
    assert [bad[name] for name in unknown] == [None] * 7
    assert (bad["error"], bad["error_stage"], bad["error_detail"]) == ("agent_failed", "agent", "it fell")


def test_pandas_duckdb_and_datasets_read_it(ended: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.parquet"
    table([ended], path)
    frame = pd.read_parquet(path)
    assert frame["reward"].mean() == 1.0 and len(frame) == 2
    found = duckdb.sql(f"select task, row->>'$.verifier_metadata.answer' from '{path}' where reward > 0").fetchall()
    assert found == [("a", "4")]
    loaded = load_dataset("parquet", data_files=str(path), split="train", cache_dir=str(tmp_path / "cache"))
    assert loaded[0]["row"] == {"verifier_metadata": {"answer": 4}}
    assert loaded[0]["response"]["output"][-1] == said("4") and loaded[1]["reward"] is None
    rows = list(rows_of(Source(str(path)), Faults()))
    assert rows[0].fields["request"] == {"input": "do a"}


def test_it_is_compressed_and_written_in_batches_of_bounded_size(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rollout_table, "BATCH_ROWS", 4)
    monkeypatch.setattr(rollout_table, "BATCH_BYTES", 10_000)
    small = [answered(f"t{number}", 0, 1.0, said("x")) for number in range(6)]
    large = [answered(f"u{number}", 0, 1.0, said("x" * 20_000)) for number in range(2)]
    table([run(*small, *large)], tmp_path / "r.parquet")
    about = pq.ParquetFile(tmp_path / "r.parquet").metadata
    assert [about.row_group(group).num_rows for group in range(about.num_row_groups)] == [4, 3, 1]
    assert about.row_group(0).column(0).compression == "ZSTD"


def test_every_run_gives_the_same_schema_whatever_is_null_in_it(run: Run, ended: Path, tmp_path: Path) -> None:
    """What is null, empty or of another shape in one shard, and is not in the next, changes no column's type."""
    full: dict[str, Any] = {"verifier_metadata": {"answer": [1, {"x": None}]}, "metrics": {"steps": 1}, "level": 3}
    bare = answered("c", 0, 1, response={"output": []}, timings={}, responses_create_params={})
    runs = [
        ended,
        run(bare, rows=1, name="bare"),
        run(answered("d", 0, None), rows=1, name="failed"),
        run(answered("e", 0, 0.5, said("x"), **full), answered("f", 0, 1.0, level=["a"]), rows=2, name="full"),
    ]
    paths = [tmp_path / f"{number}.parquet" for number in range(len(runs))]
    for each, path in zip(runs, paths, strict=True):
        table([each], path)
    schemas = [pq.read_schema(path) for path in paths]
    assert all(schema.equals(schemas[0], check_metadata=True) for schema in schemas)
    nested = ["reward_components", "metrics", "timings", "request", "response", "row"]
    assert json.loads(schemas[0].metadata[b"gymbox.json_columns"]) == nested
    assert all(str(schemas[0].field(name).type) == "extension<arrow.json>" for name in nested)
    assert all("null" not in str(field.type) for field in schemas[0])

    whole = pa.concat_tables([pq.read_table(path) for path in paths]).to_pylist()
    assert [row["reward"] for row in whole] == [1.0, None, 1.0, None, 0.5, 1.0]
    files = [str(path) for path in reversed(paths)]  # the first file is where `datasets` looks for the types
    loaded = load_dataset("parquet", data_files=files, split="train", cache_dir=str(tmp_path / "cache"))
    found = {row["task"]: row for row in loaded}
    assert found["e"]["row"] == {"verifier_metadata": {"answer": [1, {"x": None}]}, "level": 3}
    assert found["f"]["row"] == {"level": ["a"]} and found["c"]["timings"] == {} and found["d"]["response"] is not None
    assert (found["c"]["error"], found["d"]["error"], found["e"]["metrics"]) == (None, "agent_failed", {"steps": 1})


def test_a_verifiers_own_fields_of_nemo_gyms_rollouts_are_no_error_of_ours(tmp_path: Path) -> None:
    nemo = {"response": {"output": []}, "reward": 0.5, "error": "none", "timings": "quick", "metrics": [1]}
    (tmp_path / "nemo.jsonl").write_text(json.dumps(nemo) + "\n")
    [row] = table([tmp_path / "nemo.jsonl"], tmp_path / "r.parquet")
    assert (row["reward"], row["error_stage"]) == (0.5, None)


def test_rows_of_the_dataset_can_be_left_out(ended: Path, tmp_path: Path) -> None:
    assert "row" not in table([ended], tmp_path / "r.parquet", rows=False)[0]


def test_several_runs_and_nemo_gyms_files_make_one_table(ended: Path, tmp_path: Path) -> None:
    nemo = {
        "responses_create_params": {"input": [{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}]},
        "response": {"output": [{"role": "assistant", "content": "ho"}]},
        "reward": 0.5,
        "agent_ref": {"name": "simple"},
        "_ng_task_index": 0,
        "_ng_rollout_index": 0,
    }
    (tmp_path / "nemo.jsonl").write_text(json.dumps(nemo) + "\n")
    rows = table([ended, tmp_path / "nemo.jsonl"], tmp_path / "r.parquet")
    assert (rows[2]["run"], rows[2]["question"], rows[2]["answer"]) == ("nemo.jsonl", "hi", "ho")
    assert rows[0]["run"] == rows[1]["run"] == RunReader(ended).manifest.run  # type: ignore[union-attr]


def test_half_a_surrogate_pair_is_told_as_well_as_can_be(run: Run, tmp_path: Path) -> None:
    [row] = table([run(answered("a", 0, 1.0, said("ä\ud800")))], tmp_path / "r.parquet")
    assert row["answer"] == "ä?" and json.loads(row["response"])["output"][0] == said("ä\ud800")


def test_what_has_no_place_is_refused_and_nothing_is_left(run: Run, tmp_path: Path) -> None:
    line = json.dumps(answered("a", 0, 1.0, said("x")))
    for name, text, message in (
        ("nan", line.replace('"output"', '"other": NaN, "output"'), "rollout counter-a-0 has what JSON has not"),
        ("index", line.replace('"reward"', '"_ng_task_index": "one", "reward"'), "is 'one', not a whole number"),
        ("mask", line.replace('"reward"', '"mask_reason": [1], "reward"'), "its column cannot hold, in mask_reason: "),
        ("none", "", "there are no rollouts"),
    ):
        (tmp_path / f"{name}.jsonl").write_text(f"{text}\n" if text else "")
        with pytest.raises(ConfigError, match=message):
            table([tmp_path / f"{name}.jsonl"], tmp_path / "new" / "r.parquet")
        assert not list((tmp_path / "new").iterdir())
    with pytest.raises(ConfigError, match=r"name the output so"):
        table([tmp_path / "nan.jsonl"], tmp_path / "r.csv")


def test_a_folder_is_what_datasets_loads_and_tells_of_itself(ended: Path, tmp_path: Path) -> None:
    export_folder([RunReader(ended)], tmp_path / "folder", license="Apache-2.0")
    loaded = load_dataset(str(tmp_path / "folder"), cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == ["train"] and loaded["train"]["reward"] == [1.0, None]
    assert "row" not in loaded["train"].column_names  # what the verifier alone may see
    card = (tmp_path / "folder" / "README.md").read_text()
    assert "license: Apache-2.0" in card and "| counter | 2 | 2 | 1 | 1 |" in card
    with pytest.raises(ConfigError, match="there already"):
        export_folder([RunReader(ended)], tmp_path / "folder")
    export_folder([RunReader(ended)], tmp_path / "with", rows=True)
    assert "license" not in (tmp_path / "with" / "README.md").read_text()
    assert "row" in pq.read_schema(tmp_path / "with" / "rollouts.parquet").names


def test_a_run_without_rewards_has_an_unknown_mean(run: Run, tmp_path: Path) -> None:
    export_folder([RunReader(run(answered("a", 0, None)))], tmp_path / "folder")
    assert "| unknown |" in (tmp_path / "folder" / "README.md").read_text()
