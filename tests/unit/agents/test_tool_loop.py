"""The tool loop, against a scripted model and tools that are plain objects."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from gymbox.agents.single_turn import SingleTurn
from gymbox.agents.tool_loop import ToolLoop
from gymbox.errors import ErrorKind, Gone, ModelFailure
from gymbox.http import HttpClient
from gymbox.models import BoundModel
from gymbox.models.scripted import ScriptedModel
from gymbox_sandbox.responses import FunctionCallOutput, Response, ResponsesParams
from gymbox_sandbox.tasks import Task
from gymbox_sandbox.wire import ToolResult

ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}}
FAIL = {"type": "function", "name": "fail", "parameters": {"type": "object"}}
DONE = [{"type": "message", "content": "done"}]


class Sum:
    """Tools that add up, fail, wait or vanish."""

    def __init__(self) -> None:
        self.definitions = [ADD, FAIL, {**ADD, "name": "meet"}, {**ADD, "name": "vanish"}, {**ADD, "name": "wait"}]
        self.total = 0
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.meeting = asyncio.Barrier(2)
        self.cancelled = False

    async def call(self, name: str, arguments: dict[str, Any]) -> ToolResult:
        self.calls.append((name, arguments))
        if name == "fail":
            return ToolResult(output="it is broken", is_error=True)
        if name == "meet":
            async with asyncio.timeout(5):
                await self.meeting.wait()
        if name == "vanish":
            raise Gone("the sandbox has ended")
        if name == "wait":
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled = True
        self.total += arguments.get("by", 0)
        return ToolResult(output=str(self.total))


class Fixed:
    """A model that gives these answers and remembers what it was asked."""

    name = "fixed"

    def __init__(self, *answers: dict[str, Any]) -> None:
        self.answers = [Response.model_validate(answer) for answer in answers]
        self.asked: list[ResponsesParams] = []

    async def responses(self, params: ResponsesParams) -> Response:
        self.asked.append(params)
        return self.answers[min(len(self.asked), len(self.answers)) - 1]


def calls(*named: str, **arguments: Any) -> list[dict[str, Any]]:
    return [
        {"type": "function_call", "call_id": f"{name}_{index}", "name": name, "arguments": json.dumps(arguments)}
        for index, name in enumerate(named)
    ]


def answered(output: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    usage = {
        "input_tokens": 10,
        "output_tokens": 4,
        "total_tokens": 14,
        "output_tokens_details": {"reasoning_tokens": 1},
    }
    return {"status": "completed", "output": output, "usage": usage, **more}


MESSAGE = answered([{"type": "message", "role": "assistant", "content": "done"}])


def task(**params: Any) -> Task:
    return Task.model_validate({"responses_create_params": {"input": "go", **params}})


def outputs(response: Response) -> list[str]:
    return [str(item.output) for item in response.output if isinstance(item, FunctionCallOutput)]


def stopped(response: Response) -> str:
    return str((response.model_extra or {})["metadata"]["stop_reason"])


async def play(replies: Sequence[Any], sandbox: Sum, agent: ToolLoop | None = None, **params: Any) -> Response:
    async with HttpClient() as http:
        model = BoundModel(ScriptedModel(replies=list(replies)), http)
        return await (agent or ToolLoop()).run(task(**params), model, sandbox)


async def test_the_trajectory_holds_everything_in_order_and_the_usage_is_summed() -> None:
    tools = Sum()
    thought = {"type": "reasoning", "id": "rs_1", "summary": []}
    model = Fixed(answered([thought, *calls("add", by=2)]), answered(calls("add", by=3)), MESSAGE)
    response = await ToolLoop().run(task(), model, tools)
    assert [item.type for item in response.output] == [
        "reasoning",
        "function_call",
        "function_call_output",
        "function_call",
        "function_call_output",
        "message",
    ]
    assert outputs(response) == ["2", "5"]
    assert response.status == "completed" and stopped(response) == "completed"
    assert response.usage is not None
    assert response.usage.dump() == {
        "input_tokens": 30,
        "output_tokens": 12,
        "total_tokens": 42,
        "output_tokens_details": {"reasoning_tokens": 3},
    }
    assert (response.model_extra or {})["metadata"] == {"stop_reason": "completed", "steps": "3", "tool_calls": "2"}


async def test_the_model_sees_its_reasoning_calls_and_results_again() -> None:
    model = Fixed(answered([{"type": "reasoning", "id": "r", "summary": []}, *calls("add", by=1)]), MESSAGE)
    await ToolLoop().run(task(), model, Sum())
    assert [item.type for item in model.asked[1].items] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]


async def test_parallel_calls_run_at_once_and_are_answered_once_each_in_call_order() -> None:
    tools = Sum()
    response = await play([calls("meet", "meet", by=1), DONE], tools)
    assert [item.call_id for item in response.output if isinstance(item, FunctionCallOutput)] == ["meet_0", "meet_1"]
    assert sorted(outputs(response)) == ["1", "2"]


async def test_calls_run_one_after_another_where_the_row_says_so() -> None:
    response = await play([calls("add", "add", "add", by=1), DONE], Sum(), parallel_tool_calls=False)
    assert outputs(response) == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("call", "told"),
    [
        ({"name": "ad"}, "did you mean 'add'?"),
        ({"name": "add", "arguments": '{"by": '}, "not valid JSON"),
        ({"name": "add", "arguments": "[1]"}, "must be a JSON object, not list"),
        ({"name": "add", "arguments": '{"by": NaN}'}, "not valid JSON"),
        ({"name": "add", "arguments": "[" * 100_000}, "not valid JSON"),
        ({"name": "fail"}, "it is broken"),
    ],
)
async def test_a_call_that_cannot_be_run_is_answered_with_what_to_mend(call: dict[str, str], told: str) -> None:
    tools = Sum()
    response = await play([[{"type": "function_call", "call_id": "a", **call}], DONE], tools)
    assert told in outputs(response)[0] and outputs(response)[0].startswith("error: ")
    assert stopped(response) == "completed"
    assert [name for name, _ in tools.calls if name != "fail"] == []


async def test_empty_arguments_are_no_arguments() -> None:
    tools = Sum()
    await play([[{"type": "function_call", "call_id": "a", "name": "add", "arguments": ""}], DONE], tools)
    assert tools.calls == [("add", {})]


async def test_only_tools_that_the_model_was_shown_and_the_sandbox_has_are_callable() -> None:
    tools = Sum()
    elsewhere = {"type": "function", "name": "elsewhere"}
    replies = [calls("fail", "elsewhere"), DONE]
    response = await play(replies, tools, tools=[ADD, elsewhere])
    assert all("there is no tool" in text for text in outputs(response))
    assert tools.calls == []
    assert (response.model_extra or {})["tools"] == [ADD, elsewhere]


async def test_calls_of_an_answer_that_was_cut_off_are_not_run() -> None:
    tools = Sum()
    cut = answered(calls("add", by=1), status="incomplete", incomplete_details={"reason": "max_output_tokens"})
    response = await ToolLoop().run(task(), Fixed(cut), tools)
    assert tools.calls == [] and "cut off" in outputs(response)[0]
    assert response.status == "incomplete" and stopped(response) == "max_output_tokens"


async def test_a_filtered_answer_says_so() -> None:
    cut = answered([], status="incomplete", incomplete_details={"reason": "content_filter"})
    response = await ToolLoop().run(task(), Fixed(cut), Sum())
    assert response.incomplete_details == {"reason": "content_filter"}


async def test_a_model_that_never_stops_calling_ends_at_the_step_limit() -> None:
    response = await ToolLoop(max_steps=3).run(task(), Fixed(answered(calls("add", by=1))), Sum())
    assert stopped(response) == "max_steps" and outputs(response) == ["1", "2", "3"]
    assert ToolLoop().max_steps == 32


async def test_an_answer_of_reasoning_alone_ends_the_run_as_no_answer() -> None:
    response = await ToolLoop().run(task(), Fixed(answered([{"type": "reasoning", "summary": []}])), Sum())
    assert stopped(response) == "no_answer" and response.status == "completed"


async def test_calls_over_the_limit_are_answered_and_not_run() -> None:
    tools = Sum()
    response = await play([calls("add"), calls("add", "add", "add")], tools, ToolLoop(max_tool_calls=2))
    assert len(tools.calls) == 2 and len(outputs(response)) == 4
    assert "limit of 2" in outputs(response)[-1] and stopped(response) == "max_tool_calls"


async def test_invalid_calls_in_a_row_end_the_run_and_tool_faults_do_not_count() -> None:
    agent = ToolLoop(max_invalid_calls=2, max_steps=5)
    wrong, broken = answered(calls("nope")), answered(calls("fail"))
    assert stopped(await agent.run(task(), Fixed(wrong), Sum())) == "max_invalid_calls"
    assert stopped(await agent.run(task(), Fixed(broken), Sum())) == "max_steps"
    assert stopped(await agent.run(task(), Fixed(wrong, broken, wrong, MESSAGE), Sum())) == "completed"


async def test_the_token_budget_bounds_each_call_and_ends_the_run() -> None:
    model = Fixed(answered(calls("add")))
    response = await ToolLoop(max_output_tokens=10).run(task(max_output_tokens=8), model, Sum())
    assert [asked.max_output_tokens for asked in model.asked] == [8, 6, 2]
    assert stopped(response) == "max_output_tokens" and response.status == "incomplete"


async def test_answers_without_usage_count_nothing() -> None:
    response = await ToolLoop().run(task(), Fixed({**MESSAGE, "usage": None}), Sum())
    assert response.usage is not None and response.usage.total_tokens == 0


async def test_the_agents_instructions_are_for_rows_without_their_own() -> None:
    for agent in (ToolLoop(instructions="be good"), SingleTurn(instructions="be good")):
        model = Fixed(MESSAGE)
        await agent.run(task(), model, Sum())
        await agent.run(task(instructions="be bad"), model, Sum())
        assert [asked.instructions for asked in model.asked] == ["be good", "be bad"]


async def test_a_sandbox_that_ends_is_raised_as_it_is_and_stops_the_other_calls() -> None:
    tools = Sum()
    with pytest.raises(Gone, match="has ended"):
        await play([calls("wait", "vanish")], tools)
    assert tools.cancelled


async def test_a_model_that_fails_is_raised_as_it_is() -> None:
    with pytest.raises(ModelFailure) as raised:
        await play([calls("add")], Sum())
    assert raised.value.rollout_kind is ErrorKind.MODEL_REFUSED_REQUEST


async def test_a_single_turn_asks_once_and_runs_nothing() -> None:
    tools, model = Sum(), Fixed(answered(calls("add")))
    response = await SingleTurn().run(task(), model, tools)
    assert [call.name for call in response.function_calls] == ["add"] and tools.calls == []
    assert model.asked[0].tools == tools.definitions
    await SingleTurn().run(task(tools=[ADD]), model, tools)
    assert model.asked[1].tools == [ADD]
