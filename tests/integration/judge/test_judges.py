"""Judges as runs have them: a local model, the one behind a controller's proxy, or none and a way on."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gymbox.client import ControllerClient
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog, Environment, JudgeLimits
from gymbox.errors import ConfigError, JudgeFailed
from gymbox.http import HttpClient
from gymbox.judge import Judge, judge_of_proxy
from gymbox.models.local import LocalModel, bundled_model
from gymbox.models.scripted import ScriptedModel
from gymbox.models.server import ModelServer
from gymbox.providers.process import ProcessProvider
from gymbox.proxy.settings import ProxySettings
from gymbox.runs.reach import check_controller
from gymbox.serving import Guard, Listener
from gymbox_sandbox.responses import Response

UPSTREAM = "gbx_key_upstream"
VERDICT = [{"type": "message", "content": json.dumps({"reason": "the same", "correct": True})}]


@pytest.fixture
def short_answers(catalog: Catalog) -> Environment:
    return catalog["short_answers"]


@pytest.fixture
def task(short_answers: Environment) -> dict[str, Any]:
    with short_answers.dataset.open() as lines:
        return dict(json.loads(next(lines)))


def answered(text: str) -> Response:
    return Response.model_validate({"output": [{"type": "message", "role": "assistant", "content": text}]})


@pytest.fixture
async def proxied(
    state_folder: Path, token: str, catalog: Catalog, http: HttpClient
) -> AsyncIterator[EmbeddedController]:
    """A controller whose proxy serves a model that finds everything correct, as a judge; it has none of its own."""
    app = ModelServer(ScriptedModel(replies=[VERDICT]), http).setup_webserver()
    async with Listener(app, Guard(token=UPSTREAM), host="127.0.0.1", port=0) as listener:
        upstream = {"url": listener.url, "token": UPSTREAM}
        proxy = ProxySettings.model_validate({"models": {"judge": upstream, "wrong": {"url": "http://127.0.0.1:9"}}})
        async with EmbeddedController(
            ProcessProvider(), catalog, state_folder, token, http, proxy=proxy
        ) as controller:
            yield controller


async def test_with_a_controller_its_proxys_judge_is_asked(
    proxied: EmbeddedController, token: str, http: HttpClient, short_answers: Environment, task: dict[str, Any]
) -> None:
    client = ControllerClient(proxied.url, token, http)
    for words in ("an hour and a bit", "some other words"):
        async with client.sandbox(short_answers) as sandbox:
            await sandbox.reset(short_answers.public(task))
            found = await sandbox.verify(short_answers.for_verify(task), answered(words))
            assert (found.reward, found.metrics["judge_calls"]) == (1.0, 3)


async def test_a_judge_of_ones_own_comes_first(
    proxied: EmbeddedController, token: str, http: HttpClient, short_answers: Environment, task: dict[str, Any]
) -> None:
    client = ControllerClient(proxied.url, token, http, judge=Judge(ScriptedModel(), http))
    async with client.sandbox(short_answers) as sandbox:
        await sandbox.reset(short_answers.public(task))
        wrong = task["gold_judgements"][1]["contains"].split("\n")[1]
        assert (await sandbox.verify(short_answers.for_verify(task), answered(wrong))).reward == 0.0


async def test_a_proxy_without_a_judge_says_how_to_give_it_one(
    controller: EmbeddedController, token: str, http: HttpClient, short_answers: Environment
) -> None:
    client = ControllerClient(controller.url, token, http)
    with pytest.raises(ConfigError, match="short_answers needs a judge: .* --model judge=URL"):
        await check_controller(client, [short_answers])


async def test_a_judge_that_names_no_model_is_none(proxied: EmbeddedController, token: str, http: HttpClient) -> None:
    from aiohttp import web

    async def models(_: web.Request) -> web.Response:
        return web.json_response({"data": []})

    app = web.Application()
    app.router.add_get("/models/judge/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    with pytest.raises(JudgeFailed, match="names no model"):
        await judge_of_proxy(f"http://127.0.0.1:{runner.addresses[0][1]}", token, http)
    await runner.cleanup()


@pytest.mark.local_model
async def test_a_local_model_judges_in_the_form_that_is_asked_for(http: HttpClient) -> None:
    pytest.importorskip("xllamacpp")
    try:
        bundled_model()
    except ConfigError as error:
        pytest.skip(str(error))
    schema = {
        "type": "object",
        "properties": {"winner": {"enum": ["A", "B", "tie"]}, "points": {"type": "integer", "enum": [1, 2, 3]}},
        "required": ["winner", "points"],
        "additionalProperties": False,
    }
    params = {
        "instructions": "You compare texts.",
        "input": "Text A: The sky is blue.\nText B: Sky blue is the.\nWhich is better English?",
        "text": {"format": {"type": "json_schema", "name": "judgement", "schema": schema}},
    }
    body = json.dumps({"questions": [{"number": 1, "sample": 0, "params": params}]}).encode()
    async with Judge(LocalModel(temperature=0, context=1024), http) as judge:
        [found] = await judge.hearing("rollout", JudgeLimits(timeout=200)).answers(body)
        assert found["value"]["winner"] in ("A", "B", "tie") and found["value"]["points"] in (1, 2, 3)
        assert found["tokens"] > 0
        assert await judge.hearing("another", JudgeLimits()).answers(body) == [found]
