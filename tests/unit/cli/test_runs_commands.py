from __future__ import annotations

import json
from pathlib import Path

import pytest
from gymbox.cli import main
from gymbox.results import RunFolder


def leave(*arguments: str) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["run", *arguments])
    return int(str(caught.value.code or 0))


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A state folder in which nothing is live."""
    monkeypatch.setattr("gymbox.cli.places.state_folder", lambda: tmp_path / "state")
    monkeypatch.chdir(tmp_path)
    return tmp_path / "state"


@pytest.fixture
def run(tmp_path: Path, state: Path) -> RunFolder:
    return RunFolder.open(tmp_path / "out", inputs={}, settings={}, planned=1, resume=False, run="abcd")


def test_where_nothing_is_live_that_is_said(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert leave("status") == 0
    assert leave("ls", "--json") == 0
    assert capsys.readouterr().out == "no run is live here\n[]\n"
    assert leave("cancel") == 2
    assert "no run of yours is live on this machine" in capsys.readouterr().err


def test_a_run_that_another_user_does_is_told_as_live_and_left_to_them(
    run: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    assert leave("status", "out", "--json") == 0
    view = json.loads(capsys.readouterr().out)
    assert (view["status"], view["live"]) == ("running", True)
    assert leave("pause", "out") == 1
    assert "is done by another user" in capsys.readouterr().err


async def test_a_run_that_is_through_needs_no_way_on(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    line = {"rollout_id": "r", "task_id": "t", "environment": "a", "reward": 1.0, "error": None, "timings": {}}
    await run.add(line)
    await run.close("finished")

    assert leave("resume", "out") == 1
    assert capsys.readouterr().err == "gymbox: run abcd is not live: finished after 1 of 1 rollouts\n"


async def test_each_environment_of_several_has_its_line(run: RunFolder, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("b", "a"):
        error = {"kind": "agent_failed", "stage": "agent", "detail": "boom"} if name == "b" else None
        reward = None if error else 0.5
        await run.add(
            {"rollout_id": name, "task_id": "t", "environment": name, "reward": reward, "error": error, "timings": {}}
        )
    await run.close("interrupted")

    assert leave("status", "out") == 0
    out = capsys.readouterr().out
    assert "  a: 1 done, 0 failed, reward 0.500\n  b: 1 done, 1 failed, reward –\n" in out
    assert "1 × agent_failed, such as t: boom" in out
