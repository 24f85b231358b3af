"""What verify asks a judge leaves in its answer; what comes back goes on with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from gymbox_sandbox import JudgeFailed, ResourcesServer, Response, Task, Verdict, tool
from gymbox_sandbox.app import build
from gymbox_sandbox.options import Options
from gymbox_sandbox.wire import JUDGE_HEADER, ExecRequest, ExecResult
from starlette.testclient import TestClient

ASKS = {JUDGE_HEADER: "asks"}


class Idle:
    """An agent without processes."""

    async def run(self, request: ExecRequest) -> ExecResult:
        raise NotImplementedError

    async def kill_all(self) -> None:
        pass


class Asking(ResourcesServer):
    @tool
    async def ask_now(self) -> str:
        """Ask too early."""
        return str(await self.judge.ask("early?"))

    async def verify(self, task: Task, response: Response) -> Any:
        match task.verifier_metadata.get("how"):
            case "nothing":
                return 1.0
            case "catches":
                try:
                    await self.judge.ask("right?")
                except JudgeFailed:
                    return 0.0
            case "stumbles":
                try:
                    await self.judge.ask("right?")
                except JudgeFailed as error:
                    raise KeyError("after that") from error
            case "bug":
                await self.judge.ask("right?")
                raise KeyError("of its own")
        said = await self.judge.ask("right?", votes=2)
        return Verdict(reward=float(said == "yes"), metrics={"judge_calls": 7, "own": 1})


@pytest.fixture
def client() -> Iterator[Callable[..., TestClient]]:
    """A server that was reset, with these options."""
    opened: list[TestClient] = []

    def open(**options: Any) -> TestClient:
        app = build(Asking, Options("asking", "server.py", **options), Idle())
        client = TestClient(app, raise_server_exceptions=False).__enter__()
        opened.append(client)
        client.post("/reset", json={"task": {}})
        return client

    yield open
    for each in opened:
        each.__exit__(None, None, None)


def body(**told: Any) -> dict[str, Any]:
    return {"task": {"verifier_metadata": told}, "response": {}}


def answers(asked: Any, *texts: str) -> dict[str, Any]:
    questions = asked.json()["questions"]
    pairs = zip(questions, texts, strict=True)
    return {"answers": [{"number": each["number"], "text": text, "tokens": 5} for each, text in pairs]}


def test_questions_come_as_202_until_there_is_a_verdict(client: Callable[..., TestClient]) -> None:
    server = client()
    asked = server.post("/verify", json=body(), headers=ASKS)
    assert asked.status_code == 202
    assert asked.json() == {
        "questions": [
            {"number": 1, "params": {"input": "right?"}, "sample": 0},
            {"number": 2, "params": {"input": "right?"}, "sample": 1},
        ]
    }
    assert server.post("/verify", json=body(), headers=ASKS).json() == asked.json()
    scored = server.post("/verify/answers", json=answers(asked, "yes", "yes"))
    assert scored.status_code == 200
    # what the author says of the same name counts
    assert scored.json()["metrics"] == {"judge_calls": 7, "judge_tokens": 10, "judge_agreement": 1.0, "own": 1}
    assert server.post("/verify", json=body(), headers=ASKS).json() == scored.json()
    assert server.post("/verify", json=body()).json() == scored.json()


def test_who_asks_nothing_is_scored_as_ever(client: Callable[..., TestClient]) -> None:
    scored = client().post("/verify", json=body(how="nothing"), headers=ASKS)
    assert (scored.status_code, scored.json()["metrics"]) == (200, {})


@pytest.mark.parametrize("how", ["asks", "catches", "stumbles"])
def test_a_judge_that_failed_is_no_score_whatever_verify_makes_of_it(
    client: Callable[..., TestClient], how: str
) -> None:
    server = client()
    asked = server.post("/verify", json=body(how=how), headers=ASKS)
    failed = [{"number": each["number"], "failed": "no such model"} for each in asked.json()["questions"]]
    problem = server.post("/verify/answers", json={"answers": failed}).json()
    assert (problem["status"], problem["rollout_kind"], problem["detail"]) == (503, "judge_failed", "no such model")


def test_a_bug_beside_the_judge_is_verifys(client: Callable[..., TestClient]) -> None:
    server = client()
    asked = server.post("/verify", json=body(how="bug"), headers=ASKS)
    problem = server.post("/verify/answers", json=answers(asked, "yes")).json()
    assert problem["rollout_kind"] == "verify_failed" and "of its own" in problem["detail"]


def test_a_caller_that_cannot_ask_is_told_so(client: Callable[..., TestClient]) -> None:
    problem = client().post("/verify", json=body()).json()
    assert problem["rollout_kind"] == "judge_failed" and "judge: true" in problem["detail"]


def test_an_answer_that_never_comes_is_the_judges_failure(client: Callable[..., TestClient]) -> None:
    server = client(verify_timeout=3)
    assert server.post("/verify", json=body(), headers=ASKS).status_code == 202
    problem = server.post("/verify", json=body()).json()
    assert problem["rollout_kind"] == "judge_failed" and "waited for its judge" in problem["detail"]


def test_before_verify_there_is_neither_a_judge_nor_anything_to_answer(client: Callable[..., TestClient]) -> None:
    server = client()
    told = server.post("/tools/ask_now", json={}).json()
    assert told["is_error"] and "for verify alone" in told["output"]
    assert server.post("/verify/answers", json={"answers": []}).status_code == 409
    server.post("/verify", json=body(), headers=ASKS)
    assert server.post("/verify/answers", json={"answers": 7}).status_code == 422
