"""Sampled tokens of a run, whether or not its agent knows of them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from gymbox.models.cassettes import recorded_calls
from gymbox.models.trajectories import per_call, rebuilt

from tests.integration.models.vllm_double import END, MERGED, vllm_double

RUN = ("environment=counter", "provider=process", "runner.limit=1", "runner.capture=on", "runner.output=one")
CALL = {"id": "c1", "type": "function", "function": {"name": "increment_counter", "arguments": '{"count": 1}'}}
REPLIES: list[Any] = [{"content": "let me count, ab", "tool_calls": [CALL]}, {"content": "done"}]


def model(url: str) -> tuple[str, ...]:
    return ("model=chat", "model.name=double", f"model.base_url={url}", "model.token_ids=true")


async def test_an_agent_that_carries_ids_keeps_them_and_the_row_says_so(gymbox: Any) -> None:
    async with vllm_double(REPLIES) as double:
        ended = await gymbox.run(*RUN, *model(double.url), "model.price={input: 1, output: 2}")
    assert ended.code == 0, ended.err
    [line] = gymbox.lines("one")
    output = line["response"]["output"]
    first, last = (item for item in output if "generation_token_ids" in item)
    assert first["type"] == "function_call" and first["generation_token_ids"][-1] == END
    assert "".join(map(chr, first["generation_token_ids"][:-1])).endswith("</call>")
    assert last["prompt_token_ids"][: len(first["prompt_token_ids"])] == first["prompt_token_ids"]
    assert line["mask_sample"] is False and line["_ng_token_capture"]["delivered_fraction"] == 1
    assert line["_ng_token_capture"]["chains"] == 1 and line["calls"]["cost"] > 0
    found = rebuilt(list(recorded_calls(gymbox.folder / "one"))).main
    assert found is not None and found.token_ids is not None and found.loss_mask is not None
    assert sum(found.loss_mask) == len(first["generation_token_ids"]) + len(last["generation_token_ids"])
    assert found.token_ids == last["prompt_token_ids"] + last["generation_token_ids"]
    assert len(per_call(list(recorded_calls(gymbox.folder / "one")))) == 2


@pytest.mark.parametrize("splice", [False, True])
async def test_other_tokens_for_the_same_text_mask_the_row_unless_the_server_takes_the_ids_back(
    gymbox: Any, splice: bool
) -> None:
    async with vllm_double(REPLIES, drift=True, splice=splice) as double:
        ended = await gymbox.run(*RUN, *model(double.url))
        assert ended.code == 0, ended.err
        [sampled] = [message for message in double.bodies[1]["messages"] if message["role"] == "assistant"]
        assert MERGED in sampled["generation_token_ids"]
    [line] = gymbox.lines("one")
    assert line["reward"] is not None
    assert line["mask_sample"] is not splice
    if not splice:
        assert "differs at token" in line["mask_reason"]
        assert line["response"]["output"][-1]["mask_sample"] is True
        assert line["_ng_token_capture"]["chains"] == 2


async def test_an_agent_that_knows_nothing_of_tokens_gets_them_captured_all_the_same(gymbox: Any) -> None:
    (gymbox.folder / "foreign.py").write_text(FOREIGN)
    (gymbox.folder / "agent").mkdir()
    (gymbox.folder / "agent" / "foreign.yaml").write_text("_target_: foreign.Foreign\n")
    async with vllm_double(REPLIES) as double:
        ended = await gymbox.run(*RUN, *model(double.url), "agent=foreign", "--config-dir=.")
    assert ended.code == 0, ended.err
    [line] = gymbox.lines("one")
    assert line["mask_sample"] is False and line["_ng_token_capture"]["n_calls"] == 2
    kinds = [item["type"] for item in line["response"]["output"]]
    assert kinds == ["message", "function_call", "function_call_output", "message"]
    assert line["response"]["output"][1]["generation_token_ids"][-1] == END
    assert json.loads(line["response"]["output"][1]["arguments"]) == {"count": 1}


FOREIGN = '''
import json

import openai
from gymbox.agents import Agent
from gymbox_sandbox.responses import Response


class Foreign(Agent):
    """A harness with a client of its own."""

    async def run(self, task, model, tools):
        endpoint = await model.endpoint()
        messages = [
            {"role": item.role, "content": item.text} for item in task.responses_create_params.items
        ]
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.key) as api:
            while True:
                answer = await api.chat.completions.create(model=endpoint.model, messages=messages)
                message = answer.choices[0].message
                messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
                for call in message.tool_calls or []:
                    result = await tools.call(call.function.name, json.loads(call.function.arguments))
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result.output})
                if not message.tool_calls:
                    said = {"type": "output_text", "text": message.content}
                    return Response.model_validate({"output": [{"role": "assistant", "content": [said]}]})
'''
