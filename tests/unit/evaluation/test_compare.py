"""Compare: runs of the same tasks side by side, and what cannot be compared refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from gymbox.cli import main
from gymbox.errors import ConfigError
from gymbox.evaluation import formulas
from gymbox.evaluation.compare import comparison
from gymbox.evaluation.parts import Planned, planned_of
from gymbox.evaluation.renames import with_names
from gymbox.evaluation.rollouts import RunReader
from gymbox.evaluation.summary import summary

from tests.unit.evaluation.conftest import line

Run = Callable[..., Path]


def lines(rewards: list[float | None], repeat: int = 0, **more: Any) -> list[dict[str, Any]]:
    return [line(f"t{number:02}", repeat, reward, **more) for number, reward in enumerate(rewards)]


def test_one_try_each_is_compared_by_mcnemar(run: Run) -> None:
    first = run(*lines([1.0] * 12 + [0.0, 0.0]), name="first")
    second = run(*lines([1.0] * 2 + [0.0] * 10 + [1.0, 0.0]), name="second")
    [found] = comparison([RunReader(first), RunReader(second)]).differences
    assert (found.paired, found.test, found.p) == (14, "mcnemar", pytest.approx(formulas.mcnemar(10, 1)))
    assert (found.difference, found.verdict) == (pytest.approx(-9 / 14), "worse")
    assert len(found.worse) == 10
    assert [(task.task, task.first, task.second) for task in found.better] == [("t12", 0.0, 1.0)]
    assert found.interval is not None and found.interval[0] < found.difference < found.interval[1] < 0


def test_repeats_are_compared_task_by_task(run: Run) -> None:
    first = run(*lines([0.0] * 8), *lines([0.0] * 8, 1), name="first")
    second = run(*lines([1.0] * 8), *lines([0.0] * 8, 1), name="second")
    [found] = comparison([RunReader(first), RunReader(second)]).differences
    assert (found.test, found.p) == ("sign_flip", pytest.approx(2 / 2**8))
    assert (found.verdict, found.difference, found.standard_error) == ("better", 0.5, 0.0)


def test_a_renamed_environment_has_what_was_planned_of_it(run: Run) -> None:
    before = run(line("a", 0, 1.0), line("b", 0, 0.0), rows=3, name="before")
    after = run(*(line(task, 0, 1.0, environment="sums") for task in "ab"), rows=3, name="after")
    readers = RunReader(before), RunReader(after, names={"sums": "counter"})
    assert [planned_of(reader) for reader in readers] == [{"counter": Planned(3, 1)}] * 2
    assert readers[1].dataset_of("counter") == "d1" and readers[1].dataset_of("sums") is None
    found = comparison(readers)
    assert [each.environment for each in found.differences] == ["counter"]
    assert [(each.run, each.rollouts, each.missing) for each in found.runs] == [("before", 2, 1), ("after", 2, 1)]
    [part] = summary(readers[1]).environments.items()
    assert (part[0], part[1].rollouts, part[1].planned) == ("counter", 2, 3)


def test_settings_by_environment_go_with_its_new_name() -> None:
    inputs = {"runner": {"limit": {"sums": 2, "_default": 5}, "repeats": 4}, "environments": {"sums": {"rows": 9}}}
    assert with_names(inputs, {"sums": "counter"}) == {
        "runner": {"limit": {"counter": 2, "_default": 5}, "repeats": 4},
        "environments": {"counter": {"rows": 9}},
    }
    assert inputs["environments"] == {"sums": {"rows": 9}}


def test_two_environments_of_a_run_are_never_called_the_same(run: Run) -> None:
    path = run(line("a", 0, 1.0), line("a", 0, 1.0, environment="sums"))
    with pytest.raises(ConfigError, match="of counter, sums, two would have one name"):
        RunReader(path, names={"sums": "counter"})


def test_many_comparisons_are_adjusted_together(run: Run) -> None:
    first = run(*lines([1.0] * 6 + [0.0]), *lines([1.0] * 6 + [0.0], environment="weather"), name="first")
    other = run(*lines([0.0] * 7), *lines([1.0] * 6 + [0.0], environment="weather"), name="other")
    found = comparison([RunReader(first), RunReader(other), RunReader(first)]).differences
    assert [each.environment for each in found] == ["counter", "weather"] * 2
    assert found[0].p == pytest.approx(2 / 2**6)
    assert found[0].p_holm == pytest.approx(4 * 2 / 2**6)
    assert found[0].verdict == "no_difference_shown"  # though alone it would be


def test_pairs_without_a_reward_are_left_out_or_failures(run: Run) -> None:
    first = run(*lines([1.0, 1.0, None]), name="first")
    second = run(*lines([1.0, None, None]), name="second")
    [found] = comparison([RunReader(first), RunReader(second)]).differences
    assert (found.paired, found.left_out, found.difference, found.interval) == (1, 2, 0.0, None)
    [found] = comparison([RunReader(first), RunReader(second)], missing="as_failure").differences
    assert (found.paired, found.left_out, found.difference) == (3, 0, pytest.approx(-1 / 3))


def test_nothing_to_pair_is_unknown(run: Run) -> None:
    first, second = run(*lines([1.0]), name="first"), run(*lines([None]), name="second")
    [found] = comparison([RunReader(first), RunReader(second)]).differences
    assert (found.paired, found.p, found.p_holm, found.difference, found.verdict) == (0, None, None, None, "unknown")


def by_city(*rewards: tuple[str, list[float | None]], **more: Any) -> list[dict[str, Any]]:
    return [
        line(f"{city}{number}", 0, reward, city=city, **more)
        for city, each in rewards
        for number, reward in enumerate(each)
    ]


def test_subsets_are_compared_as_environments_are_and_adjusted_for_their_number(run: Run) -> None:
    same: tuple[str, list[float | None]] = ("oslo", [1.0, 0.0])
    first = run(*by_city(("bern", [1.0] * 8), same), *by_city(("bern", [1.0, None]), environment="sums"), name="first")
    other = run(*by_city(("bern", [0.0] * 8), same), *by_city(("bern", [0.0, 1.0]), environment="sums"), name="other")
    readers = [RunReader(first), RunReader(other)]
    found = comparison(readers, by="city")
    assert found.by == "city"
    assert found.differences == comparison(readers).differences  # what is said of the whole stays
    bern, oslo, sums = found.subsets
    assert [(each.environment, each.subset) for each in found.subsets] == [
        ("counter", "bern"),
        ("counter", "oslo"),
        ("sums", "bern"),
    ]
    p = formulas.mcnemar(8, 0)
    assert (bern.paired, bern.test, bern.p, bern.p_holm) == (8, "mcnemar", p, pytest.approx(3 * p))
    assert (bern.verdict, bern.difference, len(bern.worse), bern.better) == ("worse", -1.0, 8, [])
    assert (oslo.verdict, oslo.p_holm, oslo.difference) == ("no_difference_shown", 1.0, 0.0)
    assert (sums.paired, sums.left_out, sums.verdict) == (1, 1, "no_difference_shown")
    assert [(each.environment, each.subset) for each in found.worse] == [("counter", None), ("counter", "bern")]


def test_a_subset_that_only_one_has_is_told(run: Run) -> None:
    first = run(*by_city(("bern", [1.0])), name="first")
    second = run(*by_city(("bern", [1.0]), ("oslo", [0.0, 1.0])), name="second")
    bern, oslo = comparison([RunReader(first), RunReader(second)], common=True, by="city").subsets
    assert (bern.subset, bern.paired, bern.only_in_one) == ("bern", 1, 0)
    assert (oslo.subset, oslo.paired, oslo.only_in_one, oslo.verdict) == ("oslo", 0, 2, "unknown")


def test_cost_and_time_stand_beside(run: Run) -> None:
    first = run(*lines([1.0, 1.0], calls={"cost": 0.5, "output_tokens": 10}), name="first")
    second = run(*lines([1.0, None], timings={"total": 1.0}), name="second")
    one, two = comparison([RunReader(first), RunReader(second)]).runs
    assert (one.run, one.cost.total, one.seconds.mean, one.output_tokens.total) == ("first", 1.0, 2.0, 20)
    assert (two.cost.mean, two.seconds.mean, two.missing, two.errors) == (None, 1.0, 1, {"agent_failed": 1})


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        ({"dataset": "d2"}, "different datasets of counter"),
        ({"more": [line("t09", reward=1.0)]}, "has of counter: t09"),
        ({"more": [line("x", reward=1.0, environment="weather")]}, "has environment weather"),
    ],
)
def test_runs_of_different_tasks_are_refused_unless_common(run: Run, other: dict[str, Any], fault: str) -> None:
    first = run(*lines([1.0, 0.0]), name="first")
    second = run(*lines([1.0, 1.0]), *other.pop("more", []), name="second", **other)
    readers = [RunReader(first), RunReader(second)]
    with pytest.raises(ConfigError, match=fault):
        comparison(readers)
    [found] = comparison(readers, common=True).differences
    assert (found.paired, found.difference) == (2, 0.5)


def test_runs_with_nothing_in_common_are_refused(run: Run) -> None:
    first = RunReader(run(*lines([1.0]), name="first"))
    with pytest.raises(ConfigError, match="two runs or more"):
        comparison([first])
    weather = RunReader(run(*lines([1.0], environment="weather"), name="weather"))
    with pytest.raises(ConfigError, match="no environment in common: counter and weather"):
        comparison([first, weather], common=True)
    others = RunReader(run(line("x", reward=1.0), name="others"))
    with pytest.raises(ConfigError, match="no task of counter in common"):
        comparison([first, others], common=True)


def test_runs_of_the_same_name_are_told_apart(run: Run, tmp_path: Path) -> None:
    first, second = run(*lines([1.0]), name="x/run"), run(*lines([1.0]), name="y/run")
    assert [each.run for each in comparison([RunReader(first), RunReader(second)]).runs] == [str(first), str(second)]


def ended(*arguments: str | Path) -> int:
    with pytest.raises(SystemExit) as caught:
        main(["eval", *map(str, arguments)])
    return int(caught.value.code or 0)


def test_the_command_fails_where_a_run_is_worse(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    first = run(*lines([1.0] * 12), name="first")
    second = run(*lines([0.0] * 12), name="second")
    assert ended("compare", first, second) == 0
    assert ended("compare", second, first, "--fail-if-worse") == 0
    capsys.readouterr()
    assert ended("compare", first, second, "--fail-if-worse") == 1
    said = capsys.readouterr().out
    assert "counter: second: worse" in said
    assert "worse   and 2 more" in said
    assert ended("compare", first, second, "--json") == 0
    assert json.loads(capsys.readouterr().out)["differences"][0]["verdict"] == "worse"
    assert ended("compare", first) == 2
    assert ended("compare", first, "nowhere") == 2


def test_the_command_fails_where_a_subset_is_worse(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    before = by_city(("bern", [1.0] * 8), ("oslo", [0.0] * 8))
    first, second = run(*before, name="first"), run(*by_city(("bern", [0.0] * 8), ("oslo", [1.0] * 8)), name="second")
    assert ended("compare", first, second, "--fail-if-worse") == 0
    capsys.readouterr()
    assert ended("compare", first, second, "--by", "city", "--fail-if-worse") == 1
    said = [" ".join(row.split()) for row in capsys.readouterr().out.splitlines()]
    assert "bern second worse 1 -> 0 -1 -1 to -1 0.007812 0.01562 8 0 0 8" in said
    assert "oslo second better 0 -> 1 1 1 to 1 0.007812 0.01562 8 0 8 0" in said
    assert ended("compare", first, second, "--by", "town") == 2
    assert "no rollout of" in capsys.readouterr().err


def test_the_command_tells_what_is_left_out(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    first, second = run(*lines([1.0, None]), name="first"), run(*lines([0.0, 1.0, 0.0]), name="second")
    assert ended("compare", first, second, "--common") == 0
    assert "1 without a reward, 1 only in one" in capsys.readouterr().out
