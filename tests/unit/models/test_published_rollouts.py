"""Published rollouts of NeMo Gym: real histories go through the converters whole."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from gymbox.models.chat_requests import chat_from_params, params_from_chat
from gymbox_sandbox.responses import ResponsesParams

FOLDER = Path(__file__).parents[3] / os.environ.get("GYMBOX_NEMO_ROWS", "../shared/data/nemo_rows")


@pytest.fixture
def rollouts() -> list[dict[str, Any]]:
    if not FOLDER.is_dir():
        pytest.skip(f"the published rollouts are not at {FOLDER.name}")
    return [
        json.loads(line)
        for path in sorted(FOLDER.glob("*.rollouts.jsonl"))
        for line in path.read_bytes().split(b"\n")
        if line.strip()
    ]


def test_every_published_trajectory_is_a_chat_history_and_the_same_after_going_back(
    rollouts: list[dict[str, Any]],
) -> None:
    assert len(rollouts) >= 100
    for rollout in rollouts:
        asked, output = rollout["responses_create_params"], rollout["response"]["output"]
        answered = {item["call_id"] for item in output if item["type"] == "function_call_output"}
        # a rollout that ends with calls has no results to show
        told = [item for item in output if item["type"] != "function_call" or item["call_id"] in answered]
        given = asked["input"]
        history = [{"role": "user", "content": given}] if isinstance(given, str) else given
        sent = chat_from_params(ResponsesParams.model_validate({**asked, "input": [*history, *told]}))
        calls = [call for message in sent["messages"] for call in message.get("tool_calls", [])]
        assert len(calls) == sum(item.get("type") == "function_call" for item in [*history, *told])
        assert chat_from_params(params_from_chat(sent)) == sent
