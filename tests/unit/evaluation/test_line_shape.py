"""Lines that something has damaged: told by what is wrong, never a traceback, never a wrong figure."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox.cli import main
from gymbox.errors import ConfigError
from gymbox.evaluation.nemo_writer import write_nemo
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.summary import summary

from tests.unit.evaluation.conftest import ours

COMMANDS = (
    ["eval", "metrics", "RUN"],
    ["eval", "profile", "RUN"],
    ["eval", "compare", "RUN", "RUN"],
    ["eval", "convert", "RUN", "--layout", "nemo", "-o", "OUT/n.jsonl"],
    ["eval", "report", "RUN", "-o", "OUT/r.html"],
    ["export", "sft", "RUN", "-o", "OUT/s.jsonl"],
    ["show", "RUN"],
)


def damaged(folder: Path, **fields: Any) -> Path:
    path = folder / "rollouts.jsonl"
    first, *others = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(first), **fields}), *others]) + "\n")
    return folder


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"response": "hi"}, "its response is a text, not an object"),
        ({"response": {"output": [5]}}, "its response's output has a number in it, not only objects"),
        ({"response": {"output": "x"}}, "its response's output is a text, not a list"),
        ({"usage": [1]}, "its usage is a list, not an object"),
        ({"metrics": [1]}, "its metrics is a list, not an object"),
        ({"reward_components": True}, "its reward_components is true or false, not an object"),
        ({"agent_ref": 5}, "its agent_ref is a number, not an object"),
        ({"reward": None, "error": "boom"}, "its error is a text, not an object"),
        ({"reward": None, "error": {"stage": "agent"}}, "its error has no kind"),
        ({"failed_attempts": 5}, "its failed_attempts is a number, not a list"),
        ({"failed_attempts": [None]}, "its failed_attempts has null in it, not only objects"),
        ({"failed_attempts": [{"error": "x"}]}, "of an attempt before it the error is a text, not an object"),
        ({"_ng_task_index": "a"}, "its _ng_task_index is 'a', not a whole number from 0 on"),
        ({"_ng_rollout_index": -1}, "its _ng_rollout_index is -1, not a whole number from 0 on"),
        ({"_ng_task_index": 2**60}, "not a whole number from 0 on"),
    ],
)
def test_what_is_wrong_with_a_line_is_told_by_every_command(
    run: Callable[..., Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fields: dict[str, Any],
    said: str,
) -> None:
    folder = damaged(run(ours("a", 0, reward=1.0), ours("b", 1, reward=0.0)), **fields)
    for command in COMMANDS:
        with pytest.raises(SystemExit) as caught:
            main([each.replace("RUN", str(folder)).replace("OUT", str(tmp_path)) for each in command])
        assert caught.value.code == 2
        told = capsys.readouterr().err
        assert said in told and "rollouts.jsonl:1 " in told
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]  # nothing half-written


def test_a_rollout_that_stands_there_twice_is_not_counted_twice(run: Callable[..., Path]) -> None:
    folder = run(ours("a", 0, reward=1.0), ours("b", 1, reward=0.0))
    path = folder / "rollouts.jsonl"
    path.write_text(path.read_text() + path.read_text().splitlines()[0] + "\n")
    with pytest.raises(ConfigError, match=r"rollouts\.jsonl:3 .*counter-a-0 stands there twice; remove one"):
        list(RunReader(folder))


def test_a_line_that_is_not_utf_8_is_called_so(run: Callable[..., Path]) -> None:
    folder = run(ours("a", 0, reward=1.0))
    with (folder / "rollouts.jsonl").open("ab") as file:
        file.write(b"\xff\xfe\x00abc\n")
    with pytest.raises(ConfigError, match=r"rollouts\.jsonl:2 is no rollout: it is not UTF-8 text"):
        list(RunReader(folder))


def test_numbers_whose_sums_leave_the_range_of_floats_are_not_counted_with(
    run: Callable[..., Path], tmp_path: Path
) -> None:
    lines = [ours(task, index, reward=1.0, began=1e300 * (index + 1)) for index, task in enumerate("ab")]
    reader = RunReader(run(*lines))
    assert [rollout.began for rollout in reader] == [None, None]
    write_nemo(reader, tmp_path / "nemo.jsonl")
    assert "began" not in (tmp_path / "nemo_aggregate_metrics.json").read_text()

    damaged(reader.path, reward=-1e308)
    with pytest.raises(ConfigError, match=r"its reward is -1e\+308, not a finite number that can be counted with"):
        list(reader)


def test_fields_that_a_verifier_of_nemo_gym_has_named_as_ours_are_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "theirs.jsonl"
    told = {"error": "no", "calls": 3, "usage": "x", "timings": [1], "metrics": "m", "reward_components": 1}
    path.write_text(json.dumps({"agent_ref": {"name": "s"}, "_ng_task_index": 0, "reward": 1.0, **told}) + "\n")
    (rollout,) = RunReader(path)
    assert (rollout.reward, rollout.error, rollout.seconds, rollout.cost) == (1.0, None, None, None)
    assert summary(RunReader(path)).environments["s"].rollouts == 1


def test_a_number_that_json_has_not_ends_a_conversion_before_anything_is_there(
    run: Callable[..., Path], tmp_path: Path
) -> None:
    folder = damaged(run(ours("a", 0, reward=1.0)), reward_components={"x": float("nan")})
    with pytest.raises(ConfigError, match="has what JSON has not"):
        write_nemo(RunReader(folder), tmp_path / "nemo.jsonl")
    assert not list(tmp_path.glob("*nemo*"))


@pytest.mark.parametrize("text", [b"null\n", b"{}\n", b"\xff\n", b'{"reward": 1}\n'])
def test_a_damaged_line_of_failures_is_told_by_its_number(
    run: Callable[..., Path], tmp_path: Path, text: bytes
) -> None:
    folder = run(ours("a", 0, reward=1.0))
    (folder / "failures.jsonl").write_bytes(text)
    with pytest.raises(ConfigError, match=r"failures\.jsonl:1 is no rollout"):
        write_nemo(RunReader(folder), tmp_path / "nemo.jsonl")


@pytest.mark.parametrize(
    "command",
    [
        ["eval", "metrics", "RUN", "--success", "nan"],
        ["eval", "report", "RUN", "--success", "inf"],
        ["eval", "profile", "RUN", "--easy", "nan"],
        ["export", "sft", "RUN", "--min-reward", "nan", "-o", "OUT/s.jsonl"],
        ["export", "dpo", "RUN", "--margin", "inf", "-o", "OUT/d.jsonl"],
    ],
)
def test_a_threshold_with_which_nothing_compares_is_refused(
    run: Callable[..., Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], command: list[str]
) -> None:
    folder = run(ours("a", 0, reward=0.0))
    with pytest.raises(SystemExit) as caught:
        main([each.replace("RUN", str(folder)).replace("OUT", str(tmp_path)) for each in command])
    assert caught.value.code == 2 and "is no finite number" in capsys.readouterr().err
