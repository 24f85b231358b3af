"""Report: figures, rows and trajectories of runs, in three formats."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox.errors import ConfigError
from gymbox.evaluation.compare import comparison
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.summary import summary
from gymbox.reports.files import whole, write_report
from gymbox.reports.page import PageOptions
from gymbox.reports.report import Report
from gymbox.reports.sources import Source

from tests.unit.reports.conftest import embedded, line, trajectories

Run = Callable[..., Path]
Reported = Callable[..., tuple[Report, str]]


@pytest.fixture
def uneven(run: Run) -> Path:
    """counter: a 1 and 0, b an error; weather: c 0.5."""
    return run(
        line("a", 0, 1.0, calls={"cost": 0.5, "count": 2}, began=100.0, _ng_rollout_index=0),
        line("a", 1, 0.0, began=101.0, _ng_rollout_index=1),
        line("b", 0),
        line("c", 0, 0.5, environment="weather"),
    )


def test_the_figures_are_those_of_the_evaluation(uneven: Path, reported: Reported) -> None:
    report, page = reported(uneven, success=0.5, level=0.9, missing="as_failure", ks=[1, 2])
    expected = summary(RunReader(uneven), success=0.5, level=0.9, missing="as_failure", ks=[1, 2], tasks=True)
    assert report.runs[0].summary == expected
    assert Report.model_validate(embedded(page, "report")) == report


def test_rows_have_what_the_table_shows(uneven: Path, reported: Reported) -> None:
    _, page = reported(uneven)
    rows = embedded(page, "rows-0")
    assert rows["environments"] == ["counter", "weather"]
    assert rows["tasks"] == [[0, "a", "do a"], [0, "b", "do b"], [1, "c", "do c"]]
    assert rows["task"] == [0, 0, 1, 2]
    assert rows["reward"] == [1, 0, None, 0.5]
    assert ([rows["errors"][kind] if kind >= 0 else None for kind in rows["error"]], rows["details"]) == (
        [None, None, "agent_failed", None],
        {"2": "it fell"},
    )
    assert rows["cost"] == [0.5, None, None, None]
    assert rows["began"] == [100, 101, None, None]
    assert rows["number"] == [1, 2, 3, 4]


def test_a_rollout_without_reward_and_error_has_none(tmp_path: Path, reported: Reported) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(line("a", 0, None) | {"error": None}) + "\n")
    assert embedded(reported(path)[1], "rows-0")["errors"] == ["no_reward"]


def test_every_rollout_has_its_trajectory(uneven: Path, reported: Reported) -> None:
    found = trajectories(reported(uneven)[1])
    assert list(found) == ["counter-a-0", "counter-a-1", "counter-b-0", "weather-c-0"]
    assert [found[id]["line"] for id in found] == [1, 2, 3, 4]
    assert found["counter-b-0"]["error"]["detail"]["text"] == "it fell"


def test_plots_are_of_all_and_of_each_environment(uneven: Path, reported: Reported) -> None:
    plots = reported(uneven)[0].runs[0].plots
    assert list(plots) == ["", "counter", "weather"]
    assert [sum(each.rewards.counts) for each in plots.values() if each.rewards] == [3, 2, 1]
    assert [each.timeline is not None for each in plots.values()] == [True, True, False]


def test_how_a_run_was_made_is_told(uneven: Path, reported: Reported) -> None:
    run = reported(uneven)[0].runs[0]
    assert (run.status, run.facts["inputs.environments.counter.rows"], run.facts["run"]) == (
        "finished",
        "3",
        json.loads((uneven / "manifest.json").read_text())["run"],
    )
    assert run.started_at is not None


def test_rollouts_that_were_set_aside_can_be_read_and_count_in_nothing(uneven: Path, reported: Reported) -> None:
    before = line("b", 0, began=50.0) | {"rollout_id": "counter-b-0-before"}
    (uneven / "failures.jsonl").write_text(json.dumps(before) + "\n")
    report, page = reported(uneven)
    assert report.runs[0].set_aside == 1
    assert report.runs[0].summary == summary(RunReader(uneven), tasks=True)
    assert embedded(page, "rows-0")["aside"] == [0, 0, 0, 0, 1]
    assert trajectories(page)["counter-b-0-before"]["file"] == "failures.jsonl"
    timeline = report.runs[0].plots[""].timeline
    assert timeline is not None
    assert timeline.began == 100.0


def test_a_run_of_which_all_was_set_aside_still_has_a_report(run: Run, reported: Reported) -> None:
    folder = run(rows=1)
    (folder / "failures.jsonl").write_text(json.dumps(line("a", 0)) + "\n")
    report, page = reported(folder)
    assert (report.runs[0].summary.total.rollouts, report.runs[0].summary.total.missing) == (0, 1)
    assert list(trajectories(page)) == ["counter-a-0"]


def test_where_room_is_short_failures_and_first_tries_come_first(run: Run, reported: Reported) -> None:
    chance = random.Random(1)

    def said() -> dict[str, Any]:
        return {"output": [{"type": "message", "role": "assistant", "content": chance.randbytes(60_000).hex()}]}

    lines = [line(task, repeat, 1.0, response=said()) for task in "abcd" for repeat in range(16)]
    _, page = reported(run(*lines, line("z", 0)), page=PageOptions(size=3_000_000, text=10_000_000))
    found = trajectories(page)
    assert 1_500_000 < len(page) <= 3_000_000
    have = [id for id, told in found.items() if told is not None]
    assert "counter-z-0" in have
    assert 0 < len(have) < len(found)
    assert {f"counter-{task}-0" for task in "abcd"} <= {*have}
    assert not {f"counter-{task}-15" for task in "abcd"} & {*have}


def test_a_run_that_changes_while_it_is_read_is_refused(uneven: Path) -> None:
    source = Source(RunReader(uneven))
    lines = (uneven / "rollouts.jsonl").read_text().splitlines(keepends=True)
    (uneven / "rollouts.jsonl").write_text("".join(reversed(lines)))
    with pytest.raises(ConfigError, match="was changed while it was read; make the report again"):
        list(source.lines([0, 1]))


def test_several_runs_are_compared_with_the_first(run: Run, reported: Reported) -> None:
    first = run(line("a", 0, 0.0), line("b", 0, 1.0), name="first")
    second = run(line("a", 0, 1.0), line("b", 0, 1.0), name="second")
    report, page = reported(first, second, alpha=0.2)
    assert report.comparison == comparison([RunReader(first), RunReader(second)], alpha=0.2)
    assert [each.name for each in report.runs] == ["first", "second"]
    assert (report.title, len(trajectories(page, 1))) == ("first · second", 2)


def test_runs_of_one_name_are_told_apart(run: Run, reported: Reported) -> None:
    first, second = run(line("a", 0, 0.0), name="x/run"), run(line("a", 0, 1.0), name="y/run")
    names = [each.name for each in reported(first, second)[0].runs]
    assert names == [str(first), str(second)]


def test_markdown_has_the_same_figures(uneven: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    report = write_report([RunReader(uneven)], {"md": path}, title="Mine")
    told = path.read_text()
    assert told.startswith("# Mine\n\n## run\n\nFinished, ")
    total = report.runs[0].summary.total
    assert f"{total.missing} rollouts without a reward, left out of the figures (agent\\_failed 1)." in told
    assert f"| mean reward | 0.5 | 0.5 | {total.mean:.4g} |" in told
    assert "| b | counter | 0 of 0 | unknown | 1 | agent\\_failed 1 |" in told


def test_markdown_of_a_comparison_tells_what_got_better_and_worse(run: Run, tmp_path: Path) -> None:
    first = run(line("a", 0, 0.0), line("b", 0, 1.0), name="first")
    second = run(line("a", 0, 1.0), line("b", 0, 0.5), name="second")
    with (second / "rollouts.jsonl").open("a") as file:
        file.write('{"torn')
    path = tmp_path / "report.md"
    write_report([RunReader(first), RunReader(second)], {"md": path})
    told = path.read_text()
    assert "| counter | second | no difference shown | 0.25 |" in told
    assert "### Worse in second: counter\n\n| task | first | second |\n|---|---|---|\n| b | 1 | 0.5 |" in told
    assert "### Better in second: counter" in told
    assert "The last line, of 6 bytes, is not whole and was left out." in told


def test_no_name_ends_a_cell_or_a_link_of_the_markdown(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    write_report([RunReader(run(line("a|b\n[x](y)<img>\u202e\ud800", 0, 1.0)))], {"md": path})
    assert "| a\\|b\\\\n\\[x\\](y)\\<img\\>\\\\u202e\\\\ud800 | counter |" in path.read_text()


def test_json_is_the_report(uneven: Path, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    report = write_report([RunReader(uneven)], {"json": path})
    assert Report.model_validate_json(path.read_bytes()) == report


def test_a_file_that_cannot_be_written_leaves_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    path.write_text("before")
    with pytest.raises(RuntimeError), whole(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_text() == "before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["report.html"]
    with pytest.raises(
        ConfigError, match="cannot write .*nowhere/report.html: No such file or directory; give another"
    ):
        with whole(tmp_path / "nowhere" / "report.html"):
            pass


ASKED = [{"role": "user", "content": "do a"}, {"role": "assistant", "content": "first"}]
ANSWER = {"role": "assistant", "content": "second"}


@pytest.mark.parametrize(
    ("dialect", "asked", "answer"),
    [
        ("responses", {"input": ASKED}, None),
        ("responses", {"input": ASKED}, {"output": [{"type": "message", **ANSWER}]}),
        ("chat", {"messages": ASKED}, {"choices": [{"message": ANSWER}]}),
        ("messages", {"messages": ASKED}, {"content": [{"type": "text", "text": "second"}]}),
    ],
)
def test_of_a_failed_rollout_the_recorded_calls_tell_how_far_it_came(
    run: Run, reported: Reported, dialect: str, asked: dict[str, Any], answer: dict[str, Any] | None
) -> None:
    folder = run(line("a", 0, sandbox="s.1.2"), line("b", 0, sandbox="t"))
    (folder / "calls").mkdir()
    calls = [
        {"rollout": "s.1.2", "call": 1, "dialect": dialect, "digest": "d", "request": asked, "response": answer},
        {"rollout": "s.1.2", "call": 0, "dialect": "responses", "digest": "d", "request": {"input": "do a"}},
        {"rollout": "t", "call": 0, "dialect": "responses", "digest": "d", "request": {"input": "do b"}},
        {"rollout": "other", "call": 7, "dialect": "responses", "digest": "d", "request": {"input": "x"}},
    ]
    (folder / "calls" / "1.jsonl").write_text("".join(json.dumps(call) + "\n" for call in calls))
    found = trajectories(reported(folder)[1])
    expected = ["first", "second"] if answer else ["first"]
    assert [item["text"] for item in found["counter-a-0"]["done"]] == expected
    assert (found["counter-a-0"]["answered"], found["counter-b-0"]["done"]) == (False, [])
