from __future__ import annotations

import json
from pathlib import Path

import pytest
from gymbox.cli.tail import Results, follow_folder, told


def record(number: int, *, failed: bool = False) -> bytes:
    error = {"kind": "agent_failed", "stage": "agent", "detail": "boom\x1b[31m"} if failed else None
    reward = None if failed else 1.0
    fields = {"environment": "counter", "task_id": f"t{number}", "_ng_rollout_index": 2, "timings": {"total": 1.25}}
    return json.dumps({**fields, "reward": reward, "error": error}).encode() + b"\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "rollouts.jsonl"


def test_lines_come_once_and_a_torn_one_when_it_is_whole(file: Path) -> None:
    results = Results(file.parent)
    assert list(results) == []
    file.write_bytes(record(0) + b'{"torn"')
    assert list(results) == [record(0)]
    assert list(results) == []
    with file.open("ab") as more:
        more.write(b": 1}\n")
    assert list(results) == [b'{"torn": 1}\n']
    results.close()


def test_a_resume_that_replaces_the_file_repeats_and_loses_nothing(file: Path) -> None:
    results = Results(file.parent)
    file.write_bytes(record(0, failed=True) + record(1))
    assert len(list(results)) == 2
    with file.open("ab") as more:
        more.write(record(2))
    new = file.with_suffix(".new")
    new.write_bytes(record(1) + record(2) + record(0))
    new.replace(file)

    assert list(results) == [record(2), record(0)]
    file.unlink()
    assert list(results) == []
    results.close()


@pytest.mark.parametrize(
    ("lines", "failed", "shown"), [(2, False, ["t1", "t2"]), (0, False, []), (9, True, ["t1"]), (9, False, None)]
)
def test_the_last_lines_are_shown(
    file: Path, lines: int, failed: bool, shown: list[str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_bytes(record(0) + record(1, failed=True) + b"no json\n" + record(2))

    follow_folder(file.parent, lambda: False, lines if lines != 2 else 3, failed=failed, follow=True, as_json=False)
    printed = [row.split()[1] for row in capsys.readouterr().out.splitlines()]
    assert printed == (["t0", "t1", "t2"] if shown is None else shown)


def test_what_comes_is_shown_until_the_run_ends(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_bytes(record(0))
    steps = iter([True, False])

    def goes_on() -> bool:
        with file.open("ab") as more:
            more.write(record(1))
        return next(steps)

    follow_folder(file.parent, goes_on, 0, failed=False, follow=True, as_json=True)
    assert capsys.readouterr().out.encode() == record(1) * 2


def test_a_result_is_one_line_that_can_do_nothing_to_a_terminal() -> None:
    assert told(json.loads(record(3))) == "counter t3 #2  reward 1.0  1.2 s"
    assert told(json.loads(record(3, failed=True))) == "counter t3 #2  agent_failed (agent): boom\\x1b[31m  1.2 s"
