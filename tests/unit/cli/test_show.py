"""`gymbox show`: one rollout, readable."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from gymbox.cli import main


def line(task: str, **fields: Any) -> dict[str, Any]:
    return {
        "rollout_id": f"run-{task}-0",
        "task_id": task,
        "environment": "counter",
        "responses_create_params": {"instructions": "Be brief.", "input": "add 1\nand no more"},
        "reward": 1.0,
        "error": None,
        "response": None,
        "timings": {"agent": 0.5, "total": 0.75},
        **fields,
    }


OUTPUT = [
    {"type": "reasoning", "summary": [{"type": "summary_text", "text": "I must add"}]},
    {"type": "function_call", "call_id": "c", "name": "increment", "arguments": '{"by": 1}'},
    {"type": "function_call_output", "call_id": "c", "output": "\x1b[31m2\r"},
    {"type": "web_search_call", "id": "w"},
    {"role": "assistant", "type": "message", "content": [{"type": "output_text", "text": "done"}]},
]
SCORED = line(
    "a",
    response={"output": OUTPUT, "metadata": {"stop_reason": "completed"}},
    metrics={"steps": 1.0},
)
KILLED = {"stage": "agent", "kind": "oom_killed", "detail": "too big", "logs": "one\ntwo"}
FAILED = line("b", reward=None, error=KILLED)


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "rollouts.jsonl").write_text("".join(json.dumps(each) + "\n" for each in (SCORED, FAILED)))
    return tmp_path


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> list[str]:
    with pytest.raises(SystemExit) as caught:
        main(["show", *arguments])
    assert caught.value.code == 0
    return capsys.readouterr().out.splitlines()


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(["show", *arguments])
    assert caught.value.code == 2
    return capsys.readouterr().err


def test_a_rollout_is_shown_from_what_was_asked_to_its_reward(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys, str(run)) == [
        "rollout           run-a-0",
        "task              a",
        "instructions      Be brief.",
        "user              add 1",
        "                  and no more",
        "reasoning         I must add",
        'call              increment {"by": 1}',
        r"result            \x1b[31m2\r",
        'web_search_call   {"type": "web_search_call", "id": "w"}',
        "assistant         done",
        "reward            1.0",
        "agent ended       completed",
        "metrics           steps 1.0",
        "seconds           agent 0.50, total 0.75",
    ]


def test_of_calls_at_once_each_result_says_whose_it_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def call(id: str, by: int) -> dict[str, Any]:
        return {"type": "function_call", "call_id": id, "name": "increment", "arguments": f'{{"by": {by}}}'}

    def result(id: str, output: str) -> dict[str, Any]:
        return {"type": "function_call_output", "call_id": id, "output": output}

    output = [
        *(call("alone", 0), result("alone", "0")),
        *(call("a", 1), call("b", 2), result("b", "two\nof two"), result("a", "one")),
        *(call("c", 3), call("d", 4), result("c", "three"), result("d", "four")),
    ]
    (run / "rollouts.jsonl").write_text(json.dumps(line("p", response={"output": output})))
    assert [each for each in shown(capsys, str(run)) if each[:4] in ("call", "resu", "    ")][1:] == [
        'call              increment {"by": 0}',
        "result            0",
        'call 1            increment {"by": 1}',
        'call 2            increment {"by": 2}',
        "result 2          two",
        "                  of two",
        "result 1          one",
        'call 1            increment {"by": 3}',
        'call 2            increment {"by": 4}',
        "result 1          three",
        "result 2          four",
    ]


@pytest.mark.parametrize("wanted", ["b", "run-b-0", "oom_killed"])
def test_a_failed_one_is_found_by_task_rollout_or_error(
    run: Path, wanted: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = shown(capsys, str(run), wanted)

    assert "error             oom_killed (agent): too big" in told
    assert told[told.index("its log           one") + 1] == " " * 18 + "two"
    assert not any(each.startswith("reward") for each in told)


def test_what_is_not_there_is_told_with_what_is(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "has no task, rollout or error 'c'; known: a, b" in refused(capsys, str(run), "c")
    assert "give the folder of a run" in refused(capsys, str(run / "none"))


@pytest.mark.parametrize(("content", "said"), [("", "has no rollouts yet"), ("{}\n", ":1 is no line of a run")])
def test_a_file_without_rollouts_is_told(
    content: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "rollouts.jsonl").write_text(content)

    assert said in refused(capsys, str(tmp_path))
