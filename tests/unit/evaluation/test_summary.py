"""Summary: figures of a run, with what is missing counted, left out or a failure, and always named."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest
from gymbox.errors import ConfigError
from gymbox.evaluation.profile import profile
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.summary import summary
from scipy import stats

from tests.unit.evaluation.conftest import line

Run = Callable[..., Path]


@pytest.fixture
def uneven(run: Run) -> RunReader:
    """a: 2 of 3; b: 0 of 1 and two errors; c: only errors, one not done; d: never begun."""
    return RunReader(
        run(
            line("a", 0, 1.0, metrics={"steps": 4}),
            line("a", 1, 0.0, calls={"cost": 0.5}),
            line("a", 2, 1.0),
            line("b", 0, 0.0),
            line("b", 1),
            line("b", 2),
            line("c", 0),
            line("c", 1),
            rows=4,
            repeats=3,
        )
    )


def test_what_is_missing_is_counted_and_left_out(uneven: RunReader) -> None:
    found = summary(uneven)
    figures = found.environments["counter"]
    assert found.missing_policy == "excluded"
    assert (figures.tasks, figures.rollouts, figures.planned) == (4, 8, 12)
    assert (figures.scored, figures.missing, figures.tasks_without_reward, figures.counted) == (4, 8, 2, 4)
    assert figures.errors == {"agent_failed": 4}
    assert (figures.mean, figures.task_mean, figures.solved) == (0.5, pytest.approx(1 / 3), 0.5)
    assert figures.metrics["steps"].mean == 4.0
    assert (figures.cost.mean, figures.cost.total, figures.cost.count) == (0.5, 0.5, 1)
    assert found.total == figures


def test_as_failures_what_was_never_begun_counts_too(uneven: RunReader) -> None:
    figures = summary(uneven, missing="as_failure").environments["counter"]
    assert figures.counted == 12
    assert figures.mean == pytest.approx(2 / 12)
    assert figures.task_mean == pytest.approx(2 / 3 / 4)
    assert figures.pass_at[3].value == 0.25
    assert figures.pass_at[3].left_out == 0


def test_tasks_with_fewer_than_k_tries_are_left_out_of_k(uneven: RunReader) -> None:
    found = summary(uneven, tasks=True)
    at = found.environments["counter"].pass_at
    assert list(at) == [1, 2, 3]
    assert (at[1].value, at[1].tasks, at[1].left_out) == (pytest.approx(1 / 3), 2, 2)
    assert (at[3].value, at[3].tasks, at[3].left_out) == (1.0, 1, 3)
    assert found.environments["counter"].pass_all[2].value == pytest.approx(1 / 3)
    told = [(task.task, task.lines, task.n, task.c, task.missing, task.mean) for task in found.tasks]
    assert told == [("a", 3, 3, 2, 0, pytest.approx(2 / 3)), ("b", 3, 1, 0, 2, 0.0), ("c", 2, 0, 0, 3, None)]


def test_tasks_have_errors_and_intervals_of_their_own(run: Run) -> None:
    rewards = [0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0]
    lines = [line(task, repeat, reward) for task in ("a", "b") for repeat, reward in enumerate(rewards)]
    reader = RunReader(run(*lines, line("c", 0, 1.0)))
    a, b, c = summary(reader, tasks=True, task_intervals=True).tasks
    assert a.standard_error == pytest.approx(stats.sem(rewards))
    expected = stats.bootstrap((rewards,), numpy.mean, method="percentile", rng=0).confidence_interval
    assert a.interval == pytest.approx((expected.low, expected.high), abs=0.126)  # one try of eight
    assert b.interval == a.interval
    assert (c.standard_error, c.interval) == (None, None)
    assert summary(reader, tasks=True).tasks[0].interval is None


def test_k_can_be_chosen_and_may_be_more_than_there_is(uneven: RunReader) -> None:
    at = summary(uneven, ks=[8]).total.pass_at
    assert (at[8].value, at[8].tasks, at[8].left_out) == (None, 0, 4)
    assert '"8"' in summary(uneven, ks=[8]).model_dump_json()


def test_subsets_have_figures_of_their_own(run: Run) -> None:
    reader = RunReader(
        run(
            line("a", reward=1.0, verifier_metadata={"level": "easy"}),
            line("b", reward=0.0, verifier_metadata={"level": "hard"}),
            line("c", verifier_metadata={"level": "hard"}),
            line("d", reward=1.0),
        )
    )
    found = summary(reader, by="verifier_metadata.level", tasks=True)
    means = {value: (figures.mean, figures.missing) for value, figures in found.subsets["counter"].items()}
    assert means == {"(none)": (1.0, 0), "easy": (1.0, 0), "hard": (0.0, 1)}
    assert [task.subset for task in found.tasks] == ["easy", "hard", "hard", "(none)"]


def test_a_field_that_no_rollout_has_is_refused_with_the_nearest(run: Run) -> None:
    reader = RunReader(run(line("a", reward=1.0, verifier_metadata={"level": "easy"}), line("b", reward=0.0)))
    with pytest.raises(
        ConfigError, match=r"has a field verifier_metadata.levl; did you mean 'verifier_metadata.level'"
    ):
        summary(reader, by="verifier_metadata.levl")
    with pytest.raises(ConfigError, match=r"has a field verifier_metadata.level.more"):
        summary(reader, by="verifier_metadata.level.more")


def test_a_field_that_may_be_there_is_none_mistyped(run: Run) -> None:
    nothing_failed = RunReader(run(line("a", reward=1.0, error=None, note=None)))
    assert list(summary(nothing_failed, by="error.kind").subsets["counter"]) == ["(none)"]
    assert list(summary(nothing_failed, by="note").subsets["counter"]) == ["(none)"]
    assert summary(RunReader(run(name="empty")), by="anything").subsets == {}


def test_an_answer_that_no_rollout_with_a_reward_has_is_refused(run: Run) -> None:
    reader = RunReader(run(line("a", 0, 1.0, metrics={"answer": "4"}), line("b", 0, 0.0, metrics={}), line("c", 0)))
    with pytest.raises(
        ConfigError, match="with a reward has a field metrics.anser for its answer; .*'metrics.answer'"
    ):
        summary(reader, answer="metrics.anser")
    assert summary(reader, answer="metrics.answer").total.no_answer == 0.5
    failed = RunReader(run(line("a", 0), name="failed"))
    assert summary(failed, answer="metrics.answer").total.no_answer is None
    said_nothing = RunReader(run(line("a", 0, 0.0, answer=None), name="nothing"))
    assert summary(said_nothing, answer="answer").total.no_answer == 1.0


def test_latency_is_told_by_percentiles(run: Run) -> None:
    took = [0.5, 9.0, 2.0, 1.25, 30.0, 4.0]
    found = summary(RunReader(run(*(line("a", n, 1.0, timings={"total": each}) for n, each in enumerate(took)))))
    latency = found.total.latency
    assert latency is not None and latency.slowest == 30.0
    assert [latency.p50, latency.p90, latency.p99] == pytest.approx(numpy.percentile(took, [50, 90, 99]))
    assert found.environments["counter"].latency == latency


def test_answers_vote(run: Run) -> None:
    answers = [("a", 1.0, " 4 "), ("a", 1.0, "4"), ("a", 0.0, "5"), ("b", 0.0, ""), ("b", 0.0, None), ("b", 1.0, 7)]
    lines = [line(task, i, reward, said=answer) for i, (task, reward, answer) in enumerate(answers)]
    found = summary(RunReader(run(*lines, repeats=3)), answer="said").total
    assert found.majority_at[3].value == 1.0
    assert found.no_answer == pytest.approx(2 / 6)
    assert summary(RunReader(lines_folder(run, lines))).total.majority_at == {}


def lines_folder(run: Run, lines: list[dict[str, object]]) -> Path:
    return run(*lines, name="again", repeats=3)


def test_an_empty_run_says_nothing_and_not_zero(run: Run) -> None:
    figures = summary(RunReader(run(rows=2))).environments["counter"]
    assert (figures.tasks, figures.missing, figures.mean, figures.solved, figures.interval) == (2, 2, None, None, None)
    assert figures.pass_at == {}
    assert figures.no_answer is None


def test_without_a_manifest_nothing_is_planned(run: Run) -> None:
    folder = run(line("a", reward=1.0, environment="one"), line("b", reward=0.0, environment="two"), rows=9)
    found = summary(RunReader(folder / "rollouts.jsonl"))
    assert found.total.planned is None
    assert (found.total.tasks, found.total.mean) == (2, 0.5)
    assert found.environments["one"].mean == 1.0


def test_a_profile_sorts_tasks_into_kinds(run: Run) -> None:
    bad = {"stage": "verify", "kind": "verify_failed", "detail": "x", "retryable": False, "logs": ""}
    rewards = {"easy": (1.0, 1.0), "hard": (0.0, 0.0), "wild": (0.0, 1.0), "good": (0.3, 1.0, 1.0), "few": (1.0,)}
    lines = [line(task, i, reward) for task, found in rewards.items() for i, reward in enumerate(found)]
    lines += [line("bad", 0, 1.0), line("bad", 1, error=bad), line("fell", 0), line("fell", 1)]
    found = profile(RunReader(run(*lines)), unstable=0.5)
    kinds = {task.figures.task: task.kind for task in found.tasks}
    assert kinds == {
        "easy": "too_easy",
        "hard": "too_hard",
        "wild": "unstable",
        "good": "useful",
        "few": "unknown",
        "bad": "broken",
        "fell": "unknown",  # its agent's fault, not the task's
    }
    assert found.counts["unknown"] == 2
    assert next(task.why for task in found.tasks if task.kind == "broken") == "verify_failed 1 of 2"


def test_of_a_shard_only_its_part_is_planned(run: Run) -> None:
    folder = run(line("a", reward=1.0), line("c", reward=1.0), rows=5)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["inputs"]["runner"]["shard"] = "1/2"
    (folder / "manifest.json").write_text(json.dumps(manifest))
    figures = summary(RunReader(folder)).total
    assert (figures.planned, figures.tasks, figures.missing) == (3, 3, 1)
