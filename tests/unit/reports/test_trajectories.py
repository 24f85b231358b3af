"""Trajectories: what a reader shows, of lines of any shape."""

from __future__ import annotations

from typing import Any

from gymbox.evaluation.rollouts import rollout_of
from gymbox.reports.trajectories import LEAST, Room, Trajectory, opening, trajectory
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.reports.conftest import line


def told(line: dict[str, Any], room: Room | None = None, **options: Any) -> Trajectory:
    return trajectory(rollout_of(line, 7), "rollouts.jsonl", room=room or Room(), **options)


CALL = {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"by": 1}'}
RESULT = {"type": "function_call_output", "call_id": "c1", "output": "2"}
OUTPUT = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "hm"}], "content": [{"text": "so"}]},
    CALL,
    RESULT,
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It "}, {"refusal": "no"}]},
    {"type": "web_search_call", "id": "w"},
]


def test_a_trajectory_has_what_was_asked_and_what_was_done_in_order() -> None:
    params = {"instructions": "Be brief.", "input": "add", "tools": [{"type": "function", "name": "add"}]}
    found = told(line("a", 0, 1.0, response={"output": OUTPUT}, responses_create_params=params))
    assert [(item["kind"], item.get("by"), item["text"]) for item in found["asked"]] == [
        ("message", "system", "Be brief."),
        ("message", "user", "add"),
    ]
    assert [(item["kind"], item["text"]) for item in found["done"][:4]] == [
        ("reasoning", "hm\nso"),
        ("call", '{"by": 1}'),
        ("result", "2"),
        ("message", "It \nno"),
    ]
    assert [item.get("call") for item in found["done"][1:3]] == ["c1", "c1"]
    assert (found["done"][4]["kind"], '"id": "w"' in found["done"][4]["text"]) == ("web_search_call", True)
    assert [tool.get("by") for tool in found["tools"]] == ["add"]
    assert (found["file"], found["line"], found["answered"]) == ("rollouts.jsonl", 7, True)


def test_messages_of_chat_are_read_as_they_are() -> None:
    called = {"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "add"},
        {"role": "assistant", "content": None, "tool_calls": [called]},
        {"role": "tool", "tool_call_id": "c", "content": "2"},
    ]
    found = told(line("a", 0, 1.0, responses_create_params={"input": messages}))
    assert [(item["kind"], item["text"]) for item in found["asked"]] == [
        ("message", "add"),
        ("call", "{}"),
        ("result", "2"),
    ]


def test_a_failed_rollout_tells_its_error_and_the_attempts_before() -> None:
    before = {"error": {"kind": "oom_killed", "stage": "agent", "detail": "d"}, "timings": {"total": 1.5}}
    found = told(line("a", failed_attempts=[before]))
    assert {name: text["text"] for name, text in found["error"].items()} == {
        "kind": "agent_failed",
        "stage": "agent",
        "detail": "it fell",
    }
    assert found["attempts"] == [
        {"error": {"kind": "oom_killed", "stage": "agent", "detail": "d"}, "timings": {"total": 1.5}}
    ]
    assert not found["answered"]


def test_a_failure_of_nemo_gym_tells_its_class() -> None:
    found = told({"_ng_task_index": 0, "_ng_failure_class": "judge", "_ng_failure_judge_error": "no answer"})
    assert {name: text["text"] for name, text in found["error"].items()} == {"kind": "judge", "detail": "no answer"}


def test_what_only_the_verifier_saw_is_shown_apart_or_not_at_all() -> None:
    row = line("a", 0, 1.0, verifier_metadata={"answer": 4}, gold_replies=[], gold_judgements=["yes"])
    assert [item["kind"] for item in told(row)["hidden"]] == ["verifier_metadata", "gold_judgements"]
    assert told(row, answers=False)["hidden"] == []


def test_a_huge_text_is_cut_to_its_beginning_and_end_and_says_how_long_it_was() -> None:
    output = [{**RESULT, "output": "a" * 5_000_000 + "b" * 5_000_000}]
    [item] = told(line("a", 0, 1.0, response={"output": output}), Room(text=1000))["done"]
    assert (item["text"], item["end"], item["length"]) == ("a" * 750, "b" * 250, 10_000_000)


def test_of_a_rollout_with_more_than_there_is_room_for_the_rest_is_counted() -> None:
    output = [{**RESULT, "output": ""}] * 50 + [{**RESULT, "output": "x" * 900}] * 50
    params = {"input": "", "tools": [{"name": "t"}]}
    found = told(
        line("a", 0, 1.0, response={"output": output}, responses_create_params=params),
        Room(text=100, whole=10 * LEAST),
    )
    assert (len(found["done"]), found["left_out"], found["tools"]) == (9, 91, [])
    full = told(line("a", 0, 1.0, responses_create_params={**params, "input": [1] * 2000}), Room(whole=10 * LEAST))
    assert (len(full["asked"]), full["left_out"]) == (10, 1990)


def test_counts_of_tokens_are_told_with_their_details() -> None:
    usage = {"input_tokens": 5, "output_tokens": 3, "output_tokens_details": {"reasoning_tokens": 2}, "odd": "x"}
    assert told(line("a", 0, 1.0, usage=usage))["tokens"] == {
        "input_tokens": 5,
        "output_tokens": 3,
        "output: reasoning_tokens": 2,
    }


def test_facts_tell_where_a_rollout_comes_from() -> None:
    found = told(
        line(
            *("a", 0, 1.0),
            sandbox="s" * 500,
            agent_ref={"name": "ToolLoop"},
            mask_reason="rewritten",
            reverified={"reward": 0.0},
            response={"model": "m", "output": [], "metadata": {"stop_reason": "max_steps"}},
        )
    )["facts"]
    assert found["sandbox"] == "s" * 199 + "…"
    assert (found["agent"], found["model"], found["stopped"]) == ("ToolLoop", "m", "max_steps")
    assert (found["not to train on"], found["before it was scored anew"]) == ("rewritten", '{"reward": 0.0}')


def test_a_task_is_told_by_how_what_the_user_asks_begins() -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"text": "one\n  two three"}]},
    ]
    assert opening({"responses_create_params": {"input": messages}}, 7) == "one two"
    assert opening({"responses_create_params": None}, 7) == ""


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
ITEM = st.fixed_dictionaries(
    {},
    optional={
        "type": st.sampled_from(["message", "function_call", "function_call_output", "reasoning", "x"]),
        **{
            name: JSON
            for name in ("role", "content", "tool_calls", "summary", "name", "arguments", "output", "call_id")
        },
    },
)


@given(st.lists(ITEM | JSON, max_size=4), JSON, JSON)
def test_nothing_that_an_item_can_be_breaks_the_reader(items: list[Any], tools: Any, usage: Any) -> None:
    params = {"input": items, "tools": tools}
    row = line("a", responses_create_params=params, usage=usage if isinstance(usage, dict) else None, timings={})
    found = told(row)
    assert all(isinstance(item["text"], str) for item in found["asked"])
