"""Sets to fine-tune on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from datasets import load_dataset
from gymbox.datasets.sources import Source, rows_of
from gymbox.errors import ConfigError
from gymbox.evaluation.rollouts import RunReader
from gymbox.exports.columns import JSONS, write_parquet
from gymbox.exports.left_out import Reason
from gymbox.exports.sft import Choose, SftChoice, SftForm, export_sft
from gymbox.exports.training_rows import Exported
from gymbox.faults import Faults

from tests.unit.exports.conftest import answered, called, ids, lines_in, result, said

Run = Callable[..., Path]


def exported(run: Path, to: Path, **choice: Any) -> Exported:
    return export_sft([RunReader(run)], to, SftChoice(**choice))


@pytest.fixture
def mixed(run: Run) -> Path:
    """Two tasks; of `a` three went well, two of them alike."""
    return run(
        answered("a", 0, 1.0, said("four")),
        answered("a", 1, 1.0, said("four")),
        answered("a", 2, 2.0, said("4")),
        answered("a", 3, 0.0, said("5")),
        answered("b", 0, 1.0, called(), result(), said("2")),
        answered("b", 1, None),
        answered("b", 2, 1.0, said("x"), mask_sample=True, mask_reason="drift"),
        answered("b", 3, 1.0, said("y"), response={"status": "incomplete", "incomplete_details": {"reason": "max"}}),
        answered("b", 4, 1.0),
        answered("b", 5, None, error=None),
        repeats=6,
    )


def test_what_went_well_is_taken_and_all_else_is_counted_by_reason(mixed: Path, tmp_path: Path) -> None:
    found = exported(mixed, tmp_path / "sft.jsonl")
    rows = lines_in(tmp_path / "sft.jsonl")
    assert [(row["task"], row["reward"]) for row in rows] == [("a", 1.0), ("a", 1.0), ("a", 2.0), ("b", 1.0)]
    assert rows[0]["messages"] == [{"role": "user", "content": "do a"}, {"role": "assistant", "content": "four"}]
    assert rows[0]["tools"] is None and rows[3]["rollout"] == "counter-b-0"
    assert (found.rollouts, found.used, found.written.rows) == (10, 4, 4)
    assert found.left_out.counts == {
        Reason.BELOW_MIN_REWARD: 1,
        Reason.ERROR: 1,
        Reason.MASKED: 1,
        Reason.CUT_OFF: 1,
        Reason.NO_ANSWER: 1,
        Reason.NO_REWARD: 1,
    }
    assert sum(found.left_out.counts.values()) == found.rollouts - found.used
    assert found.left_out.examples[Reason.ERROR] == "counter-b-1: agent_failed: it fell"
    assert found.left_out.examples[Reason.MASKED] == "counter-b-2: drift"


def test_a_prompt_and_its_completion_are_told_apart(mixed: Path, tmp_path: Path) -> None:
    exported(mixed, tmp_path / "sft.jsonl", form=SftForm.COMPLETION)
    row = lines_in(tmp_path / "sft.jsonl")[3]
    assert row["prompt"] == [{"role": "user", "content": "do b"}]
    assert [message["role"] for message in row["completion"]] == ["assistant", "tool", "assistant"]


def test_the_same_rows_are_left_out_only_if_asked(mixed: Path, tmp_path: Path) -> None:
    found = exported(mixed, tmp_path / "sft.jsonl", dedup=True)
    assert found.left_out.counts[Reason.DUPLICATE] == 1
    assert [row["rollout"] for row in lines_in(tmp_path / "sft.jsonl")] == [
        *("counter-a-0", "counter-a-2", "counter-b-0"),
    ]


def test_masked_and_incomplete_ones_are_taken_where_that_is_wanted(mixed: Path, tmp_path: Path) -> None:
    found = exported(mixed, tmp_path / "sft.jsonl", masked=True, cut_off=True, min_reward=0)
    assert found.used == 7 and not {Reason.MASKED, Reason.CUT_OFF, Reason.BELOW_MIN_REWARD} & {*found.left_out.counts}


def test_of_each_task_the_best_the_first_or_some_by_chance_are_taken(mixed: Path, tmp_path: Path) -> None:
    def taken(**choice: Any) -> list[str]:
        found = exported(mixed, tmp_path / "sft.jsonl", per_task=1, **choice)
        assert found.left_out.counts[Reason.BEYOND_PER_TASK] == 2
        rows = [row["rollout"] for row in lines_in(tmp_path / "sft.jsonl")]
        (tmp_path / "sft.jsonl").unlink()
        return rows

    assert taken() == ["counter-a-2", "counter-b-0"]
    assert taken(choose=Choose.FIRST) == ["counter-a-0", "counter-b-0"]
    drawn = {seed: taken(choose=Choose.RANDOM, seed=seed) for seed in range(8)}
    assert drawn[3] == taken(choose=Choose.RANDOM, seed=3)
    assert len({tuple(each) for each in drawn.values()}) > 1


def test_the_same_run_and_choice_give_the_same_bytes(mixed: Path, tmp_path: Path) -> None:
    choice = {"per_task": 2, "choose": Choose.RANDOM, "seed": 5}
    first, second = (exported(mixed, tmp_path / f"{name}.parquet", **choice) for name in "ab")
    assert first.written.sha256 == second.written.sha256


def test_tokens_are_learnt_from_only_where_they_were_sampled(run: Run, tmp_path: Path) -> None:
    turns = [called(**ids([1, 2], 3, 4)), result(), said("2", **ids([1, 2, 3, 4, 5], 6))]
    broken = [called(**ids([1, 2], 3, 4)), result(), said("2", **ids([1, 2, 33], 6))]
    folder = run(answered("a", 0, 1.0, *turns), answered("b", 0, 1.0, *broken), answered("c", 0, 1.0, said("x")))
    found = exported(folder, tmp_path / "sft.parquet", form=SftForm.TOKENS)
    assert (found.used, found.written.rows) == (2, 3)  # a row for each branch
    assert found.left_out.counts == {Reason.NO_TOKEN_IDS: 1}
    rows = pq.read_table(tmp_path / "sft.parquet").to_pylist()
    assert rows[0]["input_ids"] == [1, 2, 3, 4, 5, 6]
    assert rows[0]["labels"] == [-100, -100, 3, 4, -100, 6]
    assert [row["labels"] for row in rows[1:]] == [[-100, -100, 3, 4], [-100, -100, -100, 6]]
    one = exported(folder, tmp_path / "one.parquet", form=SftForm.TOKENS, branches=False)
    assert one.written.rows == 1 and one.left_out.counts[Reason.SEVERAL_BRANCHES] == 1


def test_parquet_gives_the_very_messages_back_whatever_their_shapes(run: Run, tmp_path: Path) -> None:
    calls = [called(arguments='{"a": null}'), called("mul", '{"b": [1, {"c": 2.5}]}', "c2")]
    line = answered("a", 0, 1.0, *calls, result(), result("3", "c2"), said("h\u00e4 \u2028"))
    line["response"]["tools"] = [{"type": "function", "name": "add", "parameters": {"anyOf": [{"type": "null"}]}}]
    folder = run(line, answered("b", 0, 1.0, said("4")))
    exported(folder, tmp_path / "sft.parquet")
    exported(folder, tmp_path / "sft.jsonl")
    cache = str(tmp_path / "cache")
    loaded = load_dataset("parquet", data_files=str(tmp_path / "sft.parquet"), split="train", cache_dir=cache)
    assert list(loaded) == lines_in(tmp_path / "sft.jsonl")
    again = load_dataset("json", data_files=str(tmp_path / "sft.jsonl"), split="train", cache_dir=cache)
    assert list(again) == list(loaded)
    assert [row.fields["messages"] for row in rows_of(Source(str(tmp_path / "sft.parquet")), Faults())] == [
        row["messages"] for row in loaded
    ]


@pytest.mark.parametrize("form", SftForm)
def test_two_sets_of_one_form_have_the_same_schema(run: Run, tmp_path: Path, form: SftForm) -> None:
    with_tools = answered("a", 0, 1.0, called(**ids([1], 2)), result(), said("4", **ids([1, 2, 3], 4)))
    with_tools["response"]["tools"] = [{"type": "function", "name": "add", "parameters": {"anyOf": [{"a": None}]}}]
    exported(run(with_tools, name="tools"), tmp_path / "a.parquet", form=form)
    exported(run(answered("b", 0, 1.0, said("4", **ids([1], 2))), name="bare"), tmp_path / "b.parquet", form=form)
    paths = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    first, second = (pq.read_schema(path) for path in paths)
    assert first.equals(second, check_metadata=True)
    told = {key: json.loads(first.metadata[key]) for key in (b"gymbox.json_columns", b"gymbox.json_list_columns")}
    lists = [name for name in ("messages", "prompt", "completion") if name in first.names]
    tools = [name for name in ("tools",) if name in first.names]
    assert told == {b"gymbox.json_columns": tools, b"gymbox.json_list_columns": lists}
    files, cache = [str(path) for path in reversed(paths)], str(tmp_path / "cache")
    loaded = list(load_dataset("parquet", data_files=files, split="train", cache_dir=cache))
    assert [row["task"] for row in loaded] == ["b", "a"]
    for name in lists:
        assert all(isinstance(message, dict) for row in loaded for message in row[name])
    for name in tools:
        assert loaded[0][name] is None and loaded[1][name][0]["function"]["name"] == "add"


def test_a_list_of_json_may_be_null_empty_or_of_any_shapes(tmp_path: Path) -> None:
    cells, path = [None, [], [1, "x", None, {"a": [{}]}]], str(tmp_path / "x.parquet")
    rows: list[dict[str, Any]] = [{"x": cell} for cell in cells]
    assert write_parquet([rows[:1], rows[1:]], {"x": JSONS}, Path(path)) == 3
    loaded = load_dataset("parquet", data_files=path, split="train", cache_dir=str(tmp_path / "cache"))
    assert [row["x"] for row in loaded] == cells
    rows = [row.fields for row in rows_of(Source(path), Faults())]
    assert rows == [{}, {"x": []}, {"x": cells[2]}]


def test_several_runs_make_one_set(run: Run, tmp_path: Path) -> None:
    first, second = run(answered("a", 0, 1.0, said("x"))), run(answered("a", 0, 1.0, said("y")), name="other")
    found = export_sft([RunReader(first), RunReader(second)], tmp_path / "sft.jsonl", SftChoice(per_task=1))
    assert (found.rollouts, found.used) == (2, 1)


def test_the_agents_own_system_prompt_is_part_of_what_was_asked(run: Run, tmp_path: Path) -> None:
    folder = run(answered("a", 0, 1.0, said("x")))
    manifest = folder / "manifest.json"
    manifest.write_text(
        manifest.read_text().replace('"inputs": {', '"inputs": {"agent": {"instructions": "Be brief."},')
    )
    exported(folder, tmp_path / "sft.jsonl")
    assert lines_in(tmp_path / "sft.jsonl")[0]["messages"][0] == {"role": "system", "content": "Be brief."}


def test_each_of_several_agents_has_its_own_system_prompt(run: Run, tmp_path: Path) -> None:
    by = {name: {"agent_ref": {"name": name}} for name in ("brief", "agent")}
    folder = run(answered("a", 0, 1.0, said("x"), **by["brief"]), answered("b", 0, 1.0, said("y"), **by["agent"]))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["inputs"] |= {"agent": {}, "agents": {"brief": {"agent": {"instructions": "Be brief."}, "model": {}}}}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    exported(folder, tmp_path / "sft.jsonl")
    first, second = (each["messages"][0] for each in lines_in(tmp_path / "sft.jsonl"))
    assert first == {"role": "system", "content": "Be brief."} and second["role"] == "user"


def test_a_prompt_with_skills_that_no_record_has_is_left_out(run: Run, tmp_path: Path) -> None:
    skilled = answered("a", 0, 1.0, said("x"), skills_ref={"path": "s", "hash": "h", "skills": []})
    found = exported(run(skilled, answered("b", 0, 1.0, said("y"))), tmp_path / "sft.jsonl")
    assert found.used == 1 and found.left_out.counts == {Reason.SKILLS: 1}


def test_what_json_cannot_tell_is_left_out(run: Run, tmp_path: Path) -> None:
    folder = run(answered("a", 0, 1.0, said("half \ud800")), answered("b", 0, 1.0, said("x")))
    found = exported(folder, tmp_path / "sft.parquet")
    assert found.used == 1 and found.left_out.counts == {Reason.NOT_TEXT: 1}


def test_nothing_is_written_where_no_row_is_left(run: Run, tmp_path: Path) -> None:
    folder = run(answered("a", 0, 0.0, said("x")), answered("b", 0, None))
    with pytest.raises(ConfigError, match=r"of 2 rollouts all are left out: .*below_min_reward 1") as caught:
        exported(folder, tmp_path / "new" / "sft.jsonl")
    assert "error: counter-b-0: agent_failed: it fell" in str(caught.value)
    assert not list((tmp_path / "new").iterdir())


def test_wrong_outputs_and_choices_are_refused(mixed: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"\.jsonl or \.parquet"):
        exported(mixed, tmp_path / "sft.csv")
    exported(mixed, tmp_path / "sft.jsonl")
    with pytest.raises(ConfigError, match="there already"):
        exported(mixed, tmp_path / "sft.jsonl")
    with pytest.raises(ConfigError, match="masked"):
        exported(mixed, tmp_path / "t.jsonl", masked=True, form=SftForm.TOKENS)
    (tmp_path / "none.jsonl").write_text("")
    with pytest.raises(ConfigError, match="there are no rollouts"):
        exported(tmp_path / "none.jsonl", tmp_path / "t.jsonl")
