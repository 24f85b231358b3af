"""The sandbox server's routes: reset, tools, verify, and the order they must come in."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from gymbox_sandbox import ResourcesServer, Response, Task, ToolError, Verdict, sessions, tool
from gymbox_sandbox.app import build
from gymbox_sandbox.options import Options
from gymbox_sandbox.problems import Invalid, Unavailable
from gymbox_sandbox.scoring import verdict_of
from gymbox_sandbox.wire import SESSION_HEADER, ExecRequest, ExecResult
from pydantic import ValidationError
from starlette.testclient import TestClient, WebSocketDenialResponse
from starlette.websockets import WebSocket, WebSocketDisconnect

if TYPE_CHECKING:
    from fastapi import FastAPI


class Idle:
    """An agent without processes, that counts how often it was asked to have none."""

    def __init__(self) -> None:
        self.killed = 0
        self.requests: list[ExecRequest] = []

    async def run(self, request: ExecRequest) -> ExecResult:
        self.requests.append(request)
        return ExecResult(exit_code=0, stdout="ran", duration=0)

    async def kill_all(self) -> None:
        self.killed += 1


class Counter(ResourcesServer):
    async def reset(self, task: Task) -> None:
        if task.id == "broken":
            raise RuntimeError("no such start")
        if task.id == "slow":
            await asyncio.sleep(60)
        if task.id == "unavailable":
            raise Unavailable("the author's own")
        self.count: int = getattr(task, "initial_count", 0)
        self.loop = asyncio.get_running_loop()
        self.started = asyncio.Event()
        self.may_end = threading.Event()
        self.scored = 0

    @tool
    async def increment(self, by: int) -> int:
        """Add `by`."""
        self.count += by
        return self.count

    @tool
    def increment_slowly(self, by: int) -> int:
        """Add `by`, in a thread."""
        count = self.count
        threading.Event().wait(0.001)
        self.count = count + by
        return self.count

    @tool
    async def hang(self) -> None:
        """Never return."""
        self.started.set()
        await asyncio.Event().wait()

    @tool
    def increment_when_told(self, by: int) -> None:
        """Add `by`, in a thread, once it may end."""
        self.loop.call_soon_threadsafe(self.started.set)
        self.may_end.wait(20)
        self.count += by

    @tool
    async def wait_started(self) -> None:
        """Return when `hang` has begun."""
        await self.started.wait()

    @tool
    async def fail(self, how: str) -> Any:
        """Fail in one of some ways."""
        match how:
            case "tool error":
                raise ToolError("not like that")
            case "bug":
                raise KeyError("oops")
            case "timeout":
                raise TimeoutError("of its own")
            case _:
                return object()

    @tool
    async def list_files(self) -> str:
        """Run a command."""
        result = await self.exec(["ls", "-l"], stdin="in", cwd="sub", env={"A": "b"}, timeout=3, output_limit=10)
        return result.stdout + (await self.exec(ExecRequest(command="true", timeout=1))).stdout

    async def verify(self, task: Task, response: Response) -> Any:
        self.scored += 1
        match task.verifier_metadata.get("how"):
            case "raise":
                raise RuntimeError("cannot score")
            case "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "unavailable":
                raise Unavailable("the author's own")
            case "nan":
                return float("nan")
            case "nan verdict":
                return Verdict(reward=float("nan"))
            case "text":
                return "1.0"
            case "slow":
                await asyncio.sleep(60)
            case "verdict":
                return Verdict(reward=0.5, metrics={"scored": self.scored}, reward_components={"a": 0.5})
        return self.count == task.verifier_metadata.get("expected", self.count)


class Sandbox:
    """A server under test, and its agent."""

    def __init__(self, client: TestClient, agent: Idle, made: list[Any]) -> None:
        self.client = client
        self.agent = agent
        self._made = made

    @property
    def instance(self) -> Any:
        """The instance that was made last."""
        return self._made[-1]

    def until_verify_begins(self) -> None:
        while self.post("/tools/unknown").status_code != 409:
            pass

    def post(self, path: str, body: Any = None, session: str = "") -> Any:
        return self.client.post(path, json={} if body is None else body, headers={SESSION_HEADER: session})

    def reset(self, session: str = "", **row: Any) -> Any:
        return self.post("/reset", {"task": row}, session)

    def verify(self, session: str = "", **metadata: Any) -> Any:
        return self.post("/verify", {"task": {"verifier_metadata": metadata}, "response": {}}, session)


@contextmanager
def serving(server: type[ResourcesServer] = Counter, **options: Any) -> Iterator[Sandbox]:
    agent = Idle()
    made: list[Any] = []

    class Watched(server):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            made.append(self)

    app = build(Watched, Options(name="counter", server="server.py", **options), agent)
    with TestClient(app, raise_server_exceptions=False) as client:
        yield Sandbox(client, agent, made)


@contextmanager
def meanwhile(call: Callable[[], Any]) -> Iterator[list[Any]]:
    """Make a call in a thread; its answer is in the list once the context is left."""
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(call()), daemon=True)
    thread.start()
    yield answers
    thread.join(20)


@pytest.fixture
def sandbox() -> Iterator[Sandbox]:
    with serving() as found:
        yield found


def test_health_names_the_environment_and_counts_sessions(sandbox: Sandbox) -> None:
    sandbox.reset()
    body = sandbox.client.get("/healthz").json()
    assert (body["status"], body["environment"], body["sessions"]) == ("ok", "counter", 1)


@pytest.mark.parametrize("path", ["/reset", "/seed_session"])
def test_reset_answers_the_tools(sandbox: Sandbox, path: str) -> None:
    answer = sandbox.post(path, {"task": {"id": "t"}})
    assert answer.status_code == 200
    assert "increment" in [found["name"] for found in answer.json()["tools"]]


def test_tools_are_listed_before_and_after_reset(sandbox: Sandbox) -> None:
    before = sandbox.client.get("/tools").json()
    sandbox.reset()
    assert sandbox.client.get("/tools").json() == before


def test_state_lives_from_reset_to_verify(sandbox: Sandbox) -> None:
    sandbox.reset(initial_count=3)
    assert sandbox.post("/tools/increment", {"by": 4}).json() == {"output": "7", "is_error": False}
    assert sandbox.verify(expected=7).json() == {"reward": 1.0, "metrics": {}, "reward_components": {}}


def test_a_repeated_reset_gets_the_same_answer_and_keeps_the_state(sandbox: Sandbox) -> None:
    first = sandbox.reset(initial_count=3)
    sandbox.post("/tools/increment", {"by": 1})
    assert sandbox.reset(initial_count=3).json() == first.json()
    assert sandbox.verify(expected=4).json()["reward"] == 1.0


def test_reset_for_another_task_is_a_conflict(sandbox: Sandbox) -> None:
    sandbox.reset(initial_count=3)
    assert sandbox.reset(initial_count=4).status_code == 409


def test_a_reset_that_raises_says_so_and_shows_where(sandbox: Sandbox) -> None:
    body = sandbox.reset(id="broken").json()
    assert (body["status"], body["rollout_kind"]) == (500, "reset_failed")
    assert body["detail"] == "reset raised RuntimeError: no such start"
    assert "in reset" in body["log"]


def test_a_problem_that_reset_or_verify_raises_is_the_environments(sandbox: Sandbox) -> None:
    body = sandbox.reset(id="unavailable").json()
    assert (body["status"], body["detail"], body["rollout_kind"]) == (503, "the author's own", "reset_failed")
    sandbox.reset()
    body = sandbox.verify(how="unavailable").json()
    assert (body["status"], body["detail"], body["rollout_kind"]) == (503, "the author's own", "verify_failed")


def test_a_reset_that_takes_too_long_is_a_timeout() -> None:
    with serving(reset_timeout=0.01) as sandbox:
        body = sandbox.reset(id="slow").json()
    assert (body["status"], body["detail"]) == (504, "reset did not finish within 0.01 s")


@pytest.mark.parametrize(
    "body", [{}, {"task": 3}, {"task": {}, "more": 1}, {"task": {"responses_create_params": {"input": 3}}}]
)
def test_a_wrong_reset_body_is_invalid(sandbox: Sandbox, body: Any) -> None:
    answer = sandbox.post("/reset", body)
    assert (answer.status_code, answer.headers["content-type"]) == (422, "application/problem+json")


@pytest.mark.parametrize(("path", "method"), [("/tools/increment", "POST"), ("/verify", "POST")])
def test_nothing_works_before_reset(sandbox: Sandbox, path: str, method: str) -> None:
    answer = sandbox.post(path, {"by": 1})
    assert (answer.status_code, "reset" in answer.json()["detail"]) == (409, True)


def test_nothing_works_after_a_reset_that_raised(sandbox: Sandbox) -> None:
    sandbox.reset(id="broken")
    assert sandbox.post("/tools/increment", {"by": 1}).status_code == 409
    assert sandbox.verify().status_code == 409


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("increment", {}, "- by is missing"),
        ("increment", [], "one JSON object"),
        ("decrement", {"by": 1}, "There is no tool 'decrement'"),
        ("fail", {"how": "tool error"}, "not like that"),
        ("fail", {"how": "bug"}, "fail failed: KeyError: 'oops'"),
        ("fail", {"how": "timeout"}, "fail failed: TimeoutError: of its own"),
        ("fail", {"how": "no json"}, "fail failed: PydanticSerializationError"),
    ],
)
def test_a_failing_tool_is_a_result_that_the_model_can_read(
    sandbox: Sandbox, name: str, arguments: Any, told: str
) -> None:
    sandbox.reset()
    answer = sandbox.post(f"/tools/{name}", arguments)
    assert (answer.status_code, answer.json()["is_error"]) == (200, True)
    assert told in answer.json()["output"]


@pytest.mark.parametrize("body", [b"{", b"\xff\xfe", b"1" * 5000])
def test_arguments_that_are_no_json_are_a_result_too(sandbox: Sandbox, body: bytes) -> None:
    sandbox.reset()
    answer = sandbox.client.post("/tools/increment", content=body).json()
    assert answer["is_error"]
    assert answer["output"].startswith(("The arguments of increment are not JSON", "Wrong arguments for increment"))


def test_no_body_means_no_arguments(sandbox: Sandbox) -> None:
    sandbox.reset()
    assert "by is missing" in sandbox.client.post("/tools/increment").json()["output"]


def test_a_tool_that_takes_too_long_is_a_result_too() -> None:
    with serving(tool_timeout=0.01) as sandbox:
        sandbox.reset()
        answer = sandbox.post("/tools/hang").json()
    assert answer == {"output": "hang did not finish within 0.01 s.", "is_error": True}


def test_sync_tools_never_overlap(sandbox: Sandbox) -> None:
    sandbox.reset()
    threads = [
        threading.Thread(target=sandbox.post, args=("/tools/increment_slowly", {"by": 1}), daemon=True)
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sandbox.verify(expected=8).json()["reward"] == 1.0


def test_tools_run_commands_as_the_agent(sandbox: Sandbox) -> None:
    sandbox.reset()
    assert sandbox.post("/tools/list_files").json()["output"] == "ranran"
    first = sandbox.agent.requests[0]
    assert first.model_dump(exclude_defaults=True) == {
        "command": ["ls", "-l"],
        "stdin": "aW4=",
        "cwd": "sub",
        "env": {"A": "b"},
        "timeout": 3,
        "output_limit": 10,
    }


@pytest.mark.parametrize(
    ("how", "verdict"),
    [
        ("verdict", {"reward": 0.5, "metrics": {"scored": 1.0}, "reward_components": {"a": 0.5}}),
        ("bool", {"reward": 1.0, "metrics": {}, "reward_components": {}}),
    ],
)
def test_a_second_verify_gets_the_stored_verdict(sandbox: Sandbox, how: str, verdict: dict[str, Any]) -> None:
    sandbox.reset()
    assert sandbox.verify(how=how).json() == verdict
    assert sandbox.verify(how="raise").json() == verdict
    assert sandbox.agent.killed == 1


@pytest.mark.parametrize(
    ("how", "kind"),
    [
        ("raise", "verify_failed"),
        ("full", "disk_full"),
        ("nan", "bad_verdict"),
        ("nan verdict", "bad_verdict"),
        ("text", "bad_verdict"),
    ],
)
def test_a_verify_without_a_number_is_never_a_reward(sandbox: Sandbox, how: str, kind: str) -> None:
    sandbox.reset()
    first = sandbox.verify(how=how)
    assert (first.status_code, first.json()["rollout_kind"]) == (500, kind)
    assert sandbox.verify(how="verdict").json() == first.json()


def test_a_verify_that_takes_too_long_is_a_timeout() -> None:
    with serving(verify_timeout=0.01) as sandbox:
        sandbox.reset()
        body = sandbox.verify(how="slow").json()
    assert (body["status"], body["rollout_kind"]) == (504, "timed_out")


def test_no_tool_can_be_called_once_verify_has_begun(sandbox: Sandbox) -> None:
    sandbox.reset()
    sandbox.verify()
    answer = sandbox.post("/tools/increment", {"by": 1})
    assert (answer.status_code, "verify has begun" in answer.json()["detail"]) == (409, True)


def test_verify_stops_tools_that_run(sandbox: Sandbox) -> None:
    sandbox.reset()
    with meanwhile(lambda: sandbox.post("/tools/hang")) as answers:
        sandbox.post("/tools/wait_started")
        assert sandbox.verify().status_code == 200
    assert answers[0].status_code == 409


def test_verify_waits_for_a_sync_tool_which_cannot_be_stopped(sandbox: Sandbox) -> None:
    sandbox.reset()
    with meanwhile(lambda: sandbox.post("/tools/increment_when_told", {"by": 1})) as answers:
        sandbox.post("/tools/wait_started")
        with meanwhile(lambda: sandbox.verify(expected=1)) as verdicts:
            sandbox.until_verify_begins()
            sandbox.instance.may_end.set()
    assert (answers[0].status_code, verdicts[0].json()["reward"]) == (409, 1.0)


def test_a_sync_tool_that_does_not_end_in_time_lets_nobody_verify_until_it_has() -> None:
    with serving(verify_timeout=0.01) as sandbox:
        sandbox.reset()
        with meanwhile(lambda: sandbox.post("/tools/increment_when_told", {"by": 1})):
            sandbox.post("/tools/wait_started")
            body = sandbox.verify().json()
            sandbox.instance.may_end.set()
    assert (body["status"], body["rollout_kind"]) == (504, "timed_out")
    assert body["detail"] == "ending the tools did not finish within 0.01 s"


def test_a_wrong_verify_body_closes_the_tools_and_lets_a_right_one_follow(sandbox: Sandbox) -> None:
    sandbox.reset(initial_count=1)
    assert sandbox.post("/verify", {"task": {}}).status_code == 422
    assert sandbox.post("/tools/increment", {"by": 1}).status_code == 409
    assert sandbox.verify(expected=1).json()["reward"] == 1.0


def test_a_verify_with_a_wrong_task_is_invalid(sandbox: Sandbox) -> None:
    sandbox.reset()
    body = sandbox.post("/verify", {"task": {"verifier_metadata": 3}, "response": {}}).json()
    assert (body["status"], body["rollout_kind"]) == (422, "invalid_task")


def test_sessions_have_an_instance_each() -> None:
    with serving(max_sessions=2) as sandbox:
        sandbox.reset("a", initial_count=1)
        sandbox.reset("b", initial_count=2)
        sandbox.post("/tools/increment", {"by": 10}, "a")
        told = sandbox.client.get("/sessions").json()
        assert told["sessions"] == ["a", "b"] and 0 <= told["resets"]["b"] <= told["resets"]["a"] < 60
        own = sandbox.client.get("/sessions", headers={SESSION_HEADER: "a"}).json()
        assert (own["sessions"], [*own["resets"]]) == (["a"], ["a"])  # who comes by the proxy learns of no other task
        other = sandbox.client.get("/sessions", headers={SESSION_HEADER: "c"})
        assert other.json() == {"sessions": [], "resets": {}}
        assert sandbox.verify("a", expected=11).json()["reward"] == 1.0
        assert sandbox.verify("b", expected=2).json()["reward"] == 1.0


def test_one_session_too_many_is_turned_away_until_another_ends() -> None:
    with serving(max_sessions=1) as sandbox:
        sandbox.reset("a")
        refused = sandbox.reset("b")
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "1")
        ended = sandbox.client.request("DELETE", "/sessions", json={"sessions": ["a", "none"]})
        assert ended.status_code == 204
        assert sandbox.reset("b").status_code == 200
        assert sandbox.client.get("/sessions").json()["sessions"] == ["b"]


def test_once_finished_no_tool_runs_nor_anything_of_the_agents_and_it_can_still_be_scored(sandbox: Sandbox) -> None:
    assert sandbox.post("/verify/prepare").status_code == 409  # there was no reset
    sandbox.reset(initial_count=1)
    for times in (1, 2):
        assert sandbox.post("/verify/prepare").status_code == 204
        assert sandbox.agent.killed == times
    assert sandbox.post("/tools/increment").status_code == 409
    assert sandbox.verify(expected=1).json()["reward"] == 1.0


def test_a_session_that_has_ended_is_not_brought_back_by_a_reset_that_comes_too_late(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with serving(max_sessions=2) as sandbox:
        sandbox.reset("a")
        sandbox.client.request("DELETE", "/sessions", json={"sessions": ["a", "never-reset"]})
        for name in ("a", "never-reset"):
            assert sandbox.reset(name).status_code == 410
        assert sandbox.client.get("/sessions").json()["sessions"] == []
        sandbox.reset("b")
        own = {SESSION_HEADER: "b"}
        sandbox.client.request("DELETE", "/sessions", json={"sessions": ["b"]}, headers=own)
        monkeypatch.setattr(sessions, "LATE", 0)
        assert sandbox.reset("a").status_code == 200  # a new sandbox of that name
        assert sandbox.reset("b").status_code == 410  # nobody gives itself a second task


def test_a_body_that_would_fill_the_memory_is_not_read(sandbox: Sandbox) -> None:
    sandbox.reset(initial_count=1)

    for path, size in (("/tools/increment", 5 << 20), ("/reset", 65 << 20), ("/verify", 65 << 20)):
        for body in (bytes(size), iter([bytes(size)])):  # of a length that is told, and of one that is not
            refused = sandbox.client.post(path, content=body)
            assert (refused.status_code, refused.json()["kind"]) == (413, "invalid"), path
    assert sandbox.verify(expected=1).json()["reward"] == 1.0


def test_who_comes_by_the_proxy_ends_no_other_session() -> None:
    with serving(max_sessions=2) as sandbox:
        sandbox.reset("a")
        sandbox.reset("b")
        both = {"sessions": ["a", "b"]}
        assert (
            sandbox.client.request("DELETE", "/sessions", json=both, headers={SESSION_HEADER: "a"}).status_code == 204
        )
        assert sandbox.client.get("/sessions").json()["sessions"] == ["b"]


def test_a_shared_sandbox_runs_no_commands_and_verify_ends_none_of_others() -> None:
    with serving(max_sessions=2) as sandbox:
        sandbox.reset("a")
        assert "sandbox of its own" in sandbox.post("/tools/list_files", session="a").json()["output"]
        sandbox.verify("a")
        assert sandbox.agent.killed == 0


class WithRoutes(Counter):
    def setup_webserver(self) -> FastAPI:
        app = super().setup_webserver()

        @app.get("/count")
        async def count() -> int:
            if self.count > 100:
                raise RuntimeError("too many")
            return self.count

        @app.post("/hang")
        async def hang() -> None:
            await self.hang()

        @app.post("/increment_when_told")
        def increment_when_told() -> None:
            self.increment_when_told(1)

        @app.websocket("/talk")
        async def talk(websocket: WebSocket) -> None:
            await websocket.accept()
            await websocket.send_text("hello")
            await self.hang()

        return app


def test_an_author_adds_routes_to_the_instance() -> None:
    with serving(WithRoutes) as sandbox:
        sandbox.reset(initial_count=5)
        assert sandbox.client.get("/count").json() == 5
        assert sandbox.post("/tools/increment", {"by": 1}).json()["output"] == "6"
        assert sandbox.client.get("/healthz").json()["status"] == "ok"
        assert sandbox.client.get("/nothing").status_code == 404


def test_an_authors_route_is_refused_once_verify_has_begun() -> None:
    with serving(WithRoutes) as sandbox:
        sandbox.reset(initial_count=5)
        sandbox.verify()
        answer = sandbox.client.get("/count")
    assert (answer.status_code, answer.json()["kind"]) == (409, "conflict")
    assert "verify has begun" in answer.json()["detail"]


def test_verify_stops_an_authors_route_that_runs() -> None:
    with serving(WithRoutes) as sandbox:
        sandbox.reset()
        with meanwhile(lambda: sandbox.post("/hang")) as answers:
            sandbox.post("/tools/wait_started")
            assert sandbox.verify().status_code == 200
    assert (answers[0].status_code, "verify has begun" in answers[0].json()["detail"]) == (409, True)


def test_verify_ends_an_authors_websocket_and_lets_none_be_opened() -> None:
    with serving(WithRoutes) as sandbox:
        sandbox.reset()
        with sandbox.client.websocket_connect("/talk") as websocket:
            assert websocket.receive_text() == "hello"
            assert sandbox.verify().status_code == 200
            with pytest.raises(WebSocketDisconnect) as ended:
                websocket.receive_text()
            assert (ended.value.code, ended.value.reason) == (1001, "verify has begun")
        with pytest.raises(WebSocketDenialResponse) as refused, sandbox.client.websocket_connect("/talk"):
            pass
    assert refused.value.status_code == 409


def test_verify_waits_for_an_authors_sync_route() -> None:
    with serving(WithRoutes) as sandbox:
        sandbox.reset()
        with meanwhile(lambda: sandbox.post("/increment_when_told")):
            sandbox.post("/tools/wait_started")
            with meanwhile(lambda: sandbox.verify(expected=1)) as verdicts:
                sandbox.until_verify_begins()
                sandbox.instance.may_end.set()
    assert verdicts[0].json()["reward"] == 1.0


def test_an_authors_route_that_raises_is_an_internal_problem() -> None:
    with serving(WithRoutes) as sandbox:
        sandbox.reset(initial_count=500)
        assert sandbox.client.get("/count").json()["detail"] == "RuntimeError: too many"


def test_own_routes_need_a_sandbox_for_each_task() -> None:
    with pytest.raises(Invalid, match="sessions: 1"), serving(WithRoutes, max_sessions=2):
        pass


def test_an_unknown_path_is_a_problem(sandbox: Sandbox) -> None:
    body = sandbox.client.get("/nothing").json()
    assert (body["status"], body["kind"]) == (404, "not_found")
    assert sandbox.client.get("/verify").json()["status"] == 405


async def test_a_server_without_verify_cannot_score() -> None:
    with pytest.raises(NotImplementedError, match="has no verify"):
        await ResourcesServer().verify(Task(), Response())


async def test_exec_works_from_reset_on() -> None:
    with pytest.raises(RuntimeError, match="from reset on"):
        await Counter().exec("true")


class Half:
    def __float__(self) -> float:
        return 0.5


class Broken:
    def __float__(self) -> float:
        raise ValueError("no")


def test_whatever_is_a_number_is_a_reward() -> None:
    assert [verdict_of(found).reward for found in (True, 1, 0.25, Half())] == [1.0, 1.0, 0.25, 0.5]


def test_no_part_of_a_verdict_is_so_large_that_nobody_can_count_with_it() -> None:
    for part in ({"metrics": {"a": 1e101}}, {"reward_components": {"a": -1e308}}, {"metrics": {"a": float("nan")}}):
        with pytest.raises(ValidationError):
            Verdict.model_validate({"reward": 1, **part})
    assert Verdict(reward=-1e100).reward == -1e100


@pytest.mark.parametrize("found", [None, "1", [1], float("inf"), 10**400, 1e101, -1e308, Broken()])
def test_whatever_is_no_finite_number_is_none(found: Any) -> None:
    with pytest.raises(Exception, match="no finite number") as caught:
        verdict_of(found)
    assert json.loads(json.dumps(caught.value.extra))["rollout_kind"] == "bad_verdict"  # type: ignore[attr-defined]
