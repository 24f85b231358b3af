"""Published rows and rollouts of NeMo Gym, as they are: same rows, same tool results, same rewards."""

from __future__ import annotations

import json
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest
from gymbox.agents.tool_loop import ToolLoop
from gymbox.dataset import open_datasets
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog, Environment
from gymbox.http import HttpClient
from gymbox.models.scripted import ScriptedModel
from gymbox.rollout import RolloutResult, run_rollout

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "data" / "nemo_gym"
CATALOG = Catalog([ROOT / "environments"])
PUBLISHED = {"weather": "example_single_tool_call", "counter": "example_session_state_mgmt"}


@pytest.fixture(params=PUBLISHED)
def environment(request: pytest.FixtureRequest) -> Environment:
    """One of ours, with the published rows as its dataset."""
    ours = CATALOG[request.param]
    path = (FOLDER / f"{PUBLISHED[request.param]}.jsonl").resolve()
    return Environment(ours.folder, ours.manifest.model_copy(update={"dataset": str(path)}))


def test_the_published_rows_are_valid_as_they_are(environment: Environment) -> None:
    [dataset] = open_datasets([environment])
    assert len(dataset) == 5
    dataset.close()


async def test_published_rollouts_get_the_published_rewards(
    environment: Environment, controller: EmbeddedController, http: HttpClient
) -> None:
    rollouts = read(FOLDER / f"{PUBLISHED[environment.name]}.rollouts.jsonl")
    assert len(rollouts) == 5
    for number, published in enumerate(rollouts):
        row = row_of(published, environment)
        model = ScriptedModel(replies=turns(published["response"]["output"]))

        result = await run_rollout(row, environment, ToolLoop(), model, controller, http, f"published-{number}")

        assert result.error is None
        assert result.reward == published["reward"]
        assert tool_results(trajectory(result)) == tool_results(published["response"]["output"])


async def test_the_same_rows_without_the_calls_get_nothing_where_a_counter_must_move(
    controller: EmbeddedController, http: HttpClient
) -> None:
    counter = CATALOG["counter"]
    model = ScriptedModel(replies=[[{"type": "message", "role": "assistant", "content": "The count is 42."}]])
    for number, row in enumerate(read(FOLDER / f"{PUBLISHED['counter']}.jsonl")):
        result = await run_rollout(row, counter, ToolLoop(), model, controller, http, f"idle-{number}")
        assert result.reward == 0.0


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().split(b"\n") if line]


def row_of(published: dict[str, Any], environment: Environment) -> dict[str, Any]:
    """The dataset's row that a published rollout is of."""
    return next(row for row in read(environment.dataset) if asked(row) == asked(published))


def asked(row: dict[str, Any]) -> list[str]:
    return [message["content"] for message in row["responses_create_params"]["input"]]


def turns(output: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What the model said, turn by turn: tool results lie between."""
    parts = groupby(output, key=lambda item: item["type"] == "function_call_output")
    return [list(items) for is_result, items in parts if not is_result]


def trajectory(result: RolloutResult) -> list[dict[str, Any]]:
    assert result.response is not None
    return [item.dump() for item in result.response.output]


def tool_results(output: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    return [(item["call_id"], json.loads(item["output"])) for item in output if item["type"] == "function_call_output"]
