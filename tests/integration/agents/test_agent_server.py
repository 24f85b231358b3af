"""A served agent, with a real controller, proxy and sandboxes behind it."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from gymbox.agents import Agent, AgentModel, Tools
from gymbox.agents.server import AgentServer
from gymbox.agents.tool_loop import ToolLoop
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog, Environment
from gymbox.errors import Unavailable
from gymbox.http import HttpClient
from gymbox.models.scripted import ScriptedModel
from gymbox.serving import Guard, Listener
from gymbox_sandbox.lifecycle import ROLLOUT_HEADER
from gymbox_sandbox.responses import Response
from gymbox_sandbox.tasks import Task

TOKEN = "gbx_agent_tests_only"
HEADERS = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
async def url(
    controller: EmbeddedController, catalog: Catalog, counter: Environment, http: HttpClient
) -> AsyncIterator[str]:
    model = ScriptedModel(datasets=[counter.dataset])
    server = AgentServer(ToolLoop(), model, controller, catalog, http, environment="counter")
    async with Listener(server.setup_webserver(), Guard(token=TOKEN), drain=1) as listener:
        yield listener.url


async def post(http: HttpClient, url: str, body: Any, **options: Any) -> tuple[int, Any]:
    headers = HEADERS | options.pop("headers", {})
    answer = await http.request("POST", url, json=body, headers=headers, retry=False, **options)
    return answer.status, json.loads(answer.body)


async def test_a_row_goes_all_the_way_to_its_reward(url: str, row: dict[str, Any], http: HttpClient) -> None:
    status, result = await post(http, f"{url}/run", row, headers={ROLLOUT_HEADER: "mine-1"})
    assert status == 200
    assert result["reward"] == 1.0 and result["error"] is None and result["rollout_id"] == "mine-1"
    assert result["responses_create_params"] == row["responses_create_params"]
    assert result["response"]["metadata"]["stop_reason"] == "completed"


async def test_a_rollout_that_fails_has_no_reward_and_a_typed_error(
    url: str, row: dict[str, Any], http: HttpClient
) -> None:
    unknown = {**row, "gold_replies": None, "responses_create_params": {"input": "nobody knows"}}
    status, result = await post(http, f"{url}/run", unknown)
    assert status == 200 and result["reward"] is None and result["response"] is None
    assert result["error"]["kind"] == "model_refused_request"


async def test_the_official_client_asks_the_agent_as_if_it_were_a_model(url: str, row: dict[str, Any]) -> None:
    params = row["responses_create_params"]
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=TOKEN, max_retries=0) as api:
        response = await api.responses.create(model="scripted", **params)
        stream = await api.responses.create(model="scripted", stream=True, **params)
        kinds = [event.type async for event in stream]
    kinds_of_items = [item.type for item in response.output]
    assert "function_call_output" in kinds_of_items and kinds_of_items[-1] == "message"
    assert kinds[-1] == "response.completed"


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/run?environment=conter", {}, 404),
        ("/run", {"environment": "conter"}, 404),
        ("/run", [], 422),
        ("/run", {"responses_create_params": 3}, 422),
        ("/v1/responses", {"input": 3}, 422),
    ],
)
async def test_a_wrong_request_is_told_what_is_wrong_with_it(
    path: str, body: Any, status: int, url: str, http: HttpClient
) -> None:
    found, problem = await post(http, f"{url}{path}", body)
    assert found == status and problem["detail"]
    health = await http.json("GET", f"{url}/healthz")
    assert health == {"status": "ok", "agent": "ToolLoop", "model": "scripted"}


async def test_a_request_that_the_model_refuses_is_not_worth_repeating(url: str, http: HttpClient) -> None:
    status, problem = await post(http, f"{url}/v1/responses", {"input": "no row begins like this"})
    assert (status, problem["kind"], problem["rollout_kind"]) == (422, "invalid", "model_refused_request")


async def test_without_a_default_the_environment_must_be_named_in_address_or_row(
    controller: EmbeddedController, catalog: Catalog, http: HttpClient, row: dict[str, Any]
) -> None:
    server = AgentServer(ToolLoop(), ScriptedModel(), controller, catalog, http)
    async with Listener(server.setup_webserver(), Guard(token=TOKEN), drain=1) as listener:
        status, problem = await post(http, f"{listener.url}/run", {})
        assert status == 422 and "environment" in problem["detail"]

        status, result = await post(http, f"{listener.url}/run", {**row, "environment": "counter"})
        assert (status, result["environment"], result["reward"]) == (200, "counter", 1.0)
        query = f"{listener.url}/run?environment=counter"
        status, result = await post(http, query, {**row, "environment": "a field of the task"})
        assert (status, result["reward"]) == (200, 1.0)


async def test_an_agent_with_skills_is_served_with_them(
    controller: EmbeddedController, catalog: Catalog, row: dict[str, Any], http: HttpClient, tmp_path: Path
) -> None:
    skill = tmp_path / "skills" / "adding" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: adding\ndescription: How to add.\n---\nAdd once.")
    read = {"type": "function_call", "call_id": "s", "name": "read_skill", "arguments": '{"name": "adding"}'}
    agent = ToolLoop.model_validate({"skills": tmp_path / "skills"})
    server = AgentServer(agent, ScriptedModel(), controller, catalog, http, environment="counter")

    async with Listener(server.setup_webserver(), Guard(token=TOKEN), drain=1) as listener:
        status, result = await post(
            http, f"{listener.url}/run", {**row, "gold_replies": [[read], *row["gold_replies"]]}
        )

    assert status == 200 and result["reward"] == 1.0
    assert result["skills_ref"]["skills"] == [{"name": "adding", "description": "How to add."}]
    [told] = [
        item["output"] for item in result["response"]["output"] if item.get("call_id") == "s" and "output" in item
    ]
    assert told.endswith("Add once.")


@pytest.mark.parametrize("rollout", ["../elsewhere", "-first", "x" * 101, "a~b"])
async def test_an_id_that_no_sandbox_can_have_is_refused_by_name(
    rollout: str, url: str, row: dict[str, Any], http: HttpClient
) -> None:
    status, problem = await post(http, f"{url}/run", row, headers={ROLLOUT_HEADER: rollout})
    assert status == 422 and ROLLOUT_HEADER in problem["detail"]


@pytest.mark.parametrize("name", ["../environments/counter", "../outside/counter", "x" * 4000])
async def test_an_environment_is_named_and_never_a_path(
    name: str, url: str, row: dict[str, Any], http: HttpClient
) -> None:
    status, problem = await post(http, f"{url}/run", {**row, "environment": name})
    assert status == 404 and "no environment" in problem["detail"] and len(problem["detail"]) < 1000


class Asking(Agent):
    """Asks by the rollout's endpoint, and says where that is."""

    async def run(self, task: Task, model: AgentModel, tools: Tools) -> Response:
        endpoint = await model.endpoint()
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.key, max_retries=0) as api:
            failing = {"model": endpoint.model, "input": "no row begins like this"}
            if task.responses_create_params.input == "fail":
                await api.responses.create(**failing)  # type: ignore[call-overload]
        return Response.model_validate({"output": [{"role": "assistant", "content": endpoint.url}]})


async def test_an_agents_own_client_leaves_no_endpoint_behind_and_its_failure_is_the_models(
    controller: EmbeddedController, catalog: Catalog, counter: Environment, http: HttpClient
) -> None:
    model = ScriptedModel(datasets=[counter.dataset])
    server = AgentServer(Asking(), model, controller, catalog, http, environment="counter")
    async with Listener(server.setup_webserver(), Guard(token=TOKEN), drain=1) as listener:
        status, answer = await post(http, f"{listener.url}/v1/responses", {"input": "hello"})
        assert status == 200
        with pytest.raises(Unavailable):
            await http.request("GET", answer["output"][0]["content"][0]["text"], retry=False)
        status, problem = await post(http, f"{listener.url}/v1/responses", {"input": "fail"})
        assert (status, problem["rollout_kind"]) == (422, "model_refused_request")
        assert problem["detail"].startswith("UnprocessableEntityError: ")
