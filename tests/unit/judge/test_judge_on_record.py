"""What a judge is asked, on record: each question with its vote, its answer and what became of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from gymbox.environment import JudgeLimits
from gymbox.errors import ErrorKind, JudgeFailed, ModelFailure
from gymbox.http import HttpClient
from gymbox.judge import Judge
from gymbox.models import Call
from gymbox.models.capture import Capture
from gymbox.models.cassettes import RecordedCall, recorded_calls
from gymbox.models.replay import ReplayModel
from gymbox_sandbox.responses import ResponsesParams

from tests.unit.judge.test_judge import SCHEMA, Says, asked

RIGHT = '{"correct": true}'


async def recorded(
    folder: Path, model: Says, *verifies: tuple[str, bytes], failing: bool = False, **limits: Any
) -> list[RecordedCall]:
    """What is on record of these verifies, each of a rollout."""
    async with HttpClient() as http, Judge(model, http) as judge, Capture(folder) as capture:
        judge.record(capture)
        for rollout, body in verifies:
            hearing = judge.hearing(rollout, JudgeLimits(**limits))
            if failing:
                with pytest.raises(JudgeFailed):
                    await hearing.answers(body)
            else:
                await hearing.answers(body)
    return list(recorded_calls(folder))


def told(call: RecordedCall) -> dict[str, Any]:
    assert call.judge is not None
    return call.judge.model_dump(exclude_defaults=True)


async def test_each_vote_is_told_apart(tmp_path: Path) -> None:
    bodies = [asked("?"), asked("?", sample=1)]
    one, other = await recorded(tmp_path, Says.of("a", "b"), *(("r", body) for body in bodies))
    assert (told(one), told(other)) == ({"question": 0}, {"question": 0, "vote": 1})


async def test_an_answer_that_is_not_taken_says_why(tmp_path: Path) -> None:
    model = Says.of("maybe", '{"correct": 1}', "")
    first, second, third = await recorded(tmp_path, model, ("r", asked("?", schema=SCHEMA)), failing=True)
    assert told(first)["unusable"].startswith("JSON was asked for, and it said 'maybe'")
    assert (told(second)["attempt"], told(third)["attempt"]) == (1, 2)
    assert "does not fit the schema" in told(second)["unusable"]
    assert told(third)["unusable"] == "it has no text"
    assert first.error is None
    assert first.response is not None


async def test_what_is_remembered_is_on_record_for_every_rollout_that_asks_it(tmp_path: Path) -> None:
    model = Says.of(RIGHT)
    body = asked("?", schema=SCHEMA)
    first, again = await recorded(tmp_path, model, ("one", body), ("two", body))
    assert len(model._calls) == 1
    assert (first.rollout, again.rollout) == ("one", "two")
    assert told(again) == {"question": 0, "remembered": True}
    assert again.request == first.request
    assert again.response is not None
    assert again.response["output"][0]["content"] == RIGHT
    assert again.usage is None


async def test_of_two_that_ask_the_same_at_once_the_one_that_was_not_taken_says_so(tmp_path: Path) -> None:
    calls = await recorded(tmp_path, Says.of("one", "two"), ("r", asked("?", "?")))
    assert [told(call).get("instead") for call in calls] == [None, "one"]


async def test_a_call_that_failed_has_its_error(tmp_path: Path) -> None:
    failure = ModelFailure(ErrorKind.MODEL_UNAUTHORIZED, "a wrong key")
    [call] = await recorded(tmp_path, Says.of(failure), ("r", asked("?")), failing=True)
    assert call.error is not None
    assert call.error["detail"] == "a wrong key"
    assert told(call) == {"question": 0}


async def test_what_was_remembered_takes_no_place_when_the_record_is_replayed(tmp_path: Path) -> None:
    body = asked("?", schema=SCHEMA)
    await recorded(tmp_path, Says.of(RIGHT), ("one", body), ("two", body))
    async with HttpClient() as http:
        model = ReplayModel(cassette=tmp_path)
        await model.open()
        assert sum(len(calls) for (_, rollout, _), calls in model._calls.items() if rollout == "*") == 1
        params = ResponsesParams.model_validate(next(recorded_calls(tmp_path)).request)
        assert (await model.responses(params, Call(http=http, rollout="two"))).output_text == RIGHT
