"""Network policies through a whole controller: a harness inside reaches its model, and the REST API tells of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from gymbox.agents import Agent
from gymbox.client import ControllerClient
from gymbox.embedded import EmbeddedController
from gymbox.environment import Catalog, Environment
from gymbox.http import HttpClient
from gymbox.models.scripted import ScriptedModel
from gymbox.providers.docker import DockerProvider
from gymbox.proxy import ProxySettings
from gymbox.rollout import run_rollout
from gymbox_sandbox.lifecycle import CreateSandbox
from gymbox_sandbox.responses import Message, Response

TOKEN = "gbx_admin_docker-tests-only"
SERVER = '''
from gymbox_sandbox import ResourcesServer, tool

HARNESS = """
import json, os, sys, urllib.request
body = json.dumps({"model": "default", "input": sys.argv[1]}).encode()
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/responses", body, headers)
print(urllib.request.urlopen(request, timeout=20).read().decode())
"""

class Harnessed(ResourcesServer):
    """Runs a harness that asks its model."""

    async def reset(self, task):
        pass

    @tool
    async def ask(self, text: str) -> str:
        """Have the harness ask."""
        done = await self.exec(["python3", "-c", HARNESS, text])
        return done.stdout or done.stderr

    async def verify(self, task, response):
        return float("from the model" in response.output_text)
'''


class Asking(Agent):
    """Leaves everything to the harness inside."""

    async def run(self, task: Any, model: Any, tools: Any) -> Response:
        told = (await tools.call("ask", {"text": "hello"})).output
        return Response(output=[Message(role="assistant", content=[{"type": "output_text", "text": told}])])


@pytest.fixture
def harnessed(tmp_path: Path) -> Environment:
    folder = tmp_path / "environments" / "harnessed"
    folder.mkdir(parents=True)
    (folder / "server.py").write_text(SERVER)
    (folder / "environment.yaml").write_text("description: For a test.\nnetwork: models\n")
    return Environment.load(folder)


@pytest.fixture
async def model_server() -> AsyncIterator[str]:
    async def answer(request: web.Request) -> web.Response:
        return web.json_response({"path": request.path, "key": request.headers.get("Authorization")})

    app = web.Application()
    app.router.add_post("/{path:.*}", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.fixture
async def controller(
    engine: Any, harnessed: Environment, tmp_path: Path, model_server: str
) -> AsyncIterator[EmbeddedController]:
    provider = DockerProvider(build_folder=tmp_path / "builds")
    proxy = ProxySettings.model_validate({"models": {"small": {"url": model_server, "token": "provider-key"}}})
    async with HttpClient() as http:
        async with EmbeddedController(
            provider, Catalog([harnessed.folder.parent]), tmp_path / "state", TOKEN, http, proxy=proxy
        ) as embedded:
            yield embedded


async def test_a_harness_inside_reaches_its_rollouts_own_model(
    controller: EmbeddedController, harnessed: Environment
) -> None:
    model = ScriptedModel(replies=[[{"type": "message", "role": "assistant", "content": "from the model"}]])
    row = {"id": "one", "responses_create_params": {"input": "hello"}}
    async with HttpClient() as http:
        result = await run_rollout(row, harnessed, Asking(), model, controller, http, "rollout-1")
    assert result.error is None and result.reward == 1.0, result.response


SERVICES = """
description: For a test.
network: {allow: [example.org], models: true}
services:
  web:
    image: IMAGE
    command: [sh, -c, "echo hi > /srv/www/hello; exec python3 -m http.server 8000 -d /srv/www"]
    user: "10001"
    tmpfs: [/srv/www]
    health:
      test: [python3, -c, "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/', timeout=2)"]
      within: 30
"""


async def test_services_are_reached_beside_the_way_out_and_nothing_else_is(
    controller: EmbeddedController, harnessed: Environment, measured_image: str
) -> None:
    (harnessed.folder / "environment.yaml").write_text(SERVICES.replace("IMAGE", measured_image))
    environment = Environment.load(harnessed.folder)
    model = ScriptedModel(replies=[[{"type": "message", "role": "assistant", "content": "from the model"}]])
    row = {"id": "one", "responses_create_params": {"input": "hello"}}
    async with HttpClient() as http:
        result = await run_rollout(row, environment, Asking(), model, controller, http, "rollout-2")
        assert result.error is None and result.reward == 1.0, result.response
        async with controller.sandbox(environment) as box:

            async def python(code: str) -> str:
                done = await box.exec(["python3", "-c", f"import socket, urllib.request as r\n{code}"])
                return done.stdout + done.stderr

            assert await python("print(r.urlopen('http://web:8000/hello', timeout=20).read())") == "b'hi\\n'\n"
            assert "403" in await python("r.urlopen('http://other/', timeout=20)")
            assert "gaierror" in await python("socket.gethostbyname('other')")
            assert "unreachable" in await python("socket.create_connection(('192.0.2.1', 443), timeout=3)")


async def test_a_sandbox_without_rollout_reaches_the_proxys_models_and_the_api_tells_of_its_traffic(
    controller: EmbeddedController, harnessed: Environment
) -> None:
    async with HttpClient() as http, aiohttp.ClientSession() as session:
        client = ControllerClient(controller.url, TOKEN, http)
        view = await client.create(CreateSandbox(id="box", environment="harnessed"))
        assert view.network == "models" and view.tokens is not None
        headers = {"Authorization": f"Bearer {view.tokens.control}"}
        await session.post(f"{view.url}/reset", json={"task": {}}, headers=headers)
        async with session.post(f"{view.url}/tools/ask", json={"text": "hello"}, headers=headers) as answer:
            told = json.loads((await answer.json())["output"])
        assert told == {"path": "/v1/responses", "key": "Bearer provider-key"}
        fetch = {"command": "python3 -c \"import urllib.request as r; r.urlopen('http://127.0.0.1:3129/metrics')\""}
        async with session.post(f"{view.url}/exec", json=fetch, headers=headers) as answer:
            assert "404" in (await answer.json())["stderr"]
        for _ in range(100):
            if (traffic := await client.traffic("box")).refused:
                break
            await asyncio.sleep(0.05)
        assert traffic.let_through == 1 and traffic.refusals[0].target == "/metrics"
        await client.delete("box")
        assert (await client.traffic("box")).refused == 1  # also told of one that is no more
