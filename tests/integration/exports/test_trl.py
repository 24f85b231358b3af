"""Training sets of real runs, loaded, tokenised, collated and trained on by TRL itself."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gymbox.evaluation.rollouts import RunReader
from gymbox.exports.dpo import DpoChoice, DpoForm, export_dpo
from gymbox.exports.sft import SftChoice, SftForm, export_sft
from gymbox.models.cassettes import recorded_calls

from tests import own_venv
from tests.integration.models.vllm_double import END, vllm_double
from tests.integration.run.conftest import Gymbox
from tests.unit.exports.conftest import answered, ids, lines_in, said

SCRIPT = Path(__file__).with_name("trl_trains.py")
COUNTER = ("environment=counter", "provider=process", "runner.limit=2")


@pytest.fixture(scope="module")
def trl() -> str:
    """An interpreter that has TRL."""
    return own_venv.interpreter_with("trl")


async def trained(trl: str, folder: Path, *jobs: tuple[str, Path]) -> list[dict[str, Any]]:
    """What TRL says of each set."""
    told = json.dumps([{"kind": kind, "path": str(path)} for kind, path in jobs])
    variables = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(folder / "hf")}
    out = await own_venv.ran(trl, str(SCRIPT), told, cwd=folder, measured=False, **variables)
    found: list[dict[str, Any]] = json.loads(out.strip().split("\n")[-1])
    return found


async def ran(gymbox: Gymbox, *arguments: str) -> None:
    ended = await gymbox.run(*arguments)
    assert ended.code in (0, 1), ended.err


async def test_conversations_with_tools_are_trained_on(gymbox: Gymbox, trl: str, tmp_path: Path) -> None:
    await ran(gymbox, *COUNTER, "model=scripted", "runner.output=good")
    lazy = "model.replies=[[{type:message,role:assistant,content:'It is 0.'}]]"
    await ran(gymbox, *COUNTER, "model=scripted", lazy, "runner.output=bad")
    good, bad = RunReader(tmp_path / "good"), RunReader(tmp_path / "bad")
    messages, completion, pairs = (tmp_path / name for name in ("m.jsonl", "c.parquet", "p.parquet"))
    export_sft([good, bad], messages)
    export_sft([good, bad], completion, SftChoice(form=SftForm.COMPLETION))
    export_dpo([good, bad], pairs)
    sft, split, dpo = await trained(trl, tmp_path, ("sft", messages), ("sft", completion), ("dpo", pairs))

    assert sft["rows"] == split["rows"] == dpo["rows"] == 2
    assert sft["finite"] and split["finite"] and dpo["finite"]
    assert sft["first"] == lines_in(messages)[0]
    for found in (sft, split):
        # the tools are in what the model reads; its own turns alone are what it learns
        assert '"name": "increment_counter"' in found["texts"][0] and '{"success":true}' in found["texts"][0]
        assert '<tool_call>\n{"name": "increment_counter", "arguments": {"count": ' in found["learnt"][0]
        assert "The counter is at" in found["learnt"][0] and '{"success":true}' not in found["learnt"][0]
    assert dpo["prompt"][0].endswith("<|im_start|>assistant\n") and "<tools>" in dpo["prompt"][0]
    assert "The counter is at" in dpo["chosen"][0] and "It is 0." in dpo["rejected"][0]


async def test_sampled_tokens_are_trained_on_and_no_others(gymbox: Gymbox, trl: str, tmp_path: Path) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "increment_counter", "arguments": '{"count": 1}'}}
    replies: list[Any] = [{"content": "let me count, ab", "tool_calls": [call]}, {"content": "done"}]
    settings = (*COUNTER, "runner.capture=on", "model=chat", "model.name=double", "model.token_ids=true")
    for name, drift in (("whole", False), ("drifting", True)):
        async with vllm_double(replies, drift=drift) as double:
            await ran(gymbox, *settings, f"model.base_url={double.url}", f"runner.output={name}")
    sets = {name: tmp_path / f"{name}.parquet" for name in ("whole", "drifting")}
    for name, path in sets.items():
        written = export_sft([RunReader(tmp_path / name)], path, SftChoice(form=SftForm.TOKENS, min_reward=0))
        assert written.written.rows == (2 if name == "whole" else 4)  # two branches of each
    pairs = tmp_path / "pairs.jsonl"
    export_dpo([RunReader(_graded(tmp_path))], pairs, DpoChoice(form=DpoForm.TOKENS))
    jobs = [("sft_tokens", sets["whole"]), ("sft_tokens", sets["drifting"]), ("dpo_tokens", pairs)]
    whole, drifting, dpo = await trained(trl, tmp_path, *jobs)

    for name, found in (("whole", whole), ("drifting", drifting)):
        calls = list(recorded_calls(tmp_path / name))
        sampled = sorted(_sampled(each.response) for each in calls)
        assert sorted(_learnt(found)) == sampled and found["finite"]
        assert all(len(ids) == len(labels) for ids, labels in zip(found["input_ids"], found["labels"], strict=True))
    assert whole["input_ids"][0][-1] == END and whole["batch"]["input_ids"][0] == 2
    assert dpo["finite"] and dpo["batch"]["input_ids"] == [[1, 2, 3, 4], [1, 2, 5, 0]]
    assert dpo["batch"]["completion_mask"] == [[0, 0, 1, 1], [0, 0, 1, 0]]


def _sampled(response: Any) -> list[int]:
    found: list[int] = response["output"][-1]["generation_token_ids"]
    return found


def _learnt(found: dict[str, Any]) -> list[list[int]]:
    """Each stretch of tokens that has labels."""
    stretches: list[list[int]] = []
    for labels in found["labels"]:
        on = False
        for label in labels:
            if label != -100 and not on:
                stretches.append([])
            on = label != -100
            if on:
                stretches[-1].append(label)
    return stretches


def _graded(folder: Path) -> Path:
    path = folder / "graded.jsonl"
    lines = [answered("a", 0, 1.0, said("x", **ids([1, 2], 3, 4))), answered("a", 1, 0.0, said("y", **ids([1, 2], 5)))]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
