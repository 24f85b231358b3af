"""Ids and names in the paths of requests: what is none is refused before anything is sent."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox.client import ControllerClient
from gymbox.environment import Environment, Manifest
from gymbox.errors import ConfigError, Invalid
from gymbox.execution import Execution
from gymbox.http import HttpClient
from gymbox.requests import TOOL_PATTERN, in_path, request_of
from gymbox.runs.client import RunsClient
from gymbox.sandbox_calls import Reach
from gymbox.sandbox_client import SandboxClient
from gymbox_sandbox.lifecycle import PoolSettings
from pydantic import BaseModel

NOBODY = "http://127.0.0.1:9"
"""Nobody listens there: who sends something finds it Unavailable, and not Invalid."""
COUNTER = Environment(Path("/nowhere"), Manifest(name="counter", description="for tests"))
no_id = pytest.mark.parametrize("id", ["", ".", "..", "../x", "a/b", "a?b", "a#b", "a%2fb", "a b", "a\n", "a" * 101])


class Kinded(BaseModel):
    kind: str


@pytest.fixture
async def http() -> AsyncIterator[HttpClient]:
    async with HttpClient() as client:
        yield client


async def refused(*calls: Callable[[], Awaitable[Any]]) -> None:
    for call in calls:
        with pytest.raises(Invalid, match="is no id: up to .*beginning with a letter or digit"):
            await call()


@no_id
async def test_a_controller_is_asked_nothing_for_what_is_no_id(http: HttpClient, id: str) -> None:
    controller = ControllerClient(NOBODY, "token", http)

    await refused(
        lambda: controller.get(id),
        lambda: controller.delete(id),
        lambda: controller.delete_group(id),
        lambda: controller.renew(id),
        lambda: controller.logs(id),
        lambda: controller.snapshot(id),
        lambda: controller.fork(id),
        lambda: controller.pause(id),
        lambda: controller.unpause(id),
        lambda: controller.delete_snapshot(id),
        lambda: controller.traffic(id),
        lambda: controller.environment(id),
        lambda: controller.set_pool(id, PoolSettings(target=1)),
        lambda: controller.forecast(id, 1),
        lambda: controller.of_run(id or "..", "normal", 1).forecast("counter", 1),
        lambda: controller.attach(id),
    )


@no_id
async def test_no_run_is_asked_for_by_what_is_no_id(http: HttpClient, id: str) -> None:
    runs = RunsClient(http, url=NOBODY)

    await refused(
        lambda: runs.get(id),
        lambda: runs.pause(id),
        lambda: runs.resume(id),
        lambda: runs.cancel(id),
        lambda: anext(runs.events(id)),
    )


@no_id
async def test_jobs_shells_and_commands_of_a_sandbox_have_ids(http: HttpClient, id: str) -> None:
    async def unknown() -> None:
        return None

    sandbox = SandboxClient("s1", COUNTER.manifest, http, Reach(NOBODY), unknown, None)  # type: ignore[arg-type]
    execution = Execution("s1", None, sandbox._calls.tell)  # type: ignore[arg-type]
    execution.id = id  # as a sandbox may tell it

    await refused(
        lambda: sandbox.jobs.get(id),
        lambda: sandbox.jobs.start(id, "true"),
        lambda: sandbox.jobs.kill(id),
        lambda: sandbox.jobs.forget(id),
        lambda: sandbox.jobs.follow(id).__aenter__(),
        lambda: sandbox.shells.open(id),
        lambda: execution.write(b"x"),
    )


async def test_a_sandbox_is_not_asked_for_by_what_is_no_id(http: HttpClient) -> None:
    controller = ControllerClient(NOBODY, "token", http)

    with pytest.raises(Invalid, match=r"\n  id: "):
        async with controller.sandbox(COUNTER, id="../x"):
            raise AssertionError("unreachable")


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("nonsense", "is it http://nonsense?"),
        ("localhost:8710", "is it http://localhost:8710?"),
        ("", "it begins with http://"),
        ("http://", "then a host"),
        ("http:///v1", "then a host"),
        ("ftp://host", "it begins with http://"),
        ("http://host:port", "is no address"),
        ("http://[::1", "is no address"),
        (None, "is no address"),
    ],
)
async def test_what_is_no_address_is_told_with_what_is_missing(http: HttpClient, url: Any, hint: str) -> None:
    for client in (lambda: ControllerClient(url, "token", http), lambda: RunsClient(http, url=url)):
        with pytest.raises(ConfigError, match=re.escape(hint)):
            client()


def test_a_tool_may_have_any_name_that_leads_nowhere_else() -> None:
    assert in_path("what? a%2ftool", "tool", TOOL_PATTERN) == "what%3F%20a%252ftool"
    for name in ("", ".", "..", "a/b", "../verify"):
        with pytest.raises(Invalid, match="is no id: up to 200 characters"):
            in_path(name, "tool", TOOL_PATTERN)


def test_a_request_may_have_a_field_of_any_name() -> None:
    assert request_of(Kinded, kind="big") == Kinded(kind="big")
    with pytest.raises(Invalid, match="kind"):
        request_of(Kinded, kind=1)
