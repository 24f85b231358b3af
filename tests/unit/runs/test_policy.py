"""A model that is replaced while it samples, and which version of it sampled what."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import Any, cast

import pytest
from gymbox.errors import ConfigError
from gymbox.http import HttpClient
from gymbox.models import Call
from gymbox.models.scripted import ScriptedModel
from gymbox.runs.policy import PolicyModel
from gymbox_sandbox.responses import Response, ResponsesParams
from pydantic import PrivateAttr

PARAMS = ResponsesParams(input="hi")
ASKED: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 9}


class Gated(ScriptedModel):
    """Says its name once its gate is open, and notes whether it is open itself."""

    _gate: asyncio.Event = PrivateAttr(default_factory=asyncio.Event)
    _told: list[str] = PrivateAttr(default_factory=list)

    @classmethod
    def called(cls, name: str, *, waits: bool = False) -> Gated:
        made = cls(name=name, replies=[[{"content": name}]])
        if not waits:
            made._gate.set()
        return made

    async def open(self) -> None:
        self._told.append("open")

    async def close(self) -> None:
        self._told.append("close")

    async def responses(self, params: ResponsesParams, call: Call) -> Response:
        await self._gate.wait()
        return await super().responses(params, call)

    async def count_tokens(self, body: dict[str, Any], call: Call) -> int:
        return 7


def call_of(rollout: str) -> Call:
    return Call(http=HttpClient(), rollout=rollout)


async def test_a_rollout_is_told_by_the_versions_of_its_first_and_last_call() -> None:
    model = Gated.called("m")
    policy = PolicyModel.of(model)
    await policy.responses(PARAMS, call_of("none"))
    assert policy.notes("none") == {}
    policy.tell(3)
    await policy.responses(PARAMS, call_of("a"))
    model._gate.clear()
    late = asyncio.create_task(policy.responses(PARAMS, call_of("a")))
    await asyncio.sleep(0)
    policy.tell(4)
    model._gate.set()
    await late
    assert policy.notes("a") == {"policy_version": 3, "policy_version_end": 4}
    assert policy.notes("a") == {}


async def test_a_replaced_model_ends_its_calls_and_is_closed_then() -> None:
    old, new = Gated.called("old", waits=True), Gated.called("new")
    policy = PolicyModel.of(old)
    await policy.open()
    under_way = asyncio.create_task(policy.responses(PARAMS, call_of("a")))
    await asyncio.sleep(0)
    await policy.update(1, new)
    assert policy.version == 1 and old._told == ["open"] and new._told == ["open"]
    assert (await policy.responses(PARAMS, call_of("b"))).output_text == "new"
    old._gate.set()
    assert (await under_way).output_text == "old"
    assert old._told == ["open", "close"]
    await policy.update(2, new)
    await policy.close()
    assert new._told == ["open", "close"] and policy.version == 2
    assert policy.notes("a") == {"policy_version": None, "policy_version_end": 1}


async def test_a_model_that_cannot_be_opened_replaces_none() -> None:
    class Broken(ScriptedModel):
        async def open(self) -> None:
            raise ConfigError("no such file")

    policy = PolicyModel.of(Gated.called("m"))
    policy.tell(1)
    with pytest.raises(ConfigError):
        await policy.update(2, Broken())
    assert policy.version == 1 and (await policy.responses(PARAMS, call_of("a"))).output_text == "m"


async def test_it_answers_in_every_dialect() -> None:
    policy = PolicyModel.of(Gated.called("m"))
    policy.tell(1)
    assert await policy.chat_completions(dict(ASKED), call_of("a"))
    assert await policy.messages(dict(ASKED), call_of("b"))
    assert await policy.count_tokens(ASKED, call_of("c")) == 7
    assert not policy.has_store
    streams = {
        "d": policy.stream(PARAMS, call_of("d")),
        "e": policy.chat_stream(dict(ASKED), call_of("e")),
        "f": policy.messages_stream(dict(ASKED), call_of("f")),
    }
    for stream in streams.values():
        async with aclosing(cast(Any, stream)) as events:
            assert [event async for event in events]
    assert all(policy.notes(rollout)["policy_version_end"] == 1 for rollout in "abdef")


async def test_those_that_began_with_an_older_version_are_known_by_their_rollout() -> None:
    policy = PolicyModel.of(Gated.called("m"))
    policy.tell(1)
    await policy.responses(PARAMS, call_of("run-counter-0-0"))
    await policy.responses(PARAMS, call_of("run-counter-0-1.2.3"))
    policy.tell(5)
    await policy.responses(PARAMS, call_of("run-counter-0-2"))
    assert policy.sampled_before(4) == ["run-counter-0-0", "run-counter-0-1"]
    policy.forget("run-counter-0-1")
    assert policy.sampled_before(4) == ["run-counter-0-0"]


@pytest.mark.parametrize("version", ["7", None, 1.5, float("nan"), True])
async def test_a_version_that_cannot_be_counted_is_refused_and_the_old_one_stays(version: Any) -> None:
    policy = PolicyModel.of(Gated.called("m"))
    policy.tell(3)
    with pytest.raises(ConfigError, match="policy version .* is no whole number"):
        policy.tell(version)
    with pytest.raises(ConfigError, match="policy version .* is no whole number"):
        await policy.update(version, Gated.called("n"))
    assert policy.version == 3


async def test_what_is_no_model_does_not_take_over() -> None:
    policy = PolicyModel.of(Gated.called("m"))
    with pytest.raises(ConfigError, match="model='scripted': give a model as an object"):
        await policy.update(1, cast(Any, "scripted"))
    assert policy.version is None
