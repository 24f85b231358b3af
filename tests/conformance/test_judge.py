"""A verifier's judge: asked from a sandbox of every provider, answered by a model over real HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from gymbox.embedded import EmbeddedController
from gymbox.environment import Environment
from gymbox.errors import ErrorKind, Forbidden, Problem, RolloutError, Stage
from gymbox.http import HttpClient
from gymbox.judge import Judge
from gymbox.models.openai import OpenAIModel
from gymbox.sandbox_client import SandboxClient
from gymbox_sandbox.responses import Response
from gymbox_sandbox.tasks import Verdict

from tests.conformance.conftest import controller_of

TOKEN, KEY = "gbx_admin_judge", "sk-the-judges-own-key"
ASKING = '''
from gymbox_sandbox import ResourcesServer, Response, Task, tool

SCHEMA = {"type": "object", "properties": {"correct": {"type": "boolean"}}, "required": ["correct"]}


class Asking(ResourcesServer):
    """Asks its judge what the row says."""

    @tool
    async def ask_now(self) -> str:
        """Ask the judge before verify."""
        return await self.judge.ask("Is it right?")

    async def verify(self, task: Task, response: Response) -> float:
        told = task.verifier_metadata
        try:
            for turn in range(told.get("times", 1)):
                question = f"{turn}: {told['question']}" if turn else told["question"]
                found = await self.judge.ask(
                    question, schema=SCHEMA, votes=told.get("votes", 1), on="correct"
                )
        except Exception:
            if not told.get("catches"):
                raise
            return 0.0
        return float(found["correct"])
'''
Answer = Callable[[dict[str, Any]], Any]


class Bench:
    """A Responses API on loopback that says what `answer` makes of a request: a text, a status, or None for never."""

    def __init__(self) -> None:
        self.answer: Answer = lambda body: '{"correct": true}'
        self.bodies: list[dict[str, Any]] = []
        self.keys: set[str] = set()
        self.url = ""
        self.asked, self.hung_up = asyncio.Event(), asyncio.Event()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        self.bodies.append(await request.json())
        self.keys.add(request.headers["Authorization"])
        self.asked.set()
        found = self.answer(self.bodies[-1])
        if found is None:
            try:
                await asyncio.sleep(3600)
            except asyncio.CancelledError:
                self.hung_up.set()
                raise
        if isinstance(found, int):
            return web.json_response({"error": {"message": "no", "code": "no"}}, status=found)
        part = {"type": "output_text", "text": found, "annotations": []}
        message = {"type": "message", "id": "m", "role": "assistant", "status": "completed", "content": [part]}
        usage = {"input_tokens": 30, "output_tokens": 5, "total_tokens": 35}
        return web.json_response({"id": "r", "object": "response", "output": [message], "usage": usage})


@pytest.fixture
async def bench() -> AsyncIterator[Bench]:
    found = Bench()
    app = web.Application()
    app.router.add_post("/v1/responses", found.handle)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    yield found
    await runner.cleanup()


@pytest.fixture
def judge(bench: Bench, http: HttpClient) -> Judge:
    fields = {"name": "grader", "base_url": bench.url, "api_key": KEY, "pause": 0.01}
    return Judge(OpenAIModel.model_validate(fields), http)


@pytest.fixture
async def judged(provider: Any, http: HttpClient, judge: Judge, tmp_path: Path) -> AsyncIterator[EmbeddedController]:
    async with controller_of(provider, http, tmp_path, judge) as controller:
        yield controller


@pytest.fixture
def asking(write_environment: Callable[..., Environment]) -> Callable[..., Environment]:
    """An environment that asks, with these fields of its manifest."""

    def write(name: str = "asking", **manifest: Any) -> Environment:
        return write_environment(name, ASKING, **{"judge": True, **manifest})

    return write


async def verdict(controller: EmbeddedController, environment: Environment, **told: Any) -> Verdict:
    async with controller.sandbox(environment) as sandbox:
        return await verified(sandbox, **told)


async def verified(sandbox: SandboxClient, **told: Any) -> Verdict:
    await sandbox.reset({})
    return await sandbox.verify({"verifier_metadata": {"question": "Is it right?", **told}}, Response())


async def failure(work: Awaitable[Any]) -> str:
    """The text of the failure with which `work` ends, which is the judge's."""
    with pytest.raises(Problem) as raised:
        await work
    error = RolloutError.at(Stage.VERIFY, raised.value)
    assert error.kind is ErrorKind.JUDGE_FAILED and error.retryable
    return error.detail


async def test_verify_asks_a_model_that_the_sandbox_cannot_reach(
    judged: EmbeddedController, bench: Bench, asking: Callable[..., Environment]
) -> None:
    found = await verdict(judged, asking(), votes=3)
    assert found.reward == 1.0
    assert found.metrics == {"judge_calls": 3, "judge_tokens": 105, "judge_agreement": 1.0}
    assert len(bench.bodies) == 3 and bench.keys == {f"Bearer {KEY}"}
    assert bench.bodies[0]["input"] == "Is it right?" and bench.bodies[0]["model"] == "grader"


async def test_to_verify_again_is_to_get_the_same_without_asking_again(
    judged: EmbeddedController, bench: Bench, asking: Callable[..., Environment]
) -> None:
    answers = iter(['{"correct": false}', '{"correct": true}'])
    bench.answer = lambda body: next(answers)
    first = await verdict(judged, asking())
    again = await verdict(judged, asking())
    assert (again.reward, again.metrics) == (0.0, first.metrics)
    assert len(bench.bodies) == 1
    assert (await verdict(judged, asking(), question="Another?")).reward == 1.0


async def test_a_garbled_answer_is_asked_for_again_and_never_a_score(
    judged: EmbeddedController, bench: Bench, asking: Callable[..., Environment]
) -> None:
    answers = iter(["I think so!", '{"correct": "yes"}', '{"correct": true}'])
    bench.answer = lambda body: next(answers)
    assert (await verdict(judged, asking())).reward == 1.0
    bench.answer = lambda body: "I think so!"
    assert "in 3 tries" in await failure(verdict(judged, asking(), question="Another?"))


async def test_no_majority_is_never_a_score(
    judged: EmbeddedController, bench: Bench, asking: Callable[..., Environment]
) -> None:
    answers = iter(['{"correct": false}', '{"correct": true}'])
    bench.answer = lambda body: next(answers)
    assert "1 of 2 votes" in await failure(verdict(judged, asking(), votes=2))


async def test_what_fails_is_never_a_score_even_where_verify_catches_it(
    judged: EmbeddedController, bench: Bench, asking: Callable[..., Environment]
) -> None:
    bench.answer = lambda body: 401
    assert "api_key" in await failure(verdict(judged, asking()))
    assert "api_key" in await failure(verdict(judged, asking(), question="Another?", catches=True))
    answers = iter(['{"correct": false}', '{"correct": true}'])
    bench.answer = lambda body: next(answers)
    assert "majority" in await failure(verdict(judged, asking(), votes=2, catches=True))


async def test_a_judge_that_never_answers_ends_at_its_deadline(
    judged: EmbeddedController, bench: Bench, asking: Callable[..., Environment]
) -> None:
    bench.answer = lambda body: None
    patient = asking("impatient", judge={"timeout": 0.5})
    assert "did not answer within 0.5 s" in await failure(verdict(judged, patient))
    async with asyncio.timeout(30):
        await bench.hung_up.wait()


async def test_who_gives_verify_up_hangs_up_on_the_judge(
    judged: EmbeddedController, bench: Bench, asking: Callable[..., Environment]
) -> None:
    bench.answer = lambda body: None
    scoring = asyncio.create_task(verdict(judged, asking()))
    async with asyncio.timeout(60):
        await bench.asked.wait()
        scoring.cancel()
        await asyncio.wait({scoring})
        await bench.hung_up.wait()
    assert scoring.cancelled()


async def test_each_verify_has_limits(
    judged: EmbeddedController, bench: Bench, asking: Callable[..., Environment]
) -> None:
    few = asking("few", judge={"calls": 2, "tokens": 60, "kilobytes": 2})
    assert "judge.calls" in await failure(verdict(judged, few, votes=3))
    assert "judge.kilobytes" in await failure(verdict(judged, few, question="x" * 3000))
    assert len(bench.bodies) <= 2
    thrifty = asking("thrifty", judge={"tokens": 30})
    assert (await verdict(judged, thrifty, question="Once?")).reward == 1.0
    assert "judge.tokens" in await failure(verdict(judged, thrifty, question="Twice?", times=2))


@pytest.mark.parametrize(
    ("question", "fault"),
    [
        ({"input": "?", "tools": [{"type": "web_search"}]}, "tools"),
        ({"input": "?", "model": "another", "stream": True}, "model, stream"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "item_reference"),
        ({"input": []}, "no input"),
        ({"input": 7}, "wrong"),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/?leak"}]}], "input_image"),
    ],
)
async def test_a_question_is_text_and_nothing_that_a_provider_would_fetch_or_run(
    judged: EmbeddedController, bench: Bench, asking: Callable[..., Environment], question: Any, fault: str
) -> None:
    assert fault in await failure(verdict(judged, asking(), question=question))
    assert bench.bodies == []


async def test_tools_and_the_agents_commands_do_not_reach_the_judge(
    judged: EmbeddedController, bench: Bench, asking: Callable[..., Environment], http: HttpClient
) -> None:
    environment = asking()
    async with judged.sandbox(environment) as sandbox:
        await sandbox.reset({})
        refused = await sandbox.tools.call("ask_now", {})
        assert refused.is_error and "for verify alone" in refused.output
        directory = judged.sandboxes.get(sandbox.id).container.server()[1]
        assert directory is not None
        probe = "import socket; s = socket.socket(socket.AF_UNIX); s.connect('/run/gymbox/server.sock')"
        tried = await sandbox.exec(["python3", "-c", probe])
        assert tried.exit_code not in (0, None), tried
        tokens = judged.sandboxes.tokens.of(sandbox.id)
        base = f"{judged.proxy_url}/sandboxes/{sandbox.id}"
        for path in ("/verify", "/verify/answers"):
            bearer = {"Authorization": f"Bearer {tokens.tools}", "X-Gymbox-Judge": "asks"}
            answer = await http.request("POST", base + path, json={"answers": []}, headers=bearer)
            with pytest.raises(Forbidden):
                answer.raise_for_status()
        control = {"Authorization": f"Bearer {tokens.control}"}
        early = await http.request("POST", base + "/verify/answers", json={"answers": []}, headers=control)
        assert early.status == 409
    assert bench.bodies == []


async def test_without_a_judge_there_is_no_score(
    provider: Any, http: HttpClient, tmp_path: Path, asking: Callable[..., Environment]
) -> None:
    async with controller_of(provider, http, tmp_path, None) as controller:
        assert "judge=" in await failure(verdict(controller, asking()))


async def test_an_environment_that_does_not_say_so_has_none(
    judged: EmbeddedController, asking: Callable[..., Environment]
) -> None:
    assert "judge: true" in await failure(verdict(judged, asking("unsaid", judge=False)))


async def test_a_fresh_verify_asks_too(
    judged: EmbeddedController, bench: Bench, asking: Callable[..., Environment]
) -> None:
    assert (await verdict(judged, asking("asking-fresh", verify="fresh"))).reward == 1.0
    assert len(bench.bodies) == 1


async def test_tasks_that_share_a_sandbox_ask_each_for_themselves(
    judged: EmbeddedController, bench: Bench, asking: Callable[..., Environment]
) -> None:
    bench.answer = lambda body: json.dumps({"correct": "right" in body["input"]})
    environment = asking("asking-together", sessions=4)
    questions = ["right one", "wrong", "right two", "wrong, too"]
    found = await asyncio.gather(*(verdict(judged, environment, question=each) for each in questions))
    assert [each.reward for each in found] == [1.0, 0.0, 1.0, 0.0]


async def test_a_verify_that_is_no_coroutine_cannot_ask(
    judged: EmbeddedController, write_environment: Callable[..., Environment]
) -> None:
    server = (
        ASKING[: ASKING.index("    async def verify")]
        + """
    def verify(self, task: Task, response: Response) -> float:
        import asyncio

        return float(asyncio.run(self.judge.ask("Is it right?")) == "yes")
"""
    )
    environment = write_environment("asking-sync", server, judge=True)
    with pytest.raises(Problem, match="verify must be async"):
        await verdict(judged, environment)


async def test_who_calls_verify_over_rest_may_bring_the_answers(
    judged: EmbeddedController, asking: Callable[..., Environment], http: HttpClient
) -> None:
    environment = asking("asking-rest", timeouts={"verify": 5})
    told = {"task": {"verifier_metadata": {"question": "Is it right?"}}, "response": {"output": []}}

    async def call(sandbox: SandboxClient, path: str, body: Any, **headers: str) -> Any:
        control = judged.sandboxes.tokens.of(sandbox.id).control
        url = f"{judged.proxy_url}/sandboxes/{sandbox.id}{path}"
        bearer = {"Authorization": f"Bearer {control}", **headers}
        return await http.request("POST", url, json=body, headers=bearer, retry=False)

    asks = {"X-Gymbox-Judge": "asks"}
    async with judged.sandbox(environment) as sandbox:
        await sandbox.reset({})
        asked = await call(sandbox, "/verify", told, **asks)
        assert asked.status == 202
        [question] = asked.json()["questions"]
        assert question["params"]["input"] == "Is it right?"
        assert (await call(sandbox, "/verify", told, **asks)).json() == asked.json()  # the answer may have been lost
        answer = {"number": question["number"], "text": "", "value": {"correct": True}}
        scored = await call(sandbox, "/verify/answers", {"answers": [answer]})
        assert (scored.status, scored.json()["reward"]) == (200, 1.0)
        assert (await call(sandbox, "/verify/answers", {"answers": [answer]})).json() == scored.json()
    async with judged.sandbox(environment) as sandbox:
        await sandbox.reset({})
        assert (await call(sandbox, "/verify", told)).json()["rollout_kind"] == "judge_failed"
    async with judged.sandbox(environment) as sandbox:
        await sandbox.reset({})
        assert (await call(sandbox, "/verify", told, **asks)).status == 202
        never = await call(sandbox, "/verify", told)  # waits for answers that do not come
        assert never.status == 503 and "waited for its judge" in never.json()["detail"]
