from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox.environment import Environment
from gymbox.errors import ErrorKind, RolloutError, Stage
from gymbox.plan import Plan
from gymbox.printable import printable
from gymbox.progress import Progress, duration, short, show
from gymbox.results import RunFolder
from gymbox.rollout import RolloutResult
from gymbox.run_control import RunControl
from gymbox.runner import Summary
from gymbox.runner_settings import RunnerSettings
from gymbox.scores import Score
from gymbox_sandbox.responses import Response, Usage
from rich.console import Console


def console(terminal: bool = False) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=80, color_system=None, legacy_windows=False)


def text(of: Console) -> str:
    assert isinstance(of.file, io.StringIO)
    return of.file.getvalue()


@pytest.fixture
def plan(tmp_path: Path) -> Plan:
    environments = []
    for name in ("counter", "weather"):
        folder = tmp_path / name
        (folder / "data").mkdir(parents=True)
        (folder / "environment.yaml").write_text("description: x")
        row = '{"responses_create_params": {"input": "x"}}\n'
        (folder / "data" / "example.jsonl").write_text(row * 3)
        environments.append(Environment.load(folder))
    return Plan(environments, RunnerSettings(concurrency=2))


@pytest.fixture
def folder(tmp_path: Path, plan: Plan) -> RunFolder:
    return RunFolder.open(tmp_path / "run", inputs={}, settings={}, planned=len(plan), resume=False)


def result(reward: float | None = 1.0, **error: Any) -> RolloutResult:
    return RolloutResult(
        rollout_id="r",
        task_id="t\x1b[31m",
        environment="counter",
        reward=reward,
        response=Response(usage=Usage(input_tokens=1200, output_tokens=34, total_tokens=1234)) if not error else None,
        error=RolloutError(stage=Stage.AGENT, kind=ErrorKind.OOM_KILLED, retryable=False, **error) if error else None,
    )


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


async def test_without_a_terminal_it_prints_lines(plan: Plan, folder: RunFolder) -> None:
    out, clock = console(), Clock()
    slots = list(plan)
    with Progress(out, plan, folder, lambda: 2, RunControl(clock), clock) as progress:
        for slot in slots[:4]:
            progress.started(slot)
        progress.entered(slots[2], Stage.PROVISION)
        progress.entered(slots[2], Stage.AGENT)
        clock.now = 10
        progress.ended(slots[0], result())
        progress.ended(slots[1], result())
        progress.ended(slots[3], None)

    first, last = text(out).splitlines()
    assert first == f"run {folder.manifest.run}: 6 rollouts of counter, weather → {folder.path}"
    assert last == (
        "2/6 done · 1 running (1 with the agent) · 0 failed · reward 1.000 · 2 sandboxes · 2.5k tokens · 20.0 s left"
    )


async def test_no_time_is_guessed_at_the_start_nor_when_nothing_is_left(plan: Plan, folder: RunFolder) -> None:
    out, clock = console(), Clock()
    with Progress(out, plan, folder, lambda: 1, clock=clock) as progress:
        for number, slot in enumerate(plan, 1):
            progress.started(slot)
            progress.entered(slot, Stage.PROVISION)
            clock.now += 1
            if number == 1:
                progress._tell()
            progress.ended(slot, result())

    _, first, last = text(out).splitlines()
    assert first == "0/6 done · 1 running (1 starting) · 0 failed · reward – · 1 sandbox · 0 tokens"
    assert last == "6/6 done · 0 running · 0 failed · reward 1.000 · 1 sandbox · 7.4k tokens"


async def test_it_says_what_holds_the_sandboxes(plan: Plan, tmp_path: Path) -> None:
    out, made = console(), {"inputs": {}, "settings": {}, "planned": 6, "resume": False}
    folder = RunFolder.open(tmp_path / "held", provider="process provider (bubblewrap)", **made)
    with Progress(out, plan, folder):
        pass

    assert f"of counter, weather, process provider (bubblewrap) → {folder.path}" in text(out)


async def test_it_says_who_does_the_tasks(plan: Plan, tmp_path: Path) -> None:
    def said(**inputs: Any) -> str:
        out, path = console(), tmp_path / f"said-{len(list(tmp_path.iterdir()))}"
        folder = RunFolder.open(path, inputs=inputs, settings={}, provider="docker", planned=6, resume=False)
        with Progress(out, plan, folder):
            pass
        return text(out).splitlines()[0]

    loop, mine = {"_target_": "gymbox.agents.tool_loop.ToolLoop"}, {"_target_": "mine.Careful"}
    model = {"_target_": "gymbox.models.openai.OpenAIModel", "name": "big\x1b[2J"}
    replayed = {"_target_": "gymbox.models.replay.ReplayModel"}
    assert r"of counter, weather by tool_loop with big\x1b[2J, docker → " in said(agent=loop, model=model)
    agents = {"a": {"agent": loop, "model": model}, "b": {"agent": mine, "model": replayed}}
    assert "by Careful with replay, a with big" in said(agent=mine, model=replayed, agents=agents)


async def test_a_paused_run_says_so_and_guesses_no_time(plan: Plan, folder: RunFolder) -> None:
    out, control = console(), RunControl()
    with Progress(out, plan, folder, control=control) as progress:
        for slot in list(plan)[:2]:
            progress.started(slot)
            progress.ended(slot, result())
        progress._tell()
        control.pause()
    _, before, after = text(out).splitlines()
    assert " left" in before and "paused" not in before
    assert after == "2/6 done · paused · 0 running · 0 failed · reward 1.000 · 2.5k tokens"


async def test_a_pause_that_is_over_is_no_part_of_the_time_left(plan: Plan, folder: RunFolder) -> None:
    out, clock = console(), Clock()
    control = RunControl(clock)
    with Progress(out, plan, folder, control=control, clock=clock) as progress:
        for slot in list(plan)[:2]:
            progress.started(slot)
        clock.now = 10
        control.pause()
        clock.now = 3610
        control.resume()
        for slot in list(plan)[:2]:
            progress.ended(slot, result())

    assert text(out).splitlines()[-1].endswith(" · 20.0 s left")


async def test_lines_come_by_themselves_while_nothing_ends(
    plan: Plan, folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncio

    monkeypatch.setattr("gymbox.progress.SHORTEST", 0.001)
    told = asyncio.Event()

    class Lines(io.StringIO):
        def write(self, line: str) -> int:
            if "0/6 done" in line:
                told.set()
            return super().write(line)

    with Progress(Console(file=Lines(), width=200), plan, folder):
        async with asyncio.timeout(10):
            await told.wait()


async def test_on_a_terminal_it_shows_a_table_that_fits(plan: Plan, folder: RunFolder) -> None:
    out = console(terminal=True)
    with Progress(out, plan, folder, lambda: 3) as progress:
        slot = next(iter(plan))
        progress.started(slot)
        progress.ended(slot, result(0.5))

    shown = text(out)
    assert "1/3" in shown and "1/6" in shown and "0.500" in shown and "3 sandboxes" in shown
    assert all(len(line) <= 140 for line in shown.splitlines())


async def test_the_first_failure_of_a_kind_is_told_at_once_without_control_characters(
    plan: Plan, folder: RunFolder
) -> None:
    out = console()
    slot = next(iter(plan))
    with Progress(out, plan, folder) as progress:
        for _ in range(3):
            progress.started(slot)
            progress.ended(slot, result(None, detail="killed\x1b]0;title\x07", logs="one\nlast \x9b words\n"))

    told = text(out)
    assert told.count("first oom_killed") == 1
    assert r"first oom_killed (counter task t\x1b[31m, agent): killed\x1b]0;title\x07" in told
    assert r"its log ends with: last \x9b words" in told
    assert "3/6 done · 0 running · 3 failed · reward –" in told


async def test_a_resumed_run_counts_what_is_there(plan: Plan, tmp_path: Path) -> None:
    def opened() -> RunFolder:
        return RunFolder.open(tmp_path / "resumed", inputs={}, settings={}, planned=6, resume=True)

    first = opened()
    record = {"rollout_id": "a", "task_id": "t", "environment": "counter", "reward": 1.0, "error": None, "timings": {}}
    await first.add({**record, "usage": {"input_tokens": 7, "output_tokens": 3}})
    await first.close("interrupted")

    out = console()
    with Progress(out, plan, opened()):
        pass
    assert "1/6 done · 0 running · 0 failed · reward 1.000 · 10 tokens" in text(out)


def summary(**changes: Any) -> Summary:
    score = Score(rollouts=2, scored=1, reward_sum=1.0, input_tokens=5, seconds=3.0)
    fields: dict[str, Any] = {
        "run": "abc",
        "folder": Path("runs/my run"),
        "status": "finished",
        "planned": 2,
        "done": 2,
        "total": score,
        "environments": {"counter": score},
    }
    return Summary(**{**fields, **changes})


def shown(summary: Summary) -> str:
    out = console()
    commands = {"resume": "gymbox run … runner.resume=true", "onward": "/my/gymbox run environment=counter"}
    show(summary, out, program="/my/gymbox", **commands)
    return text(out)


def test_no_heading_of_the_summary_is_cut_at_80_columns() -> None:
    score = Score(
        rollouts=1000, scored=1000, reward_sum=1.0, input_tokens=999_900_000, output_tokens=10**8, seconds=1e6
    )
    told = shown(summary(environments={"short_answers": score, "unit_tests": score}, total=score))
    assert "…" not in told.partition("results")[0]
    assert "with waits" in told and "tokens in" in told and "short_answers" in told


def test_the_summary_says_where_the_results_are_and_what_to_try_next() -> None:
    told = shown(summary())

    assert "run abc: finished" in told and "1.000" in told and "1.50" in told
    assert "results  runs/my run/rollouts.jsonl" in told
    assert "look     /my/gymbox show 'runs/my run'\n" in told
    assert "report   /my/gymbox eval report 'runs/my run'\n" in told
    assert "next     /my/gymbox run environment=counter\n" in told


def test_the_summary_of_failures_gives_an_example_and_the_way_to_the_rest() -> None:
    score = Score(rollouts=3, errors={"oom_killed": 2}, examples={"oom_killed": "t: \x1b boom"})
    told = shown(summary(total=score, environments={"a": score, "b": score}))

    assert r"2 × oom_killed, such as t: \x1b boom" in told
    assert "why      /my/gymbox show 'runs/my run' oom_killed\n" in told
    assert "(all)" in told and "–" in told


def test_the_summary_of_an_interrupted_run_says_how_to_go_on() -> None:
    assert "go on    gymbox run … runner.resume=true" in shown(summary(done=1, status="interrupted"))


def test_the_summary_of_a_run_in_which_nothing_ended_has_no_empty_table() -> None:
    told = shown(summary(done=0, status="interrupted", total=Score(), environments={}))

    assert "run abc: interrupted; no rollout has ended\n" in told and "tokens in" not in told
    assert "show" not in told and "go on    gymbox run" in told


def test_the_summary_says_how_to_do_failed_rollouts_again_and_why_a_run_gave_up() -> None:
    score = Score(rollouts=2, errors={"model_unavailable": 2}, examples={"model_unavailable": "t: no host"})
    told = shown(summary(total=score, environments={"a": score}, planned=9, status="failed", gave_up="all: \x1b no"))

    assert r"gave up: all: \x1b no" in told
    assert "go on    gymbox run … runner.resume=true\n" in told
    assert "again    gymbox run … runner.resume=true runner.retry_failed=true\n" in told
    assert "next" not in told


@pytest.mark.parametrize(
    ("said", "call"),
    [
        ("950", lambda: short(950)),
        ("12.3k", lambda: short(12_345)),
        ("4.5M", lambda: short(4_500_000)),
        ("4.2 s", lambda: duration(4.21)),
        ("3 min 20 s", lambda: duration(200)),
        ("2 h 5 min", lambda: duration(7500)),
        (r"a\nb\u202e\ud800\x7f", lambda: printable("a\nb\u202e\ud800\x7f")),
        ("aaaa…", lambda: printable("a" * 9, 5)),
    ],
)
def test_figures_are_readable(said: str, call: Callable[[], str]) -> None:
    assert call() == said
