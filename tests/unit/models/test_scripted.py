"""The scripted model: what it replays, and how it ends."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from gymbox.errors import ConfigError, ErrorKind, ModelFailure
from gymbox.http import HttpClient
from gymbox.models import Call
from gymbox.models.scripted import ScriptedModel
from gymbox_sandbox.responses import Item, ResponsesParams

GOLD = [
    [{"type": "reasoning", "summary": []}, {"type": "function_call", "name": "add", "arguments": {"by": 1}}],
    [{"type": "message", "content": "done"}],
]
CALL = Call(HttpClient(), gold=GOLD)


def write(path: Path, *rows: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def row(text: str, gold: Any = GOLD, **params: Any) -> dict[str, Any]:
    items = [{"role": "developer", "content": "be good"}, {"role": "user", "content": text}]
    return {"responses_create_params": {"input": items, **params}, "gold_replies": gold}


async def replay(model: ScriptedModel, items: list[Any], call: Call) -> list[Item]:
    """All turns, each asked with what came before."""
    history = list(items)
    while True:
        response = await model.responses(ResponsesParams.model_validate({"input": history}), call)
        history += response.output
        for each in response.function_calls:
            history.append({"type": "function_call_output", "call_id": each.call_id, "output": "ok"})
        if not response.function_calls:
            return history[len(items) :]


async def test_the_rows_gold_is_replayed_turn_by_turn_without_any_state() -> None:
    model = ScriptedModel()
    once, again = await asyncio.gather(*(replay(model, [{"role": "user", "content": "x"}], CALL) for _ in range(2)))
    kinds = [item["type"] if isinstance(item, dict) else item.type for item in once]
    assert kinds == ["reasoning", "function_call", "function_call_output", "message"]
    assert len(again) == len(once)


async def test_given_replies_win_over_gold() -> None:
    model = ScriptedModel(replies=[[{"type": "message", "content": "mine"}]])
    assert (await model.responses(ResponsesParams(input="x"), CALL)).output_text == "mine"


async def test_what_the_assistant_said_in_the_row_is_no_turn_of_the_script() -> None:
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "before"}]
    response = await ScriptedModel().responses(ResponsesParams.model_validate({"input": history}), CALL)
    assert [item.type for item in response.output] == ["reasoning", "function_call"]


async def test_without_a_reply_for_the_turn_it_fails_clearly() -> None:
    model = ScriptedModel(replies=[[{"type": "message", "content": "a"}]])
    history = [{"role": "user", "content": "x"}, {"role": "assistant", "content": "a"}]
    with pytest.raises(ModelFailure, match="no reply for turn 1: its script has 1") as raised:
        await model.responses(ResponsesParams.model_validate({"input": history}), CALL)
    assert raised.value.rollout_kind is ErrorKind.MODEL_REFUSED_REQUEST
    with pytest.raises(ModelFailure, match="no gold_replies"):
        await ScriptedModel().responses(ResponsesParams(input="x"), Call(HttpClient()))


async def test_over_http_the_gold_is_found_by_what_the_request_begins_with(tmp_path: Path) -> None:
    other = [[{"type": "message", "content": "other\u2028"}]]
    path = write(tmp_path / "rows.jsonl", row("one"), row("two\u2028", other), {"responses_create_params": {}})
    model = ScriptedModel(datasets=[path])
    await model.open()
    call = Call(HttpClient())
    asked = [
        {"role": "system", "content": "be good"},
        {"role": "user", "content": [{"type": "text", "text": "two\u2028"}]},
    ]
    assert (await replay(model, asked, call))[0].text == "other\u2028"  # type: ignore[union-attr]
    assert len(await replay(model, row("one")["responses_create_params"]["input"], call)) == 4
    with pytest.raises(ModelFailure, match="no row of its datasets"):
        await model.responses(ResponsesParams(input="three"), call)


async def test_rows_with_the_same_input_and_another_gold_are_never_mixed_up(tmp_path: Path) -> None:
    path = write(tmp_path / "rows.jsonl", row("one"), row("one", []), row("one"))
    model = ScriptedModel(datasets=[path])
    await model.open()
    with pytest.raises(ModelFailure, match="no row"):
        await model.responses(
            ResponsesParams.model_validate(row("one")["responses_create_params"]), Call(HttpClient())
        )


@pytest.mark.parametrize("content", ["{", "[]", '{"responses_create_params": {"input": 3}}'])
async def test_a_dataset_that_is_wrong_is_told_before_the_first_call(tmp_path: Path, content: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row("one")) + "\n\n" + content)  # a blank line counts
    with pytest.raises(ConfigError, match="line 3"):
        await ScriptedModel(datasets=[path]).open()
    with pytest.raises(ConfigError, match="cannot be read"):
        await ScriptedModel(datasets=[tmp_path / "none.jsonl"]).open()


async def test_it_fails_and_waits_as_configured() -> None:
    model = ScriptedModel(fail_with={0: "rate_limited"}, latency=0.01)
    with pytest.raises(ModelFailure, match="as its configuration says") as raised:
        await model.responses(ResponsesParams(input="x"), CALL)
    assert raised.value.rollout_kind is ErrorKind.MODEL_RATE_LIMITED
