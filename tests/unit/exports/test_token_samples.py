"""The very tokens of a rollout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gymbox.errors import ConfigError
from gymbox.evaluation.rollouts import rollout_of
from gymbox.exports.left_out import Reason, Unfit
from gymbox.exports.token_samples import RecordedCalls, TokenSample, samples_of
from gymbox.models.cassettes import RecordedCall
from gymbox.models.token_ids import PREFIX_FAULT

from tests.unit.exports.conftest import answered, called, ids, result, said
from tests.unit.models.test_trajectories import call, growing
from tests.unit.models.test_trajectories import ids as tokens

ONE = [called(**ids([1, 2], 3, 4)), result(), said("2", **ids([1, 2, 3, 4, 5], 6))]
BROKEN = [called(**ids([1, 2], 3, 4)), result(), said("2", **ids([1, 2, 33, 4, 5], 6))]


def of(*output: dict[str, Any], calls: list[RecordedCall] | None = None, branches: bool = True, **more: Any) -> Any:
    return samples_of(rollout_of(answered("a", 0, 1.0, *output) | more), calls or [], branches=branches)


def refused(*output: dict[str, Any], **more: Any) -> Unfit:
    with pytest.raises(Unfit) as caught:
        of(*output, **more)
    return caught.value


def test_several_turns_are_one_sequence_whose_mask_is_on_what_was_sampled() -> None:
    assert of(*ONE) == [TokenSample([1, 2, 3, 4, 5, 6], [0, 0, 1, 1, 0, 1])]


def test_where_the_prefix_breaks_another_branch_begins_and_no_token_counts_twice() -> None:
    mask = {"mask_sample": True, "mask_reason": f"{PREFIX_FAULT}: it differs at token 2"}
    found = of(*BROKEN, **mask)
    assert found == [TokenSample([1, 2, 3, 4], [0, 0, 1, 1]), TokenSample([1, 2, 33, 4, 5, 6], [0, 0, 0, 0, 0, 1])]
    assert refused(*BROKEN, branches=False, **mask).reason is Reason.SEVERAL_BRANCHES


def test_a_rollout_that_is_masked_for_another_reason_gives_none() -> None:
    why = refused(*ONE, mask_sample=True, mask_reason="the judge was bribed")
    assert why.reason is Reason.MASKED and why.detail == "the judge was bribed"
    assert refused(*BROKEN, mask_sample=True, mask_reason="the judge was bribed").reason is Reason.MASKED
    assert refused(*ONE, mask_sample=True).reason is Reason.MASKED


@pytest.mark.parametrize(
    "output",
    [
        [said("no ids at all")],
        [called(**ids([1], 2)), result(), said("none for the last answer")],
        [called(), result(), said("none for the first", **ids([1], 2))],
        [said("no numbers", **ids([1], 2) | {"prompt_token_ids": ["1"]})],
        [said("no list", **ids([1], 2) | {"generation_token_ids": "12"})],
    ],
)
def test_where_an_answer_has_no_ids_there_is_no_sample(output: list[dict[str, Any]]) -> None:
    assert refused(*output).reason is Reason.NO_TOKEN_IDS


def test_an_answer_of_no_tokens_is_none() -> None:
    assert refused(said("", **ids([1, 2]))).reason is Reason.NO_ANSWER


def test_recorded_calls_go_before_the_items() -> None:
    assert of(said("whatever"), calls=growing(tokens=True)) == [
        TokenSample([1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 0, 1, 1, 0, 1, 0, 0, 1])
    ]
    assert refused(said("x"), calls=growing(tokens=False)).reason is Reason.NO_TOKEN_IDS


def test_each_branch_of_recorded_calls_is_a_sample() -> None:
    calls = growing(tokens=True)
    assert calls[2].response is not None
    calls[2].response["output"][-1] |= tokens([1, 2, 3, 4, 5, 66, 7, 8], 9)
    reason = "the history was rewritten or forked: 2 branches"
    found = of(said("x"), calls=calls, mask_sample=True, mask_reason=reason)
    assert [sample.ids for sample in found] == [[1, 2, 3, 4, 5, 66, 7, 8, 9], [1, 2, 3, 4, 5, 6]]
    assert sum(sum(sample.mask) for sample in found) == 4  # as many as were sampled
    assert refused(said("x"), calls=calls, branches=False).reason is Reason.SEVERAL_BRANCHES


def test_calls_that_are_missing_or_undecided_give_none() -> None:
    line = answered("a", 0, 1.0, said("x")) | {"calls": {"count": 4}}
    with pytest.raises(Unfit) as caught:
        samples_of(rollout_of(line), growing(tokens=True))
    assert caught.value.reason is Reason.UNSURE and "1 model calls were not recorded" in caught.value.detail
    twice = [call(number, [{"role": "user", "content": "q"}], said("x"), tokens=tokens([1], 2)) for number in (0, 1)]
    assert refused(said("x"), calls=twice).reason is Reason.UNSURE


def test_recorded_calls_are_found_by_the_attempt_that_counted(tmp_path: Path) -> None:
    (tmp_path / "calls").mkdir()
    lines = [
        json.dumps(each.model_copy(update={"rollout": rollout}).model_dump())
        for rollout in ("r", "r.1.2")
        for each in reversed(growing(tokens=True))
    ]
    (tmp_path / "calls" / "0001.jsonl").write_text("\n".join([*lines, '{"torn']))
    found = RecordedCalls(tmp_path)
    rollout = rollout_of(answered("a", 0, 1.0, said("x")) | {"rollout_id": "r", "sandbox": "r.1.2"})
    assert [(each.rollout, each.call) for each in found.of(rollout)] == [("r.1.2", number) for number in (0, 1, 2)]
    assert found.of(rollout_of(answered("b", 0, 1.0, said("x")))) == []
    assert RecordedCalls(tmp_path / "calls" / "0001.jsonl").of(rollout) == []
    (tmp_path / "calls" / "0001.jsonl").write_text("{}\n")
    with pytest.raises(ConfigError, match="no recorded call"):
        RecordedCalls(tmp_path)
