"""A run whose model calls are recorded, run again without its model."""

from __future__ import annotations

import base64
import json
from typing import Any

from gymbox.cli.show import app
from gymbox.errors import ConfigError
from gymbox.models.cassettes import recorded_calls
from typer.testing import CliRunner

RUN = ("environment=counter", "provider=process", "runner.limit=4")
FOREIGN = '''
import openai
from gymbox.agents import Agent
from gymbox_sandbox.responses import Response


class Foreign(Agent):
    """Knows nothing of gymbox's models but an address and a key."""

    async def run(self, task, model, tools):
        endpoint = await model.endpoint()
        messages = [item.dump() for item in task.responses_create_params.items]
        messages = [{"role": each["role"], "content": each["content"]} for each in messages]
        definitions = [
            {"type": "function", "function": {name: each[name] for name in ("name", "description", "parameters")}}
            for each in tools.definitions
        ]
        async with openai.AsyncOpenAI(base_url=endpoint.base_url, api_key=endpoint.key) as api:
            while True:
                answer = await api.chat.completions.create(
                    model=endpoint.model, messages=messages, tools=definitions
                )
                message = answer.choices[0].message
                messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
                if not message.tool_calls:
                    break
                for call in message.tool_calls:
                    result = await tools.call(call.function.name, __import__("json").loads(call.function.arguments))
                    messages.append({"role": "tool", "tool_call_id": call.id, "content": result.output})
        said = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": message.content}]}
        return Response.model_validate({"output": [said]})
'''

LEAKY = '''
import base64
from gymbox.models import Call, Model
from gymbox_sandbox.responses import Response
from pydantic import SecretStr


class Leaky(Model):
    """Says its own key."""

    name: str = "leaky"
    key: SecretStr

    async def responses(self, params, call):
        key = self.key.get_secret_value()
        params.input[0].content = f"so it was asked with {key}"
        encoded = base64.b64encode(key.encode()).decode()
        return Response.model_validate({"output": [{"role": "assistant", "content": f"{key} is {encoded}"}]})
'''


def told(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """What must be the same again, by task."""
    return {line["task_id"]: (line["reward"], line["error"], line["response"]["output"]) for line in lines}


async def test_a_run_again_from_its_cassette_has_the_same_rewards_and_answers(gymbox: Any) -> None:
    first = await gymbox.run(*RUN, "model=scripted", "runner.capture=on", "runner.output=one")
    assert first.code == 0, first.err
    again = await gymbox.run(*RUN, "model=replay", "model.cassette=one", "runner.output=two")
    assert again.code == 0, again.err
    assert told(gymbox.lines("one")) == told(gymbox.lines("two")) and len(gymbox.lines("two")) == 4
    line = gymbox.lines("one")[0]
    assert line["calls"]["count"] == int(line["response"]["metadata"]["steps"]) and line["calls"]["missing"] == 0
    assert line["mask_sample"] is False and "_ng_token_capture" not in line and "calls" not in gymbox.lines("two")[0]
    calls = list(recorded_calls(gymbox.folder / "one"))
    assert {call.dialect for call in calls} == {"responses"} and len({call.rollout for call in calls}) == 4


async def test_a_request_that_was_not_recorded_is_refused_and_the_nearest_named(gymbox: Any) -> None:
    assert (await gymbox.run(*RUN, "model=scripted", "runner.capture=on", "runner.output=one")).code == 0
    replay = ("model=replay", "model.cassette=one", "runner.limit=1")
    asked = await gymbox.run(*RUN, *replay, "agent.instructions=Be brief.", "runner.output=two")
    assert asked.code == 1
    error = gymbox.lines("two")[0]["error"]
    assert error["kind"] == "model_refused_request" and error["stage"] == "agent"
    assert 'request.instructions is "Be brief.", recorded was null' in error["detail"]
    # told to go by the order alone, it answers all the same
    order = ("model.match=order", "agent.instructions=Be brief.", "runner.output=three")
    assert (await gymbox.run(*RUN, *replay, *order)).code == 0
    missing = await gymbox.run(*RUN, "model=replay", "model.cassette=nowhere", "runner.output=four")
    assert missing.code == 2 and "nowhere holds no recorded model calls" in missing.err


async def test_sampled_records_a_part_and_off_nothing(gymbox: Any) -> None:
    sampled = ("runner.capture=sampled", "runner.capture_rate=0.5")
    assert (await gymbox.run(*RUN, "model=scripted", *sampled, "runner.output=one")).code == 0
    assert (await gymbox.run(*RUN, "model=scripted", *sampled, "runner.output=two")).code == 0
    chosen = [sorted(line["task_id"] for line in gymbox.lines(output) if "calls" in line) for output in ("one", "two")]
    assert chosen[0] == chosen[1] and len(chosen[0]) < 4
    assert (await gymbox.run(*RUN, "model=scripted", "runner.capture=off", "runner.output=three")).code == 0
    assert not (gymbox.folder / "three" / "calls").exists()


async def test_the_calls_of_an_agent_that_brings_its_own_client_are_recorded_and_replayed(gymbox: Any) -> None:
    (gymbox.folder / "foreign.py").write_text(FOREIGN)
    (gymbox.folder / "agent").mkdir()
    (gymbox.folder / "agent" / "foreign.yaml").write_text("_target_: foreign.Foreign\n")
    agent = ("agent=foreign", "--config-dir=.")
    first = await gymbox.run(*RUN, *agent, "model=scripted", "runner.capture=on", "runner.output=one")
    assert first.code == 0, first.err
    calls = list(recorded_calls(gymbox.folder / "one"))
    assert {call.dialect for call in calls} == {"chat"}
    assert {call.rollout for call in calls} == {line["sandbox"] for line in gymbox.lines("one")}
    again = await gymbox.run(*RUN, *agent, "model=replay", "model.cassette=one", "runner.output=two")
    assert again.code == 0, again.err
    assert told(gymbox.lines("one")) == told(gymbox.lines("two"))


async def test_no_secret_of_the_run_is_in_its_folder(gymbox: Any) -> None:
    secret = "a-key-that-is-secret"
    gymbox.variables["SECRET"] = secret
    (gymbox.folder / "leaky.py").write_text(LEAKY)
    (gymbox.folder / "model").mkdir()
    (gymbox.folder / "model" / "leaky.yaml").write_text("_target_: leaky.Leaky\nkey: ${oc.env:SECRET}\n")
    settings = ("agent=single_turn", "runner.limit=1", "runner.capture=on", "runner.output=one")
    await gymbox.run(*RUN, *settings, "--config-dir=.", "model=leaky")
    [call] = recorded_calls(gymbox.folder / "one")
    assert "[redacted " in json.dumps(call.response) and "[redacted " in json.dumps(call.request)
    calls = gymbox.folder / "one" / "calls"
    assert all(secret not in file.read_text() for file in calls.iterdir())
    assert all(base64.b64encode(secret.encode()).decode() not in file.read_text() for file in calls.iterdir())


async def test_the_calls_of_a_rollout_are_shown(gymbox: Any) -> None:
    one = ("model=scripted", "runner.limit=1")
    assert (await gymbox.run(*RUN, *one, "runner.capture=on", "runner.output=one")).code == 0
    line = gymbox.lines("one")[0]
    shown = CliRunner().invoke(app, [str(gymbox.folder / "one"), "--calls", line["rollout_id"]])
    assert shown.exit_code == 0 and f"call {line['calls']['count'] - 1} " in shown.output
    assert "responses, " in shown.output and "main branch" in shown.output
    [first, *_] = recorded_calls(gymbox.folder / "one")
    limited = {"detail": "too many", "rollout_kind": "model_rate_limited"}
    more = {"call": 50, "cost": 0.25, "tries": [{}, {}], "error": limited, "cancelled": True, "stream": True}
    with (gymbox.folder / "one" / "calls" / "0002.jsonl").open("w") as file:
        file.write(first.model_copy(update=more).model_dump_json() + "\n")
        again = first.model_copy(update={"call": 51})
        file.write(again.model_dump_json() + "\n")
    shown = CliRunner().invoke(app, [str(gymbox.folder / "one"), "--calls"])
    assert "responses (streamed)" in shown.output and "cost 0.25, 2 tries, cancelled" in shown.output
    assert "too many" in shown.output
    assert (await gymbox.run(*RUN, *one, "runner.output=two")).code == 0
    without = CliRunner().invoke(app, [str(gymbox.folder / "two"), "--calls"])
    assert isinstance(without.exception, ConfigError) and "runner.capture=on" in str(without.exception)
