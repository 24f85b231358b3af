"""Recorded calls, put together again."""

from collections.abc import Sequence
from typing import Any

import pytest
from gymbox.models.cassettes import RecordedCall, request_digest
from gymbox.models.trajectories import has_token_ids, per_call, rebuilt
from gymbox_sandbox.responses import Response
from hypothesis import given
from hypothesis import strategies as st

Json = dict[str, Any]
USER: Json = {"role": "user", "content": "question"}


def said(text: str) -> Json:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def ids(prompt: Sequence[int], *sampled: int) -> Json:
    return {
        "prompt_token_ids": list(prompt),
        "generation_token_ids": list(sampled),
        "generation_log_probs": [-float(each) for each in sampled],
    }


def call(number: int, history: list[Json], *output: Json, tokens: Json | None = None, **more: Any) -> RecordedCall:
    items = [*output[:-1], {**output[-1], **(tokens or {})}]
    request = {"input": history, **more}
    return RecordedCall(
        call=number,
        dialect="responses",
        digest=request_digest(request),
        request=request,
        response={"output": items},
    )


def growing(*, tokens: bool) -> list[RecordedCall]:
    """Three calls of one history, with a tool's result and a further question between."""
    asks = {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'}
    result = {"type": "function_call_output", "call_id": "c", "output": "2"}
    second = [USER, {**asks, "arguments": '{"a":1}'}, result]
    third = [*second, said("two"), user("sure?")]
    return [
        call(0, [USER], asks, tokens=ids([1, 2], 3, 4) if tokens else None),
        call(
            1,
            second,
            {"type": "reasoning", "summary": []},
            said("two"),
            tokens=ids([1, 2, 3, 4, 5], 6) if tokens else None,
        ),
        call(2, third, said("yes"), tokens=ids([1, 2, 3, 4, 5, 6, 7, 8], 9) if tokens else None),
    ]


def test_calls_that_grow_one_from_the_other_make_one_trajectory_token_by_token() -> None:
    found = rebuilt(growing(tokens=True), rollout="r")
    assert not found.mask_sample and found.mask_reason is None and len(found.trajectories) == 1
    main = found.main
    assert main is not None and main.calls == main.new_calls == [0, 1, 2]
    assert main.token_ids == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert main.loss_mask == [0, 0, 1, 1, 0, 1, 0, 0, 1]
    assert main.log_probs == [0, 0, -3, -4, 0, -6, 0, 0, -9]
    assert [item["type"] for item in main.output] == [
        *("function_call", "function_call_output", "reasoning", "message", "message", "message"),
    ]
    assert [item.get("generation_token_ids") for item in main.output] == [[3, 4], None, None, [6], None, [9]]
    assert found.summary["delivered_fraction"] == 1 and found.summary["generated_tokens_captured"] == 4


def test_without_ids_the_items_tell_and_nothing_is_masked() -> None:
    found = rebuilt(growing(tokens=False))
    assert not found.mask_sample
    [main] = found.trajectories
    assert main.calls == [0, 1, 2] and main.token_ids is None
    assert main.input == [{"type": "message", **USER}] and len(main.output) == 6


def test_text_that_became_other_tokens_begins_another_branch_and_is_masked() -> None:
    calls = growing(tokens=True)
    assert calls[2].response is not None
    calls[2].response["output"][-1] |= ids([1, 2, 3, 4, 5, 66, 7, 8], 9)
    found = rebuilt(calls)
    assert found.mask_sample and "2 branches" in (found.mask_reason or "")
    # what the last call was shown of the second answer are other tokens: no part of what is trained on
    assert [(each.kind, each.calls) for each in found.trajectories] == [("main", [0, 2]), ("fork", [0, 1])]
    assert found.trajectories[1].token_ids == [1, 2, 3, 4, 5, 6]
    assert found.trajectories[1].loss_mask == [0, 0, 0, 0, 0, 1]
    assert found.trajectories[0].loss_mask == [0, 0, 1, 1, 0, 0, 0, 0, 1]


def test_a_compacted_history_a_subagent_and_a_fork_are_branches() -> None:
    first = call(0, [USER], said("a"), instructions="main")
    subagent = call(1, [user("look it up")], said("found"), instructions="helper")
    second = call(2, [USER, said("a"), user("b")], said("b"), instructions="main")
    fork = call(3, [USER, said("a"), user("c")], said("c"), instructions="main")
    last = call(4, [USER, said("a"), user("b"), said("b"), user("d")], said("d"), instructions="main")
    found = rebuilt([first, subagent, second, fork, last])
    assert [(each.kind, each.calls, each.new_calls) for each in found.trajectories] == [
        ("main", [0, 2, 4], [0, 2, 4]),
        ("subagent", [1], [1]),
        ("fork", [0, 3], [3]),
    ]
    assert found.trajectories[1].instructions == "helper"
    compacted = call(5, [user("summary of all before")], said("e"), instructions="main")
    kinds = [each.kind for each in rebuilt([first, second, compacted]).trajectories]
    assert kinds == ["main", "rewritten"]


def test_a_shared_beginning_is_trained_on_once() -> None:
    first = call(0, [USER], said("a"), tokens=ids([1], 2))
    fork = call(1, [USER, said("a"), user("b")], said("b"), tokens=ids([1, 2, 3], 4))
    last = call(2, [USER, said("a"), user("c")], said("c"), tokens=ids([1, 2, 5], 6))
    main, other = rebuilt([first, fork, last]).trajectories
    assert (main.loss_mask, other.loss_mask) == ([0, 1, 0, 1], [0, 0, 0, 1])


def test_a_call_that_was_made_again_is_resolved_by_what_follows_or_masked() -> None:
    one, again = call(0, [USER], said("a")), call(1, [USER], said("b"))
    after = call(2, [USER, said("b"), user("c")], said("c"))
    found = rebuilt([one, again, after])
    assert [each.calls for each in found.trajectories] == [[1, 2]] and not found.mask_sample
    assert found.summary["quarantined_calls"] == 1
    undecided = rebuilt([one, again])
    assert undecided.mask_sample and "made twice" in (undecided.mask_reason or "")
    assert undecided.summary["unresolved_retries"] == [1]


@pytest.mark.parametrize(
    ("calls", "missing", "reason"),
    [
        (growing(tokens=True), 1, "1 model calls were not recorded"),
        ([], 0, "no model call was recorded"),
        ([growing(tokens=True)[0], growing(tokens=False)[1]], 0, "calls without token ids: 1"),
    ],
)
def test_what_cannot_be_trusted_is_masked_with_the_reason(
    calls: list[RecordedCall], missing: int, reason: str
) -> None:
    found = rebuilt(calls, missing=missing)
    assert found.mask_sample and found.mask_reason == reason
    assert found.summary["capture_incomplete"] is (missing > 0)


def test_a_call_that_no_converter_understands_is_named() -> None:
    odd = RecordedCall(call=1, dialect="chat", digest="", request={"messages": 3}, response={"choices": []})
    found = rebuilt([growing(tokens=False)[0], odd])
    assert "call 1 cannot be read" in (found.mask_reason or "") and found.summary["quarantined_calls"] == 1


def test_failed_and_cancelled_calls_count_for_nothing() -> None:
    first, *_ = growing(tokens=False)
    failed = first.model_copy(update={"call": 1, "error": {"detail": "x"}})
    cancelled = first.model_copy(update={"call": 2, "cancelled": True})
    found = rebuilt([first, failed, cancelled])
    assert [each.calls for each in found.trajectories] == [[0]] and not found.mask_sample


def test_chat_calls_make_the_same_trajectory() -> None:
    question = {"role": "user", "content": "q"}
    answer = {"role": "assistant", "content": "a"}

    def chat(number: int, messages: list[Json], content: str, tokens: Json) -> RecordedCall:
        message = {"role": "assistant", "content": content, **tokens}
        usage = {"prompt_tokens": 1, "completion_tokens": len(tokens["generation_token_ids"])}
        response = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}
        request = {"messages": messages}
        digest = request_digest(request)
        return RecordedCall(call=number, dialect="chat", digest=digest, request=request, response=response)

    found = rebuilt(
        [
            chat(0, [question], "a", ids([1], 2)),
            chat(1, [question, answer, question], "b", ids([1, 2, 3], 4)),
        ]
    )
    assert not found.mask_sample and found.main is not None
    assert (found.main.token_ids, found.main.loss_mask) == ([1, 2, 3, 4], [0, 1, 0, 1])


def test_the_form_of_each_call_by_itself_has_its_own_ids() -> None:
    first, second, _ = per_call(growing(tokens=True))
    assert first["generation_token_ids"] == [3, 4] and second["prompt_token_ids"] == [1, 2, 3, 4, 5]
    assert second["output"][-1]["generation_log_probs"] == [-6.0] and second["call"] == 1
    assert "generation_token_ids" not in per_call(growing(tokens=False))[0]


def test_whether_items_bear_ids() -> None:
    bare, full = (Response.model_validate({"output": [{**said("a"), **more}]}) for more in ({}, ids([1], 2)))
    assert has_token_ids(full.output) and not has_token_ids(bare.output)


def test_a_call_that_names_the_one_before_goes_on_from_it() -> None:
    first, second = call(0, [USER], said("a")), call(1, [user("b")], said("b"), previous_response_id="resp_1")
    third = call(2, [USER, said("a"), user("b"), said("b"), user("c")], said("c"))
    assert first.response is not None
    first.response["id"] = "resp_1"
    [main] = rebuilt([first, second, third]).trajectories
    assert main.calls == [0, 1, 2] and [item.get("role") for item in main.output] == ["assistant", "user"] * 2 + [
        "assistant"
    ]


@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=8))
def test_every_sampled_token_is_in_the_trajectory_once_and_in_order(turns: list[tuple[int, int]]) -> None:
    calls, seen, history = [], [0], [USER]
    for number, (sampled, added) in enumerate(turns):
        fresh = range(len(seen), len(seen) + sampled)
        calls.append(call(number, list(history), said(str(number)), tokens=ids(seen, *fresh)))
        history += [said(str(number)), user(f"next {number}")]
        seen = [*seen, *fresh, *range(len(seen) + sampled, len(seen) + sampled + added)]
    found = rebuilt(calls)
    assert found.main is not None and not found.mask_sample
    assert found.main.token_ids == list(range(len(found.main.token_ids or [])))
    assert sum(found.main.loss_mask or []) == sum(sampled for sampled, _ in turns)
